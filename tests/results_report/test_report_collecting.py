"""What a report knows of results files and of what lies beside them, and that it says what they lack."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_reports import STAGES, journal, predicted, problems, results, winner
from recorded_runs import BEST, BROKEN, FIT, WRONG
from winner_factory import write_results

from genkern.cli.candidates_file import COLUMNS
from genkern.errors import ResultsError
from genkern.files.file_kind import read_results
from genkern.journal.facts import read_journal
from genkern.ops.fields import problem_cells
from genkern.recorded.from_journal import run_of
from genkern.recorded.parquet import add
from genkern.results_report import Record, collect, write
from genkern.results_report.record import plain

HEAD = ",".join(COLUMNS)


def noted(record: Record, word: str) -> bool:
    return any(word in note for note in record.notes)


def test_speed_and_roofline_follow_from_the_row(tmp_path: Path) -> None:
    """The speed's interval covers both medians' errors; the least time is the larger one of bytes and operations."""
    path = results(tmp_path / "r.yaml", [winner(problems()[0], 10.0, 1.2)])
    (size,) = collect(path).sizes
    assert size.speedup == pytest.approx(1.2)
    assert size.speedup_low == pytest.approx(1.2 * (1 - 0.002 * 2**0.5), rel=1e-4)
    assert size.speedup_high == pytest.approx(1.2 * (1 + 0.002 * 2**0.5), rel=1e-4)
    moved = 2 * (16 * 4096 + 4096 * 4096 + 16 * 4096)
    assert size.intensity == pytest.approx(2 * 16 * 4096 * 4096 / moved)
    assert (size.bound, size.roof_us) == ("memory", pytest.approx(moved / 4.8e6))
    assert size.roof_share == pytest.approx(moved / 4.8e6 / 10)


def test_what_is_missing_is_said_and_not_made_up(tmp_path: Path) -> None:
    """No journal, no candidates, no library: one line each, and no values."""
    record = collect(results(tmp_path / "r.yaml", [winner(problems()[0], 10.0, None)]))
    assert noted(record, "no journal")
    assert noted(record, "no list of candidates")
    assert noted(record, "no time of a library")
    assert record.runs == () == record.candidates
    size = record.sizes[0]
    assert (size.speedup, size.library_us, size.needs, size.candidates) == (None, None, None, None)


def test_predictions_are_marked_and_never_compared(tmp_path: Path) -> None:
    new = results(tmp_path / "new.yaml", [predicted(problems()[0], 10.0)])
    old = results(tmp_path / "old.yaml", [winner(problems()[0], 12.0)])
    record = collect(new, old)
    (size,) = record.sizes
    assert (size.timed, size.speedup, size.low_us) == ("predicted", None, pytest.approx(8.0))
    assert noted(record, "predicted, not measured")
    assert "predicted" in record.title
    assert size.change is not None
    assert (size.change.verdict, size.change.ratio, size.change.p) == ("not compared", None, None)
    assert "predicted" in size.change.why


def test_a_journal_gives_candidates_resources_and_the_timeline(tmp_path: Path) -> None:
    """Wrong candidates count as an outcome, but their times do not."""
    path = results(tmp_path / "r.yaml")
    journal(path)
    record = collect(path)
    size = record.sizes[0]
    assert size.candidates is not None
    found = record.candidates[size.candidates]
    assert found.outcomes == {"measured": 16, "compile_failed": len(BROKEN), "wrong": 1, "crashed": 1}
    assert WRONG.name not in found.config
    assert (found.config[0], found.us[0]) == (BEST.name, pytest.approx(9.8765))
    best = min(found.tiles, key=lambda tile: tile.us)
    assert (best.block_m, best.block_n) == (BEST.BLOCK_SIZE_M, BEST.BLOCK_SIZE_N)
    assert {value for value, _, _ in found.best_by["BLOCK_SIZE_M"]} == {16, 32, 64}
    assert size.needs is not None
    assert (size.needs.registers, size.needs.blocks_per_unit, size.needs.warps_per_unit) == (168, 3, 12)
    assert sum(size.needs.loop.values()) == 120
    (run,) = record.runs
    assert run.devices == 2
    first = [stage for stage in run.stages if stage.size == size.size]
    assert [stage.stage for stage in first] == [name for name in STAGES if name != "prune"]
    assert (first[0].begin_s, first[-1].end_s) == (pytest.approx(2.0), pytest.approx(34.0))
    assert run.wall_s == pytest.approx(2.0 + 16 * 5 + 32.0)
    assert run.measure_s is not None
    assert run.idle_s == pytest.approx(2 * run.wall_s - run.measure_s)
    assert run.measure_s > 6 * (6 + 2 + 3)


def test_a_journal_without_times_has_no_timeline(tmp_path: Path) -> None:
    path = results(tmp_path / "r.yaml")
    journal(path, times=False)
    record = collect(path)
    assert noted(record, "no timeline")
    assert [(run.wall_s, run.idle_s, run.stages) for run in record.runs] == [(None, None, ())]


def test_a_damaged_journal_is_a_note(tmp_path: Path) -> None:
    path = results(tmp_path / "r.yaml")
    journal(path)
    file = tmp_path / "r.yaml.journal.previous"
    file.write_bytes(file.read_bytes().replace(b"9.8765", b"9.8766", 1))
    record = collect(path)
    assert noted(record, "damaged")
    assert record.candidates == ()


def test_candidates_come_from_tables_and_lists(tmp_path: Path) -> None:
    """A recorded table, and the CSV of --profile_file, which names no GPU, give the same candidates."""
    pytest.importorskip("pyarrow")
    path = results(tmp_path / "r.yaml")
    journal(path)
    finished = tmp_path / "r.yaml.journal.previous"
    of_journal = collect(path).candidates[0]
    add(run_of(read_journal(finished)), str(tmp_path / "tables" / "r.parquet"))
    finished.unlink()
    table = collect(path, candidates=[str(tmp_path / "tables")])
    assert replace(table.candidates[0], origin=of_journal.origin) == of_journal
    cells = {
        **dict.fromkeys(COLUMNS, ""),
        **problem_cells(problems()[1]),
        "time_source": "cudagraph",
        "stage": "screen",
    }
    rows = [{**cells, "config": config.name, "outcome": "measured", "us": str(20 + n)} for n, config in enumerate(FIT)]
    lines = [",".join(COLUMNS), *(",".join(row[column] for column in COLUMNS) for row in rows)]
    (tmp_path / "c.csv").write_text("\n".join(lines) + "\n")
    listed = collect(path, candidates=[str(tmp_path / "c.csv")])
    assert [size.candidates for size in listed.sizes] == [None, 0, None, None, None, None]
    assert (listed.candidates[0].timed, listed.candidates[0].us[:2]) == (len(FIT), (20.0, 21.0))


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "\0", ",".join(COLUMNS) + "\n1,2\n", ",".join(COLUMNS) + "\n" + "x," * 40]
)
def test_other_files_are_no_candidates(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(ResultsError) as error:
        collect(results(tmp_path / "r.yaml"), candidates=[str(tmp_path / "c.csv")])
    assert "c.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_large_sets_are_cut_alike_and_charts_count_all(tmp_path: Path) -> None:
    path = results(tmp_path / "r.yaml")
    journal(path)
    record = collect(path, most_candidates=24)
    assert [len(each.config) for each in record.candidates] == [4] * 6
    assert [each.timed for each in record.candidates] == [16] * 6
    assert all(sum(tile.candidates for tile in each.tiles) == 16 for each in record.candidates)
    assert noted(record, "24 fastest")


def test_a_folder_is_one_report(tmp_path: Path) -> None:
    """A size of two files has two links; what is no results file is named."""
    folder = tmp_path / "folder"
    folder.mkdir()
    results(folder / "a.yaml")
    results(folder / "b.yaml", [winner(problems()[0], 11.0)])
    (folder / "c.csv").write_text("x,y\n1,2\n")
    record = collect(folder)
    assert len({size.id for size in record.sizes}) == len(record.sizes) == 7
    assert noted(record, "c.csv")
    with pytest.raises(ResultsError, match="no results file"):
        collect(tmp_path)


def test_the_source_is_that_of_the_measured_kernel_or_is_marked(tmp_path: Path) -> None:
    path = results(tmp_path / "r.yaml", [winner(problems()[0], 10.0, source="0" * 16), winner(problems()[1], 10.0)])
    other, unknown = (size.source for size in collect(path).sizes)
    assert other is not None
    assert unknown is not None
    assert (other.as_measured, unknown.as_measured) == (False, None)
    record = collect(path)
    assert any("def " in text for text in record.texts.values())
    assert set(unknown.kernels) <= set(record.texts)
    assert "BLOCK_SIZE_M = 32" in unknown.head


def test_results_in_memory_are_reported(tmp_path: Path) -> None:
    rows = read_results(str(results(tmp_path / "r.yaml")))
    record = write(rows, tmp_path / "report.json", rows[:3])
    assert json.loads((tmp_path / "report.json").read_text()) == plain(record)
    assert [size.change is None for size in record.sizes] == [False] * 3 + [True] * 3


def test_no_rows_is_one_line(tmp_path: Path) -> None:
    write_results(tmp_path / "r.yaml", [])
    with pytest.raises(ResultsError, match="no results"):
        collect(tmp_path / "r.yaml")
