"""The golden modules: what a reader of a generated file gets. `python tests/golden/update.py` rewrites them.

Three whole modules, and the kernels of one config of every family.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import CUTE, FAMILIES
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
    "promoted_sm_90.py.expected": (
        GemmProblem(300, 2112, 7168, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn", "bf16", bias=True),
        [
            Config("warp_specialized", 128, 112, 128, 4, 1, 8, 5),
            Config("warp_specialized_swapped", 40, 64, 128, 1, 2, 4, 8),
        ],
        "sm_90",
    ),
}


# Overhanging tiles, and where a family has them splits.
_OF_FAMILIES = {
    "gemv": (1, Config("gemv", 1, 16, 256)),
    "skinny": (7, Config("skinny", 4, 32, 128, 1, 2)),
    "skinny_dot": (7, Config("skinny_dot", 8, 32, 512, 1, 1, 4, 1)),
    "warp_specialized": (104, Config("warp_specialized", 64, 112, 64, 3, 2, 4, 6)),
    "warp_specialized_swapped": (104, Config("warp_specialized_swapped", 48, 64, 64, 3, 2, 4, 6)),
    "warp_specialized_2x1": (300, Config("warp_specialized_2x1", 64, 112, 64, 3, 1, 4, 6)),
    "warp_specialized_1x2": (104, Config("warp_specialized_1x2", 64, 48, 64, 1, 1, 4, 6)),
    "warp_specialized_swapped_2x1": (104, Config("warp_specialized_swapped_2x1", 48, 64, 64, 1, 1, 4, 6)),
    "warp_specialized_swapped_1x2": (104, Config("warp_specialized_swapped_1x2", 112, 64, 64, 1, 1, 4, 6)),
    "realigned_split_tma": (104, Config("realigned_split_tma", 64, 64, 64, 3, 4, 4, 4)),
    "realigned_warp_specialized": (104, Config("realigned_warp_specialized", 64, 112, 64, 3, 1, 4, 6)),
    "realigned_warp_specialized_swapped": (104, Config("realigned_warp_specialized_swapped", 48, 64, 64, 3, 1, 4, 6)),
    **{
        f"warp_specialized_swapped_cluster{size}": (
            48,
            Config(f"warp_specialized_swapped_cluster{size}", 48, 64, 64, 1, 1, 4, 6),
        )
        for size in (2, 3, 4, 5, 8)
    },
}


def kernels_of_family(name: str) -> str:
    """The kernels of one config of a family, for sm_90, with bias and activation."""
    default = (104, Config(name, 32, 32, 64, 3, 3 if FAMILIES[name].splits_k else 1, 4, 3))
    rows, config = _OF_FAMILIES.get(name, default)
    arch = "sm_100" if name == "persistent_tma_specialized" else "sm_90"
    problem = GemmProblem(rows, 200, 520, bias=True, activation="relu")
    if FAMILIES[name].realigns:
        problem = replace(problem, K=523)
    if name == "skinny_dot":
        problem = replace(problem, op="a16w4", dtype_b="int8", K=544)
    return generate(problem, [config], arch).kernels_text


# Kernels in CuTe DSL are no part of generated modules.
FAMILY_CASES = {f"{name}.py.expected": name for name in FAMILIES if name not in CUTE}


def rendered(name: str) -> str:
    """The text that generation gives for a case now."""
    if name in FAMILY_CASES:
        return kernels_of_family(FAMILY_CASES[name])
    problem, configs, arch = CASES[name]
    return generate(problem, configs, arch).text


if __name__ == "__main__":
    for name in (*CASES, *FAMILY_CASES):
        (FOLDER / name).write_text(rendered(name), encoding="utf-8")
        print(f"wrote {FOLDER / name}")
