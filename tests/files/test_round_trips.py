"""Every kind of problem that the formats declare, through every reader and writer of files: none refused or changed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from long_tests import drawn

from benchmarks.checking.round_trips import READERS, Files, cases, changed
from genkern.errors import InputError, ResultsError
from genkern.files.file_kind import read_results
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import fields_of
from genkern.ops.op import get_op, op_names

# One of each vendor's newest with fp8, and of those without capabilities the oldest: through all readers.
ARCHS = ("sm_90", "gfx950", "gfx90a")
TF32 = GemmProblem(16, 4096, 7168, dtype_a="fp32", dtype_b="fp32", dtype_c="fp32", own=(("precision", "tf32"),))


@functools.cache
def cases_of(arch: str) -> list[GemmProblem]:
    return cases(arch)


def some_of(problems: Iterable[GemmProblem]) -> list[GemmProblem]:
    """One of each kind: every combination of types alone, and every variation with some types."""
    found: dict[object, GemmProblem] = {}
    for each in problems:
        plain = not (each.own or each.bias) and each.activation == "none" and each.layout == "TN"
        types = (each.dtype_a, each.dtype_b, each.dtype_c) if plain else ()
        found.setdefault((each.op, types, each.own, each.bias, each.activation, each.layout), each)
    return list(found.values())


@pytest.mark.parametrize("arch", drawn(ARCHS, 1))
def test_what_is_written_is_read_back(arch: str, tmp_path: Path) -> None:
    """By runs, resumed runs, lists, merge, checks, pack, journals, candidates, ops, AITER's CSV, export and import."""
    problems = some_of(cases_of(arch))
    assert len(problems) > 100
    assert changed(Files(arch, problems, tmp_path)) == {}


@pytest.mark.parametrize("arch", ARCHS)
def test_every_declared_value_is_a_case(arch: str) -> None:
    """Every format that the architecture has, and there every word of each of its fields, unless it takes none."""
    problems = cases_of(arch)
    assert {problem.op for problem in problems} == set(op_names())
    said = {(problem.op, name, value) for problem in problems for name, value in problem.own}
    words = {
        (op, field.name, word)
        for op in op_names()
        for field in fields_of(get_op(op).fields)
        for word in field.words
        if word != field.default
    }
    missing = {(name, word) for _, name, word in words - said}
    # What some architectures do not have: tf32, fp8 with sums of few bits.
    assert missing <= {("precision", "tf32"), ("accumulate", "full"), ("scales", "blocks")}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_tf32_of_a_results_file(reader: Callable[[Files], Collection[GemmProblem]], tmp_path: Path) -> None:
    """The architecture of the row decides: sm_90 has it, and one without capabilities would not."""
    assert list(reader(Files("sm_90", [TF32], tmp_path))) == [TF32]


@pytest.mark.parametrize("arch", ["sm_90", "gfx942", "sm_999", ""])
def test_the_rows_own_architecture_decides(arch: str, tmp_path: Path) -> None:
    """An unknown one, or none, may be one that has it."""
    (tmp_path / "r.yaml").write_text(_row(arch))
    assert [row.problem for row in read_results(str(tmp_path / "r.yaml"))] == [TF32]


def test_what_an_architecture_cannot_compute_is_refused(tmp_path: Path) -> None:
    """A row of tf32 for a GPU without it, and of a type that no architecture has in that format."""
    (tmp_path / "r.yaml").write_text(_row("gfx90a"))
    with pytest.raises(ResultsError, match="line 1: precision = tf32: gfx90a"):
        read_results(str(tmp_path / "r.yaml"))
    (tmp_path / "r.yaml").write_text(_row("").replace("'dtype_a': 'fp32'", "'dtype_a': 'int8'"))
    with pytest.raises(ResultsError, match="line 1"):
        read_results(str(tmp_path / "r.yaml"))


def _row(arch: str) -> str:
    tile = "'BLOCK_SIZE_M': 16, 'BLOCK_SIZE_N': 64, 'BLOCK_SIZE_K': 64, 'family': 'tiled', 'time_us': 5.0"
    more = f", {tile}" + (f", 'arch': '{arch}'" if arch else "")
    return size_line(TF32).replace("}\n", f"{more}}}\n")


def test_a_reader_that_changes_a_problem_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table can fail: a reader that loses a field, and one that refuses."""
    files = Files("sm_90", [TF32], tmp_path)
    lossy = lambda files: [replace(problem, own=()) for problem in files.problems]  # noqa: E731
    lossy.__name__ = "lossy"
    monkeypatch.setattr("benchmarks.checking.round_trips.READERS", (lossy,))
    assert changed(files).keys() == {"lossy"}

    def refusing(files: Files) -> Collection[GemmProblem]:
        raise InputError("no")

    monkeypatch.setattr("benchmarks.checking.round_trips.READERS", (refusing,))
    assert changed(files) == {"refusing": "refused: no"}
