"""The golden texts: what a reader of a generated file gets. `python tests/golden/update.py` rewrites them.

One for each template: the definitions of one config's kernels, but for those that a golden text before it in this list
has. So each definition stands in one file, once. What variants of a template change (masks, splits, sides, clusters,
layouts) is asserted by tests/kernels/test_kernel_variants.py. The first is a whole module, with its table of configs
and what launches them.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent
# As pytest has it, for `python tests/golden/update.py`.
sys.path[:0] = [] if str(FOLDER.parent) in sys.path else [str(FOLDER.parent)]

from kernel_text import definitions  # noqa: E402

from genkern.gemm.config import Config  # noqa: E402
from genkern.gemm.problem import GemmProblem  # noqa: E402
from genkern.kernels.generate import generate  # noqa: E402

SUFFIX = ".py.expected"
# Tiles that overhang, an activation and a bias.
_USUAL = GemmProblem(104, 200, 520, bias=True, activation="relu")
_SCALED = GemmProblem(256, 512, 4096, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16", bias=True)
_FEW = {"N": 200, "K": 520, "bias": True, "activation": "relu"}
_BLOCK_SCALED = GemmProblem(300, 2112, 7168, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn", "bf16", bias=True)
# By name: the problem, its configs and the architecture.
CASES: dict[str, tuple[GemmProblem, tuple[str, ...], str]] = {
    "module": (
        GemmProblem(17, 512, 4097),
        (
            "tiled_BM16_BN64_BK64_GM1_SK1_nW4_nS2_EU0_mfma16_kP2_schednone",
            "tiled_BM16_BN64_BK64_GM1_SK8_nW4_nS2_EU0_mfma16_kP2_schednone",
            "tiled_BM32_BN128_BK64_GM4_SK8_nW4_nS2_EU2_mfma32_kP1_schednone",
        ),
        "gfx942",
    ),
    "tiled": (_USUAL, ("tiled_BM32_BN32_BK64_GM3_SK3_nW4_nS3",), "sm_90"),
    "tiled_scaled": (_SCALED, ("tiled_BM128_BN128_BK64_GM8_SK1_nW4_nS3",), "sm_90"),
    "tiled_semaphore": (_USUAL, ("tiled_BM32_BN32_BK64_GM3_SK3_nW4_nS3_semaphore",), "sm_90"),
    "tiled_swapped": (_USUAL, ("tiled_BM32_BN32_BK64_GM3_SK3_nW4_nS3_semaphore_swapped",), "sm_90"),
    "tiled_tma": (_USUAL, ("tiled_tma_BM32_BN32_BK64_GM3_SK3_nW4_nS3",), "sm_90"),
    "tiled_tma_split": (_USUAL, ("tiled_tma_BM32_BN32_BK64_GM3_SK3_nW4_nS3_kernel",), "sm_90"),
    "persistent_tma": (_USUAL, ("persistent_tma_BM32_BN32_BK64_GM3_SK1_nW4_nS3",), "sm_90"),
    "persistent_tma_scaled": (_SCALED, ("persistent_tma_BM128_BN256_BK64_GM8_SK1_nW8_nS3",), "sm_90"),
    "gemv": (GemmProblem(1, **_FEW), ("gemv_BM1_BN16_BK256_GM1_SK1_nW4_nS2",), "sm_90"),
    "skinny": (GemmProblem(7, **_FEW), ("skinny_BM4_BN32_BK128_GM1_SK2_nW4_nS2",), "sm_90"),
    "skinny_dot": (
        GemmProblem(7, 200, 544, "a16w4", dtype_b="int8", bias=True, activation="relu"),
        ("skinny_dot_BM8_BN32_BK512_GM1_SK1_nW4_nS1",),
        "sm_90",
    ),
    "warp_specialized": (_USUAL, ("warp_specialized_BM64_BN112_BK64_GM3_SK2_nW4_nS6",), "sm_90"),
    "clusters_along_k": (
        GemmProblem(48, **_FEW),
        ("warp_specialized_BM48_BN64_BK64_GM1_SK1_nW4_nS6_ck2_swapped",),
        "sm_90",
    ),
    "clusters_of_tiles": (
        GemmProblem(300, **_FEW),
        ("warp_specialized_BM64_BN112_BK64_GM3_SK1_nW4_nS6_cl2x1",),
        "sm_90",
    ),
    "block_scales": (
        _BLOCK_SCALED,
        (
            "warp_specialized_BM128_BN112_BK128_GM4_SK1_nW8_nS5",
            "warp_specialized_BM40_BN64_BK128_GM1_SK2_nW4_nS8_swapped",
        ),
        "sm_90",
    ),
    "realigned": (
        GemmProblem(104, 200, 523, bias=True, activation="relu"),
        ("tiled_tma_BM32_BN32_BK64_GM3_SK1_nW4_nS3_realigned",),
        "sm_90",
    ),
}


def path_of(name: str) -> Path:
    """The file of a case."""
    return FOLDER / f"{name}{SUFFIX}"


@lru_cache(maxsize=len(CASES))
def _definitions(name: str) -> dict[str, str]:
    problem, configs, arch = CASES[name]
    return definitions(generate(problem, [Config.parse(config) for config in configs], arch).kernels_text)


def rendered(name: str) -> str:
    """The text that generation gives for a case now."""
    problem, configs, arch = CASES[name]
    if name == next(iter(CASES)):
        return generate(problem, [Config.parse(config) for config in configs], arch).text
    names = list(CASES)
    before = {text for other in names[: names.index(name)] for text in _definitions(other).values()}
    own = [text for text in _definitions(name).values() if text not in before]
    return "\n\n\n".join([f"# {problem.size} {problem.op}, {arch}: {', '.join(configs)}", *own]) + "\n"


if __name__ == "__main__":
    for old in FOLDER.glob(f"*{SUFFIX}"):
        old.unlink()
    for case in CASES:
        path_of(case).write_text(rendered(case), encoding="utf-8")
        print(f"wrote {path_of(case)}")
