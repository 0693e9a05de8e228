"""How finals are replayed with NVBench's entropy criterion."""

from __future__ import annotations

import math
import random
from pathlib import Path

import entropy_stop
import pytest
from entropy_stop import NVBENCH, End, Entropy, Race, Rule, replay

from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.journal import Journal

COARSE = Rule(0.01, 0.5, 0.36, 16)


def test_distinct_values_settle_only_after_many() -> None:
    """Entropy then is log2 of their number n, which rises by 1.44 / n a sample: 0.048 degrees after some 1,700."""
    # The same at ten times the angle, in a hundredth of the time.
    entropy, rising = Entropy(Rule(0.0, 0.48, 0.36, 32)), 0
    for number in range(1, 300):
        entropy.add(float(number))
        rising = number if not entropy.settled else rising
    assert 1 / math.log(2) / math.tan(math.radians(0.48)) < rising < 200


def test_a_value_that_repeats_settles_at_once() -> None:
    """As soon as the window is full; values in one bin are one value."""
    rough = random.Random(1)
    for share, settles in ((0.01, True), (0.0, False)):
        entropy = Entropy(Rule(share, 0.048, 0.36, 16))
        for number in range(1, 33):
            entropy.add(100.0 if number == 1 else 100.0 + rough.uniform(-0.4, 0.4))
            assert entropy.settled == (settles and number >= 16)


def test_the_price_is_that_of_the_choice() -> None:
    """A race that ends early chooses by what was known; its price is judged by all samples. Others end as they did."""
    late, steady = [10.0] * 20 + [9.0] * 40, [9.9] * 60
    early = replay(Race("1x1x1", {"late": late, "steady": steady, "vendor": [8.0] * 60}), COARSE)
    assert early == End("1x1x1", 20, 60, pytest.approx(9.9 / 9.0))
    distinct = [10.0 + number / 100 for number in range(60)]
    assert replay(Race("1x1x1", {"a": distinct}), NVBENCH) == End("1x1x1", 60, 60, 1.0)


def test_command_reads_journals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each rule, and full data; a journal that makes no sense is one line."""
    journal = Journal(tmp_path / "j", {})
    finals = [Measurement(n, Outcome.MEASURED, "cudagraph", "final", 9.0, (9.0,) * 60) for n in ("a", "vendor")]
    journal.retimed(GemmProblem(1, 2, 3), [*finals, Measurement("b", Outcome.CRASHED, "cudagraph", "final")])
    journal.close()
    entropy_stop.main([str(tmp_path / "j"), "-o", str(tmp_path / "full.jsonl")])
    assert "| exact | 0.048 | 0.36 | 299 | 1 of 1 | 50 of 60 | 0 | 1.0000 (1.0000) |" in capsys.readouterr().out
    assert len((tmp_path / "full.jsonl").read_text().splitlines()) == len(entropy_stop.RULES)
    (tmp_path / "j").write_text("what is this\n")
    with pytest.raises(SystemExit):
        entropy_stop.main([str(tmp_path / "j")])
