"""Winners as solutions of FlashInfer Trace: they compute what their definition says, and tell what they leave out.

The keys are those of flashinfer-bench's documents; its own models read the files in tests/engines.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import run_here
from winner_factory import winner, write_results

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

FP16 = ("fp16", "fp16", "fp16")
ON_H200 = {"arch": "sm_90", "device": "NVIDIA H200", "time_source": "cudagraph"}
TILED = Config("tiled", 16, 32, 64, 1, 1, 4, 2)
SPLIT = Config("tiled", 16, 32, 64, 1, 3, 4, 2)
CUTE = Config("cute_wgmma", 64, 64, 64, 1, 1, 4, 4)
DEFINITION = "gemm_n64_k192"
SOLUTION = f"solutions/genkern/gemm/{DEFINITION}/genkern_{DEFINITION}_nvidia_h200.json"
FILES = {f"definitions/gemm/{DEFINITION}.json", f"workloads/gemm/{DEFINITION}.jsonl", SOLUTION}


def exported(tmp_path: Path, capsys: pytest.CaptureFixture[str], *winners: Any) -> Any:
    write_results(tmp_path / "r.yaml", winners)
    return run_here(capsys, "export", tmp_path / "r.yaml", "--to", "flashinfer-trace", "-o", tmp_path / "trace")


def gemm(m: int, *types: str, **others: Any) -> GemmProblem:
    return GemmProblem(m, 64, 192, "a16w16", *(types or FP16), **others)


def test_a_solution_computes_its_definition_for_every_m(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One solution for N and K: by the winner of an M that was tuned, with its workspace, twice; by PyTorch else."""
    rows = [winner(m, 5.0, config, problem=gemm(m), **ON_H200) for m, config in ((5, TILED), (16, SPLIT))]
    done = exported(tmp_path, capsys, *rows)
    assert done.status == 0, done
    trace = tmp_path / "trace"
    assert {str(path.relative_to(trace)) for path in trace.rglob("*.json*")} == FILES
    solution = json.loads((trace / SOLUTION).read_text())
    assert (solution["definition"], solution["spec"]["target_hardware"]) == (DEFINITION, ["NVIDIA_H200"])
    for source in solution["sources"]:
        file = tmp_path / "built" / "of_genkern" / source["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source["content"])
    entry, function = solution["spec"]["entry_point"].split("::")
    definition = json.loads((trace / "definitions" / "gemm" / f"{DEFINITION}.json").read_text())
    axes = {name: (of["type"], of.get("value")) for name, of in definition["axes"].items()}
    assert axes == {"M": ("var", None), "N": ("const", 64), "K": ("const", 192)}
    (tmp_path / "built" / "reference.py").write_text(definition["reference"])
    program = f"""
import torch
from of_genkern.{Path(entry).stem} import KERNELS, {function} as solution
from reference import run as reference

assert sorted(KERNELS) == [5, 16]
generator = torch.Generator().manual_seed(0)
for m in (5, 16, 16, 7):
    A, B = (torch.randint(-3, 4, (rows, 192), generator=generator).to(torch.float16) for rows in (m, 64))
    C = torch.full((m, 64), float("nan"), dtype=torch.float16)
    solution(A, B, C)
    assert torch.equal(C, reference(A, B)), m
"""
    environment = {"PATH": "/usr/bin:/bin", "TRITON_INTERPRET": "1", "PYTHONPATH": str(tmp_path / "built")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, cwd=tmp_path, timeout=300)
    workloads = [
        json.loads(line) for line in (trace / "workloads" / "gemm" / f"{DEFINITION}.jsonl").read_text().splitlines()
    ]
    assert [each["workload"]["axes"] for each in workloads] == [{"M": 5}, {"M": 16}]
    # A time is an evaluation, and evaluations are flashinfer-bench's.
    assert all(each["evaluation"] is None for each in workloads)


def test_what_a_solution_cannot_hold_is_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernels that are not Triton's, though others were timed, sizes that the library wins, other formats."""
    fp8 = GemmProblem(16, 64, 192, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16")
    others = {
        "not a Triton kernel": winner(
            16, 5.0, CUTE, problem=GemmProblem(64, 128, 256), peer_us=((TILED.name, 9.0),), **ON_H200
        ),
        "the library is as fast": winner(16, 5.0, TILED, problem=gemm(16), choice="vendor", **ON_H200),
        "a bias": winner(16, 5.0, TILED, problem=gemm(16, bias=True), **ON_H200),
        "of a16w16 only": winner(16, 5.0, TILED, problem=fp8, **ON_H200),
        "another layout": winner(16, 5.0, TILED, problem=gemm(16, row_major_b=True), **ON_H200),
        "types other than one": winner(16, 5.0, TILED, problem=gemm(16, "fp16", "fp16", "fp32"), **ON_H200),
    }
    for reason, row in others.items():
        assert reason in exported(tmp_path, capsys, row).refusal
    assert not (tmp_path / "trace").exists()


def test_definitions_of_a_data_set_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that are there, with their workloads; one of other tensors, or two types at a time, are refused."""
    row = winner(16, 5.0, TILED, problem=gemm(16), **ON_H200)
    assert exported(tmp_path, capsys, row).status == 0
    place = tmp_path / "trace" / "definitions" / "gemm" / f"{DEFINITION}.json"
    theirs = {**json.loads(place.read_text()), "tags": ["model:llama"]}
    place.write_text(json.dumps(theirs))
    (tmp_path / "trace" / SOLUTION).unlink()
    assert exported(tmp_path, capsys, row).status == 0
    assert json.loads(place.read_text()) == theirs
    assert (tmp_path / "trace" / SOLUTION).exists()
    wide = winner(17, 5.0, TILED, problem=gemm(17, "bf16", "bf16", "bf16"), **ON_H200)
    assert "other tensors" in exported(tmp_path, capsys, wide).refusal
    assert "export each type by itself" in exported(tmp_path, capsys, row, wide).refusal
    place.write_text("[]")
    assert "other tensors" in exported(tmp_path, capsys, row).refusal
