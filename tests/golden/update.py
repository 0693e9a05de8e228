"""The golden modules: what a reader of a generated file gets. `python tests/golden/update.py` rewrites them."""

from __future__ import annotations

from pathlib import Path

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate

FOLDER = Path(__file__).parent
# Between them: masked and unmasked kernels, split-K with its reduction, TMA, AMD's fields, scales and bias.
CASES = {
    "a16w16_gfx942.py.expected": (
        GemmProblem(17, 512, 4097),
        [
            Config("tiled", 16, 64, 64, 1, 1, 4, 2, 0, 16, 2),
            Config("tiled", 16, 64, 64, 1, 8, 4, 2, 0, 16, 2),
            Config("tiled", 32, 128, 64, 4, 8, 4, 2, 2, 32, 1),
        ],
        "gfx942",
    ),
    "a8w8_sm_90.py.expected": (
        GemmProblem(256, 512, 4096, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16", bias=True),
        [Config("tiled", 128, 128, 64, 8, 1, 4, 3), Config("persistent_tma", 128, 256, 64, 8, 1, 8, 3)],
        "sm_90",
    ),
}


def rendered(name: str) -> str:
    """The text that generation gives for a case now."""
    problem, configs, arch = CASES[name]
    return generate(problem, configs, arch).text


if __name__ == "__main__":
    for name in CASES:
        (FOLDER / name).write_text(rendered(name), encoding="utf-8")
        print(f"wrote {FOLDER / name}")
