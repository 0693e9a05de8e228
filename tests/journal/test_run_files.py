"""One run is found by any of its files, and all runs of a folder by the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkern.errors import ResultsError
from genkern.journal.run_files import RunFiles, find_runs


def test_a_run_is_found_by_any_of_its_files(hostile_path: Path) -> None:
    """Its results file, written yet or not, its journal, its finished journal."""
    run = RunFiles(str(hostile_path / "r.yaml"))
    run.journal.touch()
    for path in (run.results, str(run.journal), str(run.finished_journal)):
        assert find_runs(path) == [run]
    run.journal.rename(run.finished_journal)
    assert find_runs(run.results) == [run]
    run.finished_journal.rename(run.lock)
    assert find_runs(run.results) == [run]


def test_further_passes_are_found_with_their_run(hostile_path: Path) -> None:
    """Those that have a journal, in their order; they are under the run's lock."""
    run = RunFiles(str(hostile_path / "r.yaml"))
    run.journal.touch()
    second, first = run.of_order(2), run.of_order(1)
    second.journal.touch()
    first.finished_journal.touch()
    assert find_runs(run.results) == [run, first, second]
    assert find_runs(str(second.journal)) == [second]
    assert first.lock == second.lock == run.lock


def test_a_folder_has_all_its_runs(hostile_path: Path) -> None:
    """Each once, sorted; those of other folders are not its own."""
    runs = [RunFiles(str(hostile_path / name)) for name in ("a.yaml", "b.csv", "c")]
    runs[0].journal.touch()
    runs[0].finished_journal.touch()
    runs[1].finished_journal.touch()
    runs[2].journal.touch()
    (hostile_path / "other.yaml").touch()
    assert find_runs(str(hostile_path)) == runs
    assert find_runs(str(hostile_path) + "/") == runs


@pytest.mark.parametrize(
    ("path", "said"), [("", "holds no journal"), ("none.yaml", "no such file"), ("alone.yaml", "has no journal")]
)
def test_where_there_is_none(path: str, said: str, tmp_path: Path) -> None:
    """An empty folder, no file, and a results file that no run has written here."""
    (tmp_path / "alone.yaml").touch()
    with pytest.raises(ResultsError, match=said):
        find_runs(str(tmp_path / path) if path else str(tmp_path))


def test_a_replaced_journal_takes_no_name_that_is_there(hostile_path: Path) -> None:
    """However often one is replaced, none is lost, and none is taken for a run."""
    run = RunFiles(str(hostile_path / "r.yaml"))
    for ending in ("", "_2", "_3"):
        assert run.replaced_journal.name == f"r.yaml.journal.replaced{ending}"
        run.replaced_journal.touch()
    assert not run.known
