"""Tests of benchmarks/common/kept.py and rounds.py: what was found is kept, and contenders take turns."""

from __future__ import annotations

import itertools
from pathlib import Path

from benchmarks.common.kept import Kept, digest_of
from benchmarks.common.rounds import WARM_UP_ROUNDS, Limit, alternate


def test_entries_are_read_back(tmp_path: Path) -> None:
    """The later of two, from a file whose last line a kill has cut, and to which more can be added."""
    path = tmp_path / "found.jsonl"
    first = Kept(str(path))
    first.add("a", {"us": 1.0})
    first.add("a", {"us": 2.0})
    assert first.of("a") == {"us": 2.0}
    with path.open("ab") as file:
        file.write(b'["key"]\n3\n{"key": "b", "us"')
    again = Kept(str(path))
    assert (again.of("a"), again.of("b")) == ({"us": 2.0}, None)
    again.add("b", {"us": 3.0})
    assert Kept(str(path)).of("b") == {"us": 3.0}


def test_without_a_file_nothing_is_kept_but_known() -> None:
    """Of this run."""
    kept = Kept(None)
    kept.add("a", {"us": 1.0})
    assert kept.of("a") is not None


def test_another_setting_is_another_digest(tmp_path: Path) -> None:
    """By its texts, and by what the files hold."""
    file = tmp_path / "file"
    file.write_text("1")
    first = digest_of(["H200"], [file])
    assert first == digest_of(["H200"], [file]) != digest_of(["H100"], [file])
    file.write_text("2")
    assert digest_of(["H200"], [file]) != first


def test_contenders_take_turns() -> None:
    """Each once a round, in an order that is shuffled; rounds of warming up are not counted."""
    clock = itertools.count()
    order: list[str] = []

    def sampler(name: str, us: float):  # type: ignore[no-untyped-def]
        def sample() -> float:
            order.append(name)
            return 1000.0 if len(order) <= 2 * WARM_UP_ROUNDS else us

        return sample

    found = alternate({"a": sampler("a", 1.0), "b": sampler("b", 2.0)}, 9, now=lambda: next(clock) * 1.0)
    assert found == {"a": 1.0, "b": 2.0}
    rounds = list(zip(order[::2], order[1::2], strict=True))
    assert len(rounds) == WARM_UP_ROUNDS + 9
    assert {tuple(sorted(each)) for each in rounds} == {("a", "b")}
    assert len(set(rounds)) == 2


def test_nothing_is_begun_after_the_limit() -> None:
    """What was begun before is ended."""
    clock = [0.0]
    limit = Limit(10.0, lambda: clock[0])
    done = []
    for item in limit.until(range(5)):
        done.append(item)
        clock[0] += 4.0
    assert done == [0, 1, 2]
    assert limit.is_over
