"""Exported solutions as flashinfer-bench's own models and builder read them (make test-engines)."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here
from winner_factory import winner, write_results

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

CONFIGS = (Config("tiled", 16, 32, 64, 1, 3, 4, 2), Config("warp_specialized", 128, 128, 64, 1, 1, 8, 4))


def test_flashinfer_bench_reads_and_builds_the_solutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is a data set: its pydantic models accept all of it, and its builder finds the entry point."""
    pytest.importorskip("flashinfer_bench")
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    from flashinfer_bench.compile.builders import TritonBuilder
    from flashinfer_bench.data import TraceSet

    more = {"arch": "sm_90", "device": "NVIDIA H200", "time_source": "cudagraph"}
    rows = [
        winner(m, 5.0, config, problem=GemmProblem(m, 256, 512, "a16w16", "bf16", "bf16", "bf16"), **more)
        for m, config in zip((16, 256), CONFIGS, strict=True)
    ]
    write_results(tmp_path / "r.yaml", rows)
    folder = tmp_path / "trace"
    done = run_here(capsys, "export", tmp_path / "r.yaml", "--to", "flashinfer-trace", "-o", folder)
    assert done.status == 0, done
    found = TraceSet.from_path(str(folder))
    (definition,) = found.definitions.values()
    (solution,) = found.solutions[definition.name]
    assert [each.workload.axes for each in found.workloads[definition.name]] == [{"M": 16}, {"M": 256}]
    assert TritonBuilder().build(definition, solution).metadata.destination_passing_style
