"""Tests of benchmarks/serving/start_up.py: what its processes print, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from long_tests import long_only
from small_bundle import row
from small_gemms import TILED

from benchmarks.common.rounds import Limit
from benchmarks.serving.start_up import IMPORTS, first_calls, key_line, median_s, own_environ, packed, report, run
from genkern.errors import ResultsError
from genkern.gemm.problem import GemmProblem
from genkern.packing.rows import rows_of

FOREVER = Limit(float("inf"))


def test_medians_are_over_all_processes_but_the_first(tmp_path: Path) -> None:
    """Which finds nothing in the disk's cache."""
    program = f"""
import json, pathlib
log = pathlib.Path({str(tmp_path / "log")!r})
log.write_text(log.read_text() + "x" if log.exists() else "x")
print("a line of somebody's")
print(json.dumps({{"a": {{1: 100.0, 2: 1.0, 3: 2.0, 4: 9.0}}[len(log.read_text())]}}))
"""
    assert median_s({"a": program}, 3, own_environ(), FOREVER) == {"a": 2.0}
    with pytest.raises(ResultsError, match="no such thing"):
        median_s({"a": "raise SystemExit('no such thing')"}, 1, own_environ(), FOREVER)


def test_nothing_is_begun_behind_the_limit() -> None:
    """A slow host ends in time, and says what it knows: nothing of what ran for the disk's cache alone."""
    assert median_s({"a": "raise SystemExit('never begun')"}, 3, own_environ(), Limit(0.0)) == {}


def test_genkern_imports_without_torch() -> None:
    """The program that times it says so itself."""
    found = median_s({"alone": IMPORTS["alone"]}, 1, own_environ(), FOREVER)
    assert 0 < found["genkern without torch"] < 30


def test_first_calls_are_of_the_winners_size() -> None:
    """Both are Python, and of the same operands."""
    (winner,) = (each.winner for each in rows_of([row(GemmProblem(8, 96, 160), TILED)], None, False).packed)
    programs = first_calls(winner)
    for program in programs.values():
        compile(program, "first call", "exec")
        assert "randn(8, 160," in program
        assert "randn(96, 160," in program
    assert "tuned_gemm.gemm_a16w16(x, weight)" in programs["dispatched"]
    assert "genkern" not in programs["torch.mm"]


@long_only("packs in processes of their own")
def test_packing_is_timed_cold_and_warm(tmp_path: Path) -> None:
    """The bundle is what genkern pack writes."""
    results = tmp_path / "results.yaml"
    results.write_text(
        "- {'M': 1, 'N': 256, 'K': 512, 'rowMajorA': 'T', 'rowMajorB': 'N', 'BLOCK_SIZE_M': 1, 'BLOCK_SIZE_N': 1, "
        "'BLOCK_SIZE_K': 256, 'GROUP_SIZE_M': 1, 'SPLIT_K': 1, 'num_warps': 1, 'num_stages': 1, 'op': 'a16w16', "
        "'family': 'gemv', 'dtype_a': 'bf16', 'dtype_b': 'bf16', 'dtype_c': 'bf16', 'bias': false, 'time_us': 4.0, "
        "'time_source': 'cudagraph', 'check': 'gpu', 'arch': 'sm_90', 'device': 'NVIDIA H200', 'choice': 'config'}\n"
    )
    found = packed([str(results)], 1, tmp_path, tmp_path / "all.genkern")
    assert found["winners in it"] == 1
    assert found["bytes of the bundle"] == (tmp_path / "all.genkern").stat().st_size
    assert found["pack, all in the cache, s"] > 0


def test_the_figure_is_the_dispatchers() -> None:
    """Of what was measured; numbers that are whole are printed so."""
    lines = report({"dispatcher over torch": 0.25, "bytes of the bundle": 845260.0}).splitlines()
    assert "| bytes of the bundle | 845,260 |" in lines
    assert key_line({"dispatcher over torch": 0.25}) == "import_s: 0.250"
    assert key_line({}) == "import_s: -"


def test_packing_alone_starts_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an import that was timed is kept in what is printed."""
    monkeypatch.setattr("benchmarks.serving.start_up.median_s", lambda programs, *_: dict.fromkeys(programs, 0.5))
    monkeypatch.setattr("benchmarks.serving.start_up.packed", lambda *_: {"winners in it": 3.0})
    assert "0.5" not in run(["--processes", "0", "--results", "some.yaml"])
    assert "| dispatcher | 0.5000 |" in run(["--results", "some.yaml"])
