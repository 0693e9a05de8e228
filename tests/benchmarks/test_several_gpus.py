"""What is read from the command's output, and the scaling."""

from __future__ import annotations

from pathlib import Path

import several_gpus
from several_gpus import Run

from genkern.gemm_entry import GemmDefaults
from genkern.problem import GemmProblem
from genkern.sizes import read_sizes

OUTPUT = """note: something
16x4096x4096: 3.14 us, 170.9 TFLOPS, 1.020x vendor (cudagraph), gpu check ok: tiled_BM16
32x4096x4096: no winner: no candidate could be measured (--profile_file says why)
64x4096x4096: 3.50 us, 600.0 TFLOPS (cudagraph): tiled_BM64

candidates: measured 1,024
binaries: 1,200 compiled, 3 from the cache, 0 refused
"""


def test_reads_sizes_and_what_was_compiled() -> None:
    """A size counts when it has a winner; the number compiled is read with its commas."""
    assert several_gpus.read_run(2, OUTPUT.splitlines(), 30.0, 1) == Run(2, 2, 30.0, 1200, 1)
    assert several_gpus.read_run(1, [], 30.0, 2).compiled is None


def test_scaling_is_of_the_first_run() -> None:
    """Sizes per minute and how many times those of the first run that tuned any."""
    text = several_gpus.report([Run(1, 6, 60.0, 0, 0), Run(2, 6, 31.0, 0, 0)])
    assert "| 1 | 6 | 60.0 | 6.00 | 1.00x | 0 | 0 |" in text
    assert "| 2 | 6 | 31.0 | 11.61 | 1.94x | 0 | 0 |" in text
    assert "| 1 | 0 | 5.0 | 0.00 | - | ? | 2 |" in several_gpus.report([Run(1, 0, 5.0, None, 2)])


def test_size_list_can_be_read(tmp_path: Path) -> None:
    """genkern reads the very problems from the list that is made for it, whatever their types and layout."""
    problems = (
        GemmProblem(16, 32, 64),
        GemmProblem(16, 32, 64, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16", True, False, True),
        GemmProblem(16, 32, 64, dtype_a="fp16", dtype_b="fp16", dtype_c="fp32", row_major_a=False, row_major_b=True),
        GemmProblem(16, 32, 64, activation="gelu"),
    )
    path = tmp_path / "sizes.yaml"
    path.write_text(several_gpus.size_list(problems))
    assert read_sizes(str(path), GemmDefaults(), "sm_90").problems == problems
