"""What `genkern export` writes of made-up winners, for the readers of other programs."""

from __future__ import annotations

import io
import os
from pathlib import Path

from made_winners import winner, write_results
from rich.console import Console

from genkern.command.exchange.exporting import parse_export, run_export
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
EXPERTS = ("experts", 256), ("scales", "blocks"), ("top_k", 8)


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
