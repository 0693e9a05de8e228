"""What a user waits for one size is counted from nothing, and the figure is of all sizes or there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.timing.first_size import WARMING, Size, chosen, command, main, report, waited
from genkern.files.sizes import GemmDefaults, read_sizes

LIST = str(Path(__file__).resolve().parents[3] / "input_sizes" / "held_out_3.yaml")


def sizes(count: int = 7) -> list[Size]:
    """Of the list that figures are of."""
    return chosen(read_sizes(LIST, GemmDefaults(), None).problems, count)


def test_sizes_are_of_each_kind() -> None:
    """Each M and each weight of the list is there, and no size twice; more than there are is all of them."""
    assert {m for m, _, _ in sizes()} == {3, 17, 100, 500, 3000}
    assert len({(n, k) for _, n, k in sizes()}) == 6
    assert len(set(sizes())) == 7
    assert len(sizes(99)) == 30


def test_the_first_run_only_warms() -> None:
    """It is of a size that is in no figure; a size without a winner leaves no figure."""
    asked: list[Size] = []

    def seconds(size: Size, folder: Path) -> float | None:
        assert folder.is_dir()
        assert not list(folder.iterdir())
        asked.append(size)
        return None if size == sizes()[2] else float(len(asked))

    found = waited(sizes(), seconds, 60.0)
    assert asked == [WARMING, *sizes()]
    assert list(found) == [size for size in sizes() if size != sizes()[2]]
    assert "guided_first_size_s" not in report(found, 7)
    assert "guided_first_size_s: 5.00" in report(dict(zip(sizes(), range(2, 9), strict=True)), 7)


def test_none_is_begun_after_the_limit() -> None:
    """A run is to end."""
    assert waited(sizes(), lambda size, folder: 1.0, -1.0) == {}


def test_the_command_tunes_the_size(tmp_path: Path) -> None:
    """In a cache of its own."""
    argv = command((3, 17, 64), tmp_path, ["--compare"])
    assert argv[1:10] == ["-m", "genkern", "-m", "3", "-n", "17", "-k", "64", "--compare"]
    assert argv[argv.index("--cache_dir") + 1].startswith(str(tmp_path))


def test_a_run_from_beginning_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Processes run, one for each size; one that is no run of genkern fails, and so does this."""
    assert main([LIST, "--count", "1", "--", "--no_such_option"]) == 1
    said = capsys.readouterr()
    assert "0 of 1 sizes" in said.out
    assert "no_such_option" in said.err
