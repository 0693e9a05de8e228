"""Tests of profiling/rocm/kernel_trace.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_formats import COLUMNS, HEADERS, csv_text

from genkern.errors import ProfilerError
from genkern.profiling.rocm.kernel_trace import clean_symbol, parse_kernel_trace

# Recorded outputs that lie beside a developer's checkout, not in it; the inline texts below cover the same formats.
_RECORDED = Path(__file__).parents[4] / "shared" / "data" / "rocprof"

_ROWS = [("gemm_b", 2000, 2500), ("void f<float>(float*, int)", 1000, 1400), ("gemm_a", 3000, 3001)]


@pytest.mark.parametrize("version", HEADERS)
def test_every_version_gives_the_same_dispatches_in_time_order(version: str) -> None:
    """Name, start and end are found whatever the columns are, and rows are sorted by start."""
    trace = parse_kernel_trace(csv_text(version, _ROWS))
    assert [(d.symbol, d.start_ns, d.end_ns) for d in trace.dispatches] == sorted(_ROWS, key=lambda row: row[1])
    assert (trace.invalid_rows, trace.truncated_rows) == (0, 0)


@pytest.mark.parametrize("version", COLUMNS)
def test_headers_have_the_documented_number_of_columns(version: str) -> None:
    """The texts that these tests are made of are those of the real tools."""
    assert COLUMNS[version] == len(HEADERS[version].split())


def test_sizes_are_read_where_the_format_has_them() -> None:
    """rocprofv3 reports the x sizes; legacy rocprof only their product, which is not taken for x."""
    v3 = parse_kernel_trace(csv_text("7.0", _ROWS)).dispatches[0]
    v1 = parse_kernel_trace(csv_text("rocprof --stats", _ROWS)).dispatches[0]
    assert (v3.grid_size_x, v3.workgroup_size_x) == (256 * 1024, 256)
    assert (v1.grid_size_x, v1.workgroup_size_x) == (None, None)


@pytest.mark.parametrize("version", ["6.4", "rocprof --stats"])
def test_header_case_and_line_ends_do_not_matter(version: str) -> None:
    """Upper-case headers and CRLF line ends give the same dispatches."""
    header, rest = csv_text(version, _ROWS).split("\n", 1)
    text = (header.upper() + "\n" + rest).replace("\n", "\r\n")
    assert parse_kernel_trace(text) == parse_kernel_trace(csv_text(version, _ROWS))


@pytest.mark.parametrize("name", ["gemm [clone .kd]", "gemm.kd", "gemm (.kd)", "gemm"])
def test_marks_of_the_legacy_tools_are_stripped(name: str) -> None:
    """Every way in which a kernel descriptor is marked gives the plain symbol."""
    assert clean_symbol(name) == "gemm"
    assert parse_kernel_trace(csv_text("rocprof --stats", [(name, 1, 2)])).dispatches[0].symbol == "gemm"


@pytest.mark.parametrize("version", HEADERS)
@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 4), (5, 5), (0, 9)])
def test_rows_without_usable_times_are_dropped_and_counted(version: str, start: int, end: int) -> None:
    """A zeroed, reversed or empty interval never becomes a duration."""
    trace = parse_kernel_trace(csv_text(version, [("a", 10, 20), ("b", start, end), ("c", 30, 40)]))
    assert [d.symbol for d in trace.dispatches] == ["a", "c"]
    assert trace.invalid_rows == 1


@pytest.mark.parametrize("version", HEADERS)
def test_a_file_cut_off_anywhere_gives_only_rows_it_really_had(version: str) -> None:
    """Cut at any byte after the header: each dispatch is an original one, at most one row counts as cut off."""
    text = csv_text(version, _ROWS)
    whole = set(parse_kernel_trace(text).dispatches)
    for length in range(text.index("\n") + 1, len(text)):
        trace = parse_kernel_trace(text[:length])
        assert {(d.symbol, d.start_ns, d.end_ns) for d in trace.dispatches} <= {
            (d.symbol, d.start_ns, d.end_ns) for d in whole
        }
        complete = text[:length].count("\n") - 1
        assert len(trace.dispatches) >= complete
        assert trace.invalid_rows == 0
        assert trace.truncated_rows <= 1


def test_a_broken_row_costs_only_itself() -> None:
    """An unclosed quote, a short row, a NUL byte or a text for a number does not reach the rows around it."""
    header, *rows = csv_text("7.0", [("a", 10, 20), ("b", 30, 40)]).splitlines()
    bad = ['"KERNEL_DISPATCH","Agent 4', "1,2,3", "\0", rows[0].replace(",10,", ",ten,")]
    trace = parse_kernel_trace("\n".join([header, rows[0], *bad, rows[1], ""]))
    assert [d.symbol for d in trace.dispatches] == ["a", "b"]
    assert trace.invalid_rows == len(bad)


@pytest.mark.parametrize("version", HEADERS)
def test_launches_are_numbered_where_the_version_numbers_them(version: str) -> None:
    """From ROCm 6.3 on; the row numbers of legacy rocprof are not taken for them."""
    trace = parse_kernel_trace(csv_text(version, [("a", 10, 20), ("b", 30, 40)], [3, 7]))
    numbered = "Dispatch_Id" in HEADERS[version].split()
    assert [d.dispatch_id for d in trace.dispatches] == ([3, 7] if numbered else [None, None])
    assert numbered == (version != "6.2" and not version.startswith("rocprof "))


def test_a_trace_without_dispatches_is_empty() -> None:
    """A header alone is a valid trace."""
    assert parse_kernel_trace(csv_text("7.0", [])).dispatches == ()


_ROCPROFV2 = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID\n\n"
)
_COUNTERS = "Correlation_Id,Dispatch_Id,Kernel_Name,Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("\0\x7fELF\x02", "not a kernel trace"),
        ("<html>\n", "not a kernel trace"),
        ('"Name","Calls","TotalDurationNs"\n"gemm",1,5\n', "not a kernel trace"),
        ("Index,KernelName,gpu-id,queue-id\n", "--timestamp on"),
        (_COUNTERS, "counters"),
        (_ROCPROFV2, "rocprofv2"),
    ],
)
def test_another_file_is_refused_in_one_line_that_names_it(text: str, said: str) -> None:
    """A file that is no kernel trace raises ProfilerError with its path and what it is."""
    with pytest.raises(ProfilerError, match=said) as caught:
        parse_kernel_trace(text, "run 7/out.csv")
    assert "run 7/out.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", sorted(_RECORDED.glob("*.csv")), ids=lambda path: path.stem)
def test_recorded_files_are_read_whole(path: Path) -> None:
    """Each recorded file gives one dispatch per complete row, in time order, with positive durations."""
    text = path.read_text()
    trace = parse_kernel_trace(text)
    rows = [line for line in text.split("\n")[1:] if line]
    assert len(trace.dispatches) + trace.truncated_rows == len(rows)
    starts = [d.start_ns for d in trace.dispatches]
    assert starts == sorted(starts)
    assert all(d.duration_ns > 0 and not d.symbol.endswith(".kd") for d in trace.dispatches)
