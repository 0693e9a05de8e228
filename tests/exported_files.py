"""What `genkern export` writes of made-up winners, for the readers of other programs."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

from rich.console import Console
from winner_factory import winner, write_results

from genkern.cli.exporting import parse_export, run_export
from genkern.files.exchange import vllm
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
EXPERTS = ("experts", 256), ("scales", "blocks"), ("top_k", 8)


# Of sizes with scales of blocks and of experts that were tuned for no M but 64, whose file would serve prefill.
NOT_WRITTEN = 2


def exported_of(kind: str, folder: Path, results: Path) -> tuple[dict[str, dict[int, dict[str, int]]], int]:
    """What is in each file that is written of a device's shipped results, by M, and of how many sizes these are."""
    said = io.StringIO()
    run_export(parse_export(["--to", kind, "-o", str(folder), *map(str, results.glob("*.yaml"))]), Console(file=said))
    sizes = int(said.getvalue().splitlines()[-1].split()[0])
    return {
        path.name: {int(m): own for m, own in json.loads(path.read_text()).items()} for path in folder.iterdir()
    }, sizes


def speaks_of(results: Path) -> int:
    """How many rows of these results files of vLLM and SGLang are for."""
    rows = [row for path in results.glob("*.yaml") for row in read_results(str(path))]
    return len({row.problem for row in rows if not vllm.obstacle(row.problem)})


def exported(kind: str, folder: Path) -> dict[str, str]:
    """The files by name: of one N and K, and of experts, for M = 1, 64 and 4096."""
    rows = []
    for number, m in enumerate((1, 64, 4096)):
        problems = [GemmProblem(m, 4096, 7168, "a8w8_blockscale", *FP8)]
        of_gate = tuple(sorted((*EXPERTS, ("stage", "gate_up"))))
        problems.append(GemmProblem(m, 256, 7168, "fused_moe", *FP8, activation="silu", own=of_gate))
        problems.append(GemmProblem(m, 7168, 256, "fused_moe", *FP8, own=EXPERTS))
        config = Config("tiled", 16 << number, 64, 128, 1 + number, 1, 4, 3)
        more = {"arch": "sm_90", "device": "NVIDIA H200", "time_source": "cudagraph"}
        rows += [winner(m, 5.0, config, problem=problem, **more) for problem in problems]
    results = folder.parent / "results.yaml"
    write_results(results, rows)
    run_export(parse_export(["--to", kind, "-o", str(folder), str(results)]), Console(file=io.StringIO()))
    return {name: (folder / name).read_text() for name in sorted(os.listdir(folder))}
