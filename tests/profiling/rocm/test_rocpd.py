"""Tests of profiling/rocm/rocpd.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_formats import write_rocpd

from genkern.errors import ProfilerError
from genkern.profiling.rocm.rocpd import read_rocpd


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A place whose name needs care in a URI."""
    folder = tmp_path / 'it\'s 100% "odd" ?#'
    folder.mkdir()
    return folder / "trace_results.db"


def test_the_kernels_view_becomes_dispatches_in_time_order(database: Path) -> None:
    """Names lose their marks, rows are sorted by start, sizes are read, unusable rows are counted."""
    write_rocpd(str(database), [("b", 30, 45), ("a [clone .kd]", 10, 20), ("zero", 0, 0)])
    trace = read_rocpd(database)
    assert [(d.symbol, d.duration_ns) for d in trace.dispatches] == [("a", 10), ("b", 15)]
    assert (trace.dispatches[0].grid_size_x, trace.dispatches[0].workgroup_size_x) == (262144, 256)
    assert [d.dispatch_id for d in trace.dispatches] == [2, 1]
    assert trace.invalid_rows == 1


def test_reading_leaves_the_folder_as_it_was(database: Path) -> None:
    """The file is opened read-only: no journal appears and no byte changes."""
    write_rocpd(str(database), [("a", 10, 20)])
    before = database.read_bytes()
    read_rocpd(database)
    assert [database] == list(database.parent.iterdir())
    assert database.read_bytes() == before


def test_a_database_without_the_view_is_refused(database: Path) -> None:
    """A sqlite file of something else raises ProfilerError that names the view."""
    write_rocpd(str(database), [("a", 10, 20)], view="memory_copies")
    with pytest.raises(ProfilerError, match="kernels"):
        read_rocpd(database)


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_damaged_database_is_refused_in_one_line(database: Path, content: bytes) -> None:
    """Bytes that are no database raise ProfilerError with the path, not sqlite3's error."""
    database.write_bytes(content)
    with pytest.raises(ProfilerError, match=r"trace_results\.db") as caught:
        read_rocpd(database)
    assert "\n" not in str(caught.value)


def test_a_database_cut_in_half_is_refused(database: Path) -> None:
    """Half a file never passes for a shorter trace."""
    write_rocpd(str(database), [(f"kernel_{i}", 10 + i, 20 + i) for i in range(5000)])
    content = database.read_bytes()
    database.write_bytes(content[: len(content) // 2])
    with pytest.raises(ProfilerError):
        read_rocpd(database)


def test_a_missing_database_is_refused_and_not_created(database: Path) -> None:
    """Reading what is not there raises ProfilerError and leaves no empty file."""
    with pytest.raises(ProfilerError, match="does not exist"):
        read_rocpd(database)
    assert not database.exists()
