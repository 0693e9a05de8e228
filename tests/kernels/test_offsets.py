"""Tests of genkern.kernels.families.index_width: what is past 32 bits is counted in 64, or illegal."""

from __future__ import annotations

import re

import pytest
from small_gemms import taking

from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.families.index_width import counted_limit, wide_operands
from genkern.kernels.generate import generate

FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
MOE = ("experts", 64), ("top_k", 8)


@pytest.mark.parametrize(
    ("words", "refused", "taken"),
    [
        # Scales of blocks: 2^31 of them are those of 2^35 elements, 32 GiB, where 16 have one in common.
        *(
            (
                f"scale_{letter} has",
                GemmProblem(*size, "a8w8_blockscale", *FP8, own=own),
                GemmProblem(*size[:2], size[2] - 16, "a8w8_blockscale", *FP8, own=own),
            )
            for letter, size, own in (
                ("a", (2**20, 64, 2**15), (("block_k", 16),)),
                ("b", (64, 2**20, 2**15), (("block_k", 16), ("block_n", 1))),
            )
        ),
        (
            "stored together",
            GemmProblem(1, 16, 2**27, "a8w8_bpreshuffle", *FP8),
            GemmProblem(1, 16, 2**27 - 128, "a8w8_bpreshuffle", *FP8),
        ),
    ],
)
def test_what_nobody_counts_in_64_bits_is_illegal(words: str, refused: GemmProblem, taken: GemmProblem) -> None:
    """Whatever the family; one step below it is not."""
    for uses_tma in (False, True):
        assert words in counted_limit(refused, uses_tma)
        assert counted_limit(taken, uses_tma) == ""


def test_weights_of_groups_are_one_matrix_to_tma() -> None:
    """Whose rows have 32 bits; pointers have a step of 64 from group to group."""
    many = GemmProblem(64, 2**21, 64, "grouped_gemm", own=(("groups", 1024),))
    assert "weights of all groups" in counted_limit(many, True)
    assert counted_limit(many, False) == ""
    fewer = GemmProblem(64, 2**21 - 1, 64, "grouped_gemm", own=(("groups", 1024),))
    assert counted_limit(fewer, True) == ""
    gates = GemmProblem(64, 2**20, 64, "fused_moe", activation="silu", own=(("experts", 1024), ("stage", "gate_up")))
    assert "weights of all groups" in counted_limit(gates, True)


# Each matrix with 2^31 elements, and formats whose operands lie otherwise.
WIDE = [
    GemmProblem(2**16, 2**16, 64, bias=True),
    GemmProblem(2**16, 2**16, 64, row_major_b=True),
    # An output of 2^32 elements for which a Triton template of PyTorch 2.11 was wrong (pytorch/pytorch#189054).
    GemmProblem(2**15, 2**17, 1024),
    GemmProblem(2**16, 64, 2**15),
    GemmProblem(2**16, 64, 2**15, row_major_a=False, row_major_b=True),
    GemmProblem(16, 2**17, 2**14),
    GemmProblem(16, 2**17, 2**14, row_major_b=True),
    GemmProblem(1, 2**17, 2**14),
    GemmProblem(16, 2**17, 2**14, "a16w4", "bf16", "int8", "bf16"),
    GemmProblem(2**16, 2**16, 128, "a8w8_blockscale", *FP8),
    GemmProblem(2**17, 2**14, 64, "grouped_gemm", own=(("groups", 64),)),
    GemmProblem(2**15, 2**13, 64, "fused_moe", activation="silu", own=(*MOE, ("stage", "gate_up"))),
    GemmProblem(2**15, 2**13, 64, "fused_moe", own=MOE),
]
_PRODUCT = re.compile(r"\* *\(?ld([abc])\b")


@pytest.mark.parametrize("problem", WIDE, ids=lambda problem: problem.name)
def test_wide_matrices_are_addressed_in_64_bits(problem: GemmProblem) -> None:
    """In each kernel of each family that takes them: whatever is multiplied by a leading dimension has 64 bits."""
    configs = taking(problem)
    assert len(configs) >= 3
    wide = wide_operands(problem, max(config.SPLIT_K for config in configs))
    found = 0
    for function in generate(problem, configs, "sm_90").kernels_text.split("\ndef ")[1:]:
        lines = function.splitlines()
        # These make their rows of what has 64 bits before.
        made_wide = function.startswith(("reduce_splits(", "sum_slots(")) and "int64" in function
        for line in lines:
            for match in _PRODUCT.finditer(line):
                if wide[f"wide_{match[1]}"]:
                    assert made_wide or "int64" in line, line
                    found += 1
            if "partial_ptr" in line and "* N" in line and wide["wide_slots"]:
                assert "int64" in line, line
                found += 1
    assert found


def test_the_rows_of_slots_are_counted_too() -> None:
    """A mixture's M tokens have top_k rows each, which is what a kernel leaves before they are added up."""
    down = GemmProblem(2**15, 2**13, 64, "fused_moe", own=MOE)
    assert not wide_operands(down, 1)["wide_c"]
    assert wide_operands(down, 1)["wide_slots"]
    assert INT32 == 2**15 * 8 * 2**13
    assert not wide_operands(GemmProblem(2**15 - 1, 2**13, 64, "fused_moe", own=MOE), 1)["wide_slots"]
