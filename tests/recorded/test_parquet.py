"""Recorded tables as files: runs are added and replaced, and what is no such file is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded_runs import CONFIGS, FIT, HEADER, PROBLEM, US, journal

from genkern.errors import InputError, ResultsError
from genkern.recorded.columns import COLUMNS
from genkern.recorded.from_journal import run_of
from genkern.recorded.parquet import add, files_of, place_of, read

ROWS = len(CONFIGS) + 1


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A file with one run."""
    path = tmp_path / "t.parquet"
    add(run_of(journal(tmp_path / "r.journal")), str(path))
    return path


def rewritten(path: Path, table: pa.Table, **said: object) -> str:
    """The table at another place, with other metadata where that is said."""
    metadata = {b"genkern": json.dumps(said).encode()} if said else table.schema.metadata
    where = str(path.with_name("other.parquet"))
    pq.write_table(table.replace_schema_metadata(metadata), where)
    return where


def test_others_read_it_without_genkern(table: Path) -> None:
    """Columns with their meanings, 32-bit times, and the run's provenance as JSON."""
    found = pq.read_table(table)
    meanings = {field.name: field.metadata[b"meaning"].decode() for field in found.schema}
    assert meanings == {column.name: column.meaning for column in COLUMNS}
    assert found["screen_us"].to_pylist()[: len(FIT)] == [
        None if us is None else pytest.approx(us, rel=1e-6)
        for us in (None if place == 10 else US[config.name] for place, config in enumerate(FIT))
    ]
    ((name, run),) = json.loads(found.schema.metadata[b"genkern"])["runs"].items()
    assert set(found["run"].to_pylist()) == {name}
    assert run["header"] == {"schema": 5, **HEADER}
    assert run["recorded"] > run["date"]


def test_a_run_is_added_once(table: Path, tmp_path: Path) -> None:
    """A run that went on takes the place of what there was of it, another one stands beside it."""
    later = run_of(journal(tmp_path / "later.journal", time_s=1.8e9, factor=2.0))
    add(later, str(table))
    found, runs = read(str(table))
    assert (len(found), len(runs)) == (2 * ROWS, 2)
    add(run_of(journal(tmp_path / "half.journal", most=5)), str(table))
    found, runs = read(str(table))
    assert len(runs) == 2
    assert found["run"].to_pylist().count(later.name) == ROWS
    assert len(found) == ROWS + 5 + 3 + 1 + 1  # measured, refused, the other finalist, the library's call


def test_a_folder_has_a_file_for_each_run(tmp_path: Path) -> None:
    """Whatever its results are named later."""
    run = run_of(journal(tmp_path / "r.journal"))
    assert place_of(run, "r", "x/t.parquet") == "x/t.parquet"
    place = place_of(run, "first", str(tmp_path / "new"))
    assert place == str(tmp_path / "new" / f"first_{run.name}.parquet")
    add(run, place)
    assert place_of(run, "second", str(tmp_path / "new")) == place
    assert files_of(str(tmp_path / "new")) == [place]
    with pytest.raises(ResultsError, match="holds no recorded table"):
        files_of(str(tmp_path))


def test_a_later_files_columns_are_left_out_and_lacking_ones_empty(table: Path) -> None:
    """So files of other releases are read."""
    found = pq.read_table(table).drop_columns(["watts", "spills"])
    other = rewritten(table, found.append_column("colour", pa.array([1] * len(found))))
    columns, _ = read(other)
    assert columns.column_names == [column.name for column in COLUMNS]
    assert columns["watts"].null_count == len(found)


def test_what_is_no_recorded_table_is_refused(table: Path, tmp_path: Path) -> None:
    """In one line that names the file: text, half a file, somebody's parquet, a later schema, wrong columns."""
    data, found = table.read_bytes(), pq.read_table(table)
    whole = {"schema": 1, "runs": json.loads(found.schema.metadata[b"genkern"])["runs"]}
    (tmp_path / "text.parquet").write_text("no table")
    (tmp_path / "half.parquet").write_bytes(data[: len(data) // 2])
    pq.write_table(pa.table({"x": [1]}), tmp_path / "foreign.parquet")
    words = found.set_column(0, "M", pa.array(["many"] * len(found)))
    refused = {
        str(tmp_path / "text.parquet"): "not a recorded table, or damaged",
        str(tmp_path / "half.parquet"): "not a recorded table, or damaged",
        str(tmp_path / "foreign.parquet"): "not written by genkern record",
        str(tmp_path / "none.parquet"): "no such file",
    }
    for path, said in refused.items():
        with pytest.raises(ResultsError, match=said) as error:
            read(path)
        assert path in str(error.value)
        assert "\n" not in str(error.value)
    for other, metadata, said in (
        (found, {"schema": 2, "runs": {}}, "of a later genkern"),
        (found, {"schema": "one", "runs": {}}, "not a recorded table"),
        (found, {"schema": 1, "runs": {}}, "lacks the provenance of run"),
        (words, whole, "column M"),
        (found.drop_columns(["config"]), whole, "column config: missing"),
    ):
        with pytest.raises(ResultsError, match=said):
            read(rewritten(table, other, **metadata))


def test_damage_is_refused_or_harmless(table: Path) -> None:
    """Wherever a bit is another, nothing but the one error is raised; no other value of any column is read."""
    data, (whole, runs), random = table.read_bytes(), read(str(table)), Random(1)
    refused = 0
    for _ in range(200):
        damaged = bytearray(data)
        damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
        table.write_bytes(damaged)
        try:
            found, of = read(str(table))
        except ResultsError as error:
            refused += "\n" not in str(error)
            continue
        assert found.equals(whole)
        assert of == runs
    assert refused > 190


def test_without_pyarrow_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, table: Path) -> None:
    """As for every optional package."""
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install '\.\[recorded\]'"):
        read(str(table))


def test_rows_are_small(tmp_path: Path) -> None:
    """A row more takes a few bytes: what rows share is said once."""
    problems = [PROBLEM, *(type(PROBLEM)(m, 128, 256) for m in range(65, 165))]
    place = str(tmp_path / "t.parquet")
    one = add(run_of(journal(tmp_path / "one.journal")), place)
    many = add(run_of(journal(tmp_path / "many.journal", *problems, time_s=1.8e9)), str(tmp_path / "many.parquet"))
    assert (many - one) / (100 * ROWS) < 20
