"""The kernel for sm_100 computes, to the bit, on a machine that knows of such a GPU what the PTX ISA says.

No GPU of that kind has run it. What is run here is the assembly that CuTe DSL makes of it, with copies, products and
signals that take as long as chance decides; the machine in turn is judged by faults that it must find.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cute_binary import Compiled, compiled
from cute_stand_in import needs_dsl
from ptx_gemm import computed, shows

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.legality import legal
from genkern.templates.cute.compiled_only.protocol_sm100 import Sharing

pytestmark = needs_dsl
FP8 = {"op": "a8w8", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e5m2"}
TOKENS = {**FP8, "own": (("scales", "per_token"),)}
HALF = {"dtype_a": "fp16", "dtype_b": "fp16", "dtype_c": "fp16"}
TURNED = {"row_major_a": False, "row_major_b": True}


def problem(m: int, n: int, k: int, **fields: object) -> GemmProblem:
    return GemmProblem(m, n, k, **fields)  # type: ignore[arg-type]


# Sizes off every tile; fewer programs than tiles; rings shorter than K; odd numbers of parts of C.
CASES = [
    (problem(200, 160, 136, bias=True, activation="relu"), "cute_tcgen05_BM64_BN96_BK64_GM2_SK1_nW4_nS3"),
    (problem(304, 160, 136, **HALF, **TURNED), "cute_tcgen05_BM128_BN64_BK64_GM2_SK1_nW4_nS3_cl2x2"),
    # A ring so short that a program might be a round ahead of one that it shares nothing with.
    (problem(43, 304, 560), "cute_tcgen05_BM64_BN96_BK64_GM1_SK1_nW4_nS2_cl2x2"),
    (problem(300, 161, 136, **HALF), "cute_tcgen05_BM128_BN64_BK64_GM2_SK1_nW4_nS3_cl1x2_direct"),
    (problem(300, 168, 136, dtype_c="fp32"), "cute_tcgen05_BM64_BN32_BK64_GM2_SK1_nW4_nS3_cl1x4"),
    (problem(300, 160, 136), "cute_tcgen05_BM128_BN64_BK64_GM2_SK1_nW4_nS3_cl2x1_cta2"),
    (problem(520, 200, 200, row_major_a=False), "cute_tcgen05_BM256_BN96_BK64_GM1_SK1_nW4_nS4_cl2x2_cta2"),
    (problem(264, 272, 272, **FP8, row_major_b=True), "cute_tcgen05_BM256_BN256_BK128_GM2_SK1_nW4_nS2_cl4x1_cta2"),
    (
        problem(200, 200, 272, **TOKENS, bias=True, activation="relu"),
        "cute_tcgen05_BM128_BN64_BK128_GM2_SK1_nW4_nS3_cl4x2_cta2_direct",
    ),
]


def made_of(of: GemmProblem, name: str, folder: Path) -> tuple[Config, Compiled]:
    config = Config.parse(name)
    assert not legal(of, config, gpu_for_arch("sm_100"))
    return config, compiled(of, config, "sm_100", folder)


@pytest.mark.parametrize(("of", "name"), CASES, ids=[name for _, name in CASES])
def test_the_kernel_computes(of: GemmProblem, name: str, tmp_path: Path) -> None:
    """Every element of C, and nothing besides; nobody waits for ever, and nobody leaves too early."""
    config, made = made_of(of, name, tmp_path)
    for seed in range(2):
        got, wanted = computed(of, config, made, seed=seed, units=4)
        np.testing.assert_array_equal(got, wanted)


# Two clusters of two pairs, several tiles for each: whatever is left out shows in one run or in the next.
JUDGED = CASES[6]


def without_wait(number: int) -> Callable[[str], str]:
    """The text without its wait for a barrier of this number, in the order of the text."""

    def edit(text: str) -> str:
        waits = list(re.finditer(r"mbarrier\.try_wait\.parity[^;]*;", text))
        assert len(waits) == 5
        return text[: waits[number].start()] + "mov.pred P1, -1;" + text[waits[number].end() :]

    return edit


FAULTS: dict[str, Callable[[str], str]] = {
    "C is brought before it is made": without_wait(0),
    "a product overwrites sums that nobody has read": without_wait(1),
    "a product reads a stage before it is full": without_wait(2),
    "a stage is filled before it is empty": without_wait(3),
    "programs leave while others signal them": without_wait(4),
    "a part is written over one on its way": lambda text: re.sub(r"(wait_group\.read\s+)0", r"\g<1>1", text, count=1),
    "the copy engine reads what is not there yet": lambda text: text.replace("fence.proxy.async.shared::cta;", ""),
    "sums are used before they are loaded": lambda text: text.replace("tcgen05.wait::ld.sync.aligned;", "", 1),
    "half of the bytes are waited for": lambda text: re.sub(
        r"mov\.b32 (\s*%r\d+), (\d+);(\s+mbarrier\.(?:arrive\.)?expect_tx)",
        lambda found: f"mov.b32 {found[1]}, {int(found[2]) // 2};{found[3]}",
        text,
    ),
}


def is_found(of: GemmProblem, config: Config, made: Compiled) -> bool:
    return shows(lambda seed: computed(of, config, made, seed=seed, units=4), 30)


def test_faults_of_the_text_are_found(tmp_path: Path) -> None:
    """Each wait, fence and count that the argument in protocol_sm100 rests on is missed where it is left out."""
    config, made = made_of(*JUDGED, tmp_path)
    for fault, edit in FAULTS.items():
        text = edit(made.ptx)
        assert text != made.ptx, fault
        assert is_found(JUDGED[0], config, made._replace(ptx=text)), fault


# Four pairs: each shares A with another and B with another.
SHARED = (problem(600, 128, 136), "cute_tcgen05_BM256_BN64_BK64_GM1_SK1_nW4_nS2_cl4x2_cta2")


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("readers", property(lambda self: self.pairs_m + self.cluster_n)),
        ("readers", property(lambda self: self.pairs_m + self.cluster_n - 2)),
        ("arrivals", property(lambda self: self.ctas * self.readers - 1)),
        ("with_same_a", lambda self, pair_m, half: 1 << (pair_m * self.ctas + half)),
        ("with_same_b", lambda self, rank_n, half: 1 << (rank_n * self.cluster_m)),
        ("loaders", lambda self, pair_m, rank_n: self.pair_of(pair_m * self.ctas + rank_n * self.cluster_m)),
        ("pair_of", lambda self, leader: 1 << leader),
    ],
)
def test_faults_of_the_protocol_are_found(
    what: str, changed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told, and how many must say so: each of these is missed as well."""
    monkeypatch.setattr(Sharing, what, changed)
    config, made = made_of(*SHARED, tmp_path)
    assert is_found(SHARED[0], config, made)
