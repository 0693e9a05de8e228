"""Tests of each format's library.py: what a call falls back on computes the format's reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from interpreted import takes
from small_gemms import TILED, make_module

from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op, library_of, op_names

torch = pytest.importorskip("torch")
_FP8, _INT8 = ("fp8e4m3fn", "fp8e4m3fn"), ("int8", "int8")
_BLOCKS = ("block_k", 32), ("block_n", 16)
_BATCH = (("batch_size", 3),)
# Of each format: types of A, B (A's where it is not said) and C, its own fields.
PROBLEMS = [
    *(("a16w16", types, ()) for types in (("bf16", "bf16"), ("fp16", "fp32"), ("fp32", "fp32"))),
    *(("a16w16", types, ()) for types in (("bf16", "fp16", "bf16"), ("fp16", "bf16", "fp32"))),
    *(("a8w8", (a, "bf16"), own) for a, _ in (_FP8, _INT8) for own in ((), (("scales", "per_token"),))),
    *(
        ("a8w8_blockscale", (a, "fp32"), own)
        for a, _ in (_FP8, _INT8)
        for own in ((), (("block_k", 32), ("block_n", 16)))
    ),
    *(("a16w8", (a, "int8", c), ()) for a, c in (("bf16", "bf16"), ("fp16", "fp16"), ("bf16", "fp32"))),
    *(("a16w4", ("bf16", "int8", "bf16"), own) for own in ((), (("group", 64),), (("weights", "mxfp4"),))),
    ("a16w4", ("fp16", "int8", "fp32"), (("scale_type", "bf16"),)),
    *(
        ("a4w4_blockscale", (a, b, c), ())
        for (a, b), c in ((_INT8, "bf16"), (("fp8e4m3fn", "int8"), "fp16"), (_FP8, "fp32"))
    ),
    ("a16w8", ("fp16", "fp8e4m3fn", "bf16"), (("scale_type", "bf16"),)),
    ("a8w8_bpreshuffle", ("fp8e4m3fn", "bf16"), (("layout", "n8k16"), ("scales", "per_token"))),
    ("a8w8_blockscale_bpreshuffle", ("int8", "fp32"), (*_BLOCKS, ("layout", "n8k16"))),
    *(("batched_a16w16", types, _BATCH) for types in (("bf16", "bf16"), ("fp16", "fp32"), ("fp32", "bf16"))),
    *(("batched_a8w8", (a, "bf16"), _BATCH) for a in ("fp8e4m3fn", "int8")),
]


@pytest.mark.parametrize(("op", "types", "own"), PROBLEMS)
@pytest.mark.parametrize("bias", [False, True])
def test_the_library_is_the_reference(
    op: str, types: tuple[str, ...], own: tuple[tuple[str, int | str], ...], bias: bool, tmp_path: Path
) -> None:
    """Within the output's rounding, with last blocks that are smaller."""
    a, *_, c = types
    bias = bias and not get_op(op).batched
    problem = GemmProblem(5, 72, 160, op, a, types[-2], c, bias=bias, own=own)
    # Some take no blocks below 64 elements along K, and others none above 32.
    config = TILED if takes(problem, TILED) else replace(TILED, BLOCK_SIZE_K=64)
    _, module = make_module(tmp_path, problem, [config], "sm_90")
    operands = module.make_operands("cpu", 1, "randn")
    library = library_of(op)
    assert library is not None
    found, wanted = library(problem, operands), module.reference(operands)
    assert (found.shape, found.dtype) == (operands["c"].shape, operands["c"].dtype)
    worst = ((found.double() - wanted.double()).norm(dim=-1) / wanted.double().norm(dim=-1)).max()
    assert worst < get_op(op).worst_row_limit(problem)


def test_every_format_has_one() -> None:
    """So that a call of any of genkern's formats is served."""
    assert all(library_of(name) is not None for name in op_names())
