"""How screenings are replayed in other orders."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from kept_configs import kept_configs

from benchmarks.search import screening_order
from benchmarks.search.screening_order import Played, Screening, play
from genkern.farm.sharing import compiled_of
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.journal import Journal
from genkern.search.plain.patience import forms_first
from genkern.search.predict import promising_first

PROBLEM, GPU = GemmProblem(256, 1024, 2048), gpu_for_arch("sm_90")


@pytest.fixture(scope="module", name="kept")
def some_that_are_kept() -> list[Config]:
    """One in nine, since replaying all takes seconds."""
    return list(kept_configs(PROBLEM, "sm_90")[::9])


def test_siblings_of_a_slow_one_are_not_launched(kept: list[Config]) -> None:
    """The first of a tile's group sizes always runs; the others where it was within the factor of the best so far."""
    one = next(config for config in kept if config.GROUP_SIZE_M == 1)
    other = next(config for config in kept if replace(config, GROUP_SIZE_M=1) != one)
    fast, slow = ([replace(config, GROUP_SIZE_M=size) for size in (1, 4, 8)] for config in (one, other))
    screening = Screening(PROBLEM, GPU, dict.fromkeys(fast, 10.0) | dict.fromkeys(slow, 16.0))
    assert play(screening, [*fast, *slow], 1.5) == Played(4 / 6, pytest.approx(46 / 78), 1.0, 1.0)
    assert play(screening, [*fast, *slow], 2.0) == Played(1.0, 1.0, 1.0, 1.0)
    # Nothing better is known when the slow one comes first.
    assert play(screening, [*slow, *fast], 1.5) == Played(1.0, 1.0, 1.0, 1.0)
    late = Screening(PROBLEM, GPU, {**screening.us, slow[2]: 5.0})
    assert play(late, [*fast, *slow], 1.5).best == 2.0


def test_patience_leaves_the_rest_out(kept: list[Config]) -> None:
    """Behind so many binaries that brought nothing faster nothing is compiled, though it were the best."""
    tiles = list(dict.fromkeys(replace(config, GROUP_SIZE_M=1, SPLIT_K=1) for config in kept))[:10]
    screening = Screening(PROBLEM, GPU, dict(zip(tiles, (9.0, 8.0, *[10.0] * 7, 4.0), strict=True)))
    assert play(screening, tiles, 2.0, 7) == Played(0.9, pytest.approx(87 / 91), 0.9, 2.0)
    assert play(screening, tiles, 2.0, 8) == play(screening, tiles, 2.0) == Played(1.0, 1.0, 1.0, 1.0)


def test_all_of_the_last_binary_are_launched(kept: list[Config]) -> None:
    """Configs that share their binaries are handed over together: what ends a run does not part them."""
    tiles = list(dict.fromkeys(replace(config, GROUP_SIZE_M=1, SPLIT_K=1) for config in kept))[:4]
    slow = [replace(tiles[1], GROUP_SIZE_M=size) for size in (1, 4)]
    screening = Screening(PROBLEM, GPU, {tiles[0]: 8.0, slow[0]: 9.0, slow[1]: 7.0, tiles[2]: 6.0, tiles[3]: 6.0})
    assert play(screening, list(screening.us), 2.0, 1) == Played(0.6, pytest.approx(24 / 36), 0.5, pytest.approx(7 / 6))


def test_orders_are_those_of_space_and_prediction(kept: list[Config]) -> None:
    """Whatever order a run had, a replay has the space's own, and those that genkern launches in, by binary."""
    predicted = promising_first(PROBLEM, kept, GPU)
    screening = Screening(PROBLEM, GPU, dict.fromkeys(predicted, 1.0))
    assert screening_order.space_order(screening) == list(kept) != list(screening.us)
    orders = screening_order.orders_of(screening)
    binaries = {name: [compiled_of(config) for config in order] for name, order in orders.items()}
    expected = {"space": list(kept), "predicted": predicted, "forms": forms_first(predicted)}
    for name, order in expected.items():
        assert sorted(orders[name]) == sorted(kept)
        assert [what for what, _ in itertools.groupby(binaries[name])] == list(dict.fromkeys(map(compiled_of, order)))
    assert len(set(map(tuple, orders.values()))) == 3


def test_report_has_each_policy(kept: list[Config]) -> None:
    """Each line is the replay of its own order and factor; the totals weigh sizes by their configs and binaries."""
    chance = random.Random(0)
    tile_us = {replace(config, GROUP_SIZE_M=1): chance.uniform(50.0, 200.0) for config in kept}
    us = {config: tile_us[replace(config, GROUP_SIZE_M=1)] + config.GROUP_SIZE_M for config in kept}
    screening = Screening(PROBLEM, GPU, us)
    one = Screening(replace(PROBLEM, M=2048), GPU, {kept[0]: 1.0})
    orders = screening_order.orders_of(screening)
    expected, replayed = [], {}
    for policy in screening_order.POLICIES:
        order, factor, patience = policy
        replayed[policy] = played = play(screening, orders[order], factor, patience)
        shares = f"{played.launched:.1%} | {played.time:.1%} | {played.binaries:.1%} | {played.best:.4f}"
        expected.append(f"| 256x1024x2048 | {len(kept):,} | {order} | {factor} | {patience} | {shares} |")
    lines = screening_order.report([screening, one]).splitlines()
    assert lines[2 : 2 + len(expected)] == expected
    assert len({line.split("|", 5)[5] for line in expected}) > len(expected) / 2
    totals = dict(line.split(": ") for line in lines if ": " in line)
    binaries = len(set(map(compiled_of, kept)))
    assert (totals["sizes"], totals["configs"], totals["binaries"]) == ("2", str(len(kept) + 1), str(binaries + 1))
    for key, policy in {"prediction": screening_order.DEFAULT, "patience_32": screening_order.PATIENT[32]}.items():
        played = replayed[policy]
        assert totals[f"{key}_share"] == f"{(played.launched * len(kept) + 1) / (len(kept) + 1):.4f}"
        assert totals[f"{key}_binaries"] == f"{(played.binaries * binaries + 1) / (binaries + 1):.4f}"
        assert totals[f"{key}_loss"] == f"{played.best**0.5 - 1:.4f}"
        assert totals[f"{key}_worst"] == f"{played.best - 1:.4f}"
    assert float(totals["patience_32_loss"]) > float(totals["prediction_loss"])


def test_command_reads_journals(kept: list[Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each size and policy, of what was measured; what is no journal is one line."""
    journal = Journal(tmp_path / "j", {"arch": "sm_90"})
    for config in kept[:3]:
        journal.screened(PROBLEM, Measurement(config.name, Outcome.MEASURED, "cudagraph", "screen", 9.0, (9.0,)))
    journal.screened(PROBLEM, Measurement(kept[3].name, Outcome.CRASHED, "cudagraph", "screen"))
    journal.close()
    screening_order.main([str(tmp_path / "j")])
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + len(screening_order.POLICIES)
    assert rows[-1] == "| 256x1024x2048 | 3 | forms | 1.5 | 256 | 100.0% | 100.0% | 100.0% | 1.0000 |"
    assert {"prediction_share: 1.0000", "prediction_worst: 0.0000", "patience_64_loss: 0.0000"} < set(lines)
    (tmp_path / "j").write_text("what is this\n")
    Journal(tmp_path / "without", {"arch": "sm_90"}).close()
    for wrong in ("j", "without"):
        with pytest.raises(SystemExit) as ended:
            screening_order.main([str(tmp_path / wrong)])
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1
