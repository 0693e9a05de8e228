"""Operands and scales that the dense kernels in CuTe DSL take, and the form that their families share."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from genkern.gemm.columns import Column, Refusals, negated, within
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.call import Call
from genkern.kernels.contract.cost import Cost, TileWave
from genkern.kernels.contract.expression import Value
from genkern.kernels.contract.gluon_tile import WIDEST
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.sum_order import SumOrder
from genkern.kernels.contract.symbols import BLOCK_SIZE_K, BLOCK_SIZE_M, BLOCK_SIZE_N, NUM_STAGES
from genkern.kernels.contract.traits import KernelTraits, Refuses, TileLimits, any_config
from genkern.kernels.contract.variant import Variant
from genkern.ops.op import get_op

# Scaling by blocks: A has a scale for each row and 128 elements of K, B for each 128 columns and 128 elements of K.
BLOCKS = "blocks"
_BLOCK = 128


@lru_cache(maxsize=64)
def scales_of(problem: GemmProblem) -> str | None:
    """Return how the product is scaled, or None if the kernels cannot apply its scales.

    "none": no scales. "whole": one scale of A and one of B. "each": one scale per row and per column. BLOCKS: scales of
    blocks.
    """
    op = get_op(problem.op)
    if steps := op.step_operands(problem):
        return BLOCKS if op.promoted(problem) and _are_blocks(problem, steps) else None
    operands: tuple[Operand, ...] = op.finish_operands(problem)
    # In a batch each product has scales of its own.
    scales = {operand.scales: operand.shape[-2:] for operand in operands if operand.role == "scale"}
    if not scales:
        return "none"
    found = {(("a", (1,)), ("b", (1,))): "whole", (("a", (problem.M, 1)), ("b", (1, problem.N))): "each"}
    return found.get(tuple(sorted(scales.items())))  # type: ignore[arg-type]


def _are_blocks(problem: GemmProblem, steps: tuple[Operand, ...]) -> bool:
    """Whether exactly these step operands scale a product by BLOCKS, in the order and layout that the kernel reads."""
    along_n, along_k = -(-problem.N // _BLOCK), -(-problem.K // _BLOCK)
    wanted = [("a", (problem.M, along_k), "fp32", False), ("b", (along_n, along_k), "fp32", True)]
    found = [(each.scales, each.shape, each.dtype, each.row_major) for each in steps]
    finish = get_op(problem.op).finish_operands(problem)
    return found == wanted and all(each.role == "bias" for each in finish)


def operands_limit(problem: GemmProblem) -> str:
    """Return why the kernels cannot multiply the types of A and B, or ""."""
    a, b = DTYPES[problem.dtype_a], DTYPES[problem.dtype_b]
    if not (a.cutlass and b.cutlass and a.bits == b.bits <= 16):
        return "this family multiplies bf16, fp16 or fp8 operands"
    if problem.dtype_a != problem.dtype_b and DTYPES[problem.dtype_a].size_bytes > 1:
        return "an instruction of this family multiplies operands of one type"
    return ""


def finish_limit(problem: GemmProblem) -> str:
    """Return why the kernels cannot compute the type of C or the epilogue, or ""."""
    if not DTYPES[problem.dtype_c].cutlass or DTYPES[problem.dtype_c].bits == 8:
        return "this family writes bf16, fp16 or fp32"
    if not get_op(problem.op).plain_finish or scales_of(problem) is None:
        return "this family scales by tensor, row and column, or 1x128 and 128x128 blocks, before bias and activation"
    return ""


def product_constants(problem: GemmProblem, variant: Variant) -> dict[str, Value | str]:
    """Return the compile-time constants of a kernel, by their names in `Dense` in templates/cute."""
    return {
        "dtype_a": problem.dtype_a,
        "dtype_b": problem.dtype_b,
        "dtype_c": problem.dtype_c,
        "k_major_a": int(problem.row_major_a),
        "k_major_b": int(not problem.row_major_b),
        "scales": scales_of(problem) or "none",
        "bias": int(problem.bias),
        "activation": problem.activation,
        "block_m": BLOCK_SIZE_M,
        "block_n": BLOCK_SIZE_N,
        "block_k": BLOCK_SIZE_K,
        "stages": NUM_STAGES,
        "cluster_m": variant.down,
        "cluster_n": variant.across,
    }


def dense_form(
    stem: str,
    variant: Callable[[GemmProblem, Config], Variant],
    call: Callable[[Product, Variant], Call],
    tile_wave: TileWave,
    *,
    needs: tuple[str, ...],
    takes: Callable[[GemmProblem, Gpu | None], str],
    legal: Refuses,
    stages: Refuses,
    sums: Callable[[GemmProblem, Config, str], SumOrder | None],
    widest: int = WIDEST,
    height_step: int = 0,
    block_m: tuple[int, int],
    helper_warps: int,
    promotes: bool = False,
    batches: bool = False,
    shares: Refuses = any_config,
    splits_k: bool = False,
) -> KernelTraits:
    """Return a form that loads by TMA and whose clusters walk over C.

    `block_m` is the smallest and the largest BLOCK_SIZE_M. With `splits_k`, a second kernel adds up the splits of K.
    """
    return KernelTraits(
        stem,
        variant,
        call,
        takes=takes,
        legal=legal,
        stages=stages,
        shares=shares,
        sums=sums,
        cost=Cost(tile_wave=tile_wave),
        sides=TileLimits(
            block_m[0], block_m[1], width_step=tile_wave.width_step, widest=widest, height_step=height_step
        ),
        reads="promoted" if promotes else "",
        uses_tma=True,
        needs=needs,
        stores_tma=tile_wave.tma_store,
        splits_k=splits_k,
        split_apart=splits_k,
        interpreted=False,
        helper_warps=helper_warps,
        swapped=tile_wave.swapped,
        cluster=(tile_wave.tiles_m, tile_wave.tiles_n),
        batches=batches,
    )


def ring_limit(num_stages: Column, most: int, shared_bytes: Column, gpu: Gpu | None) -> Refusals:
    """Refuse rings that have not from 2 to `most` stages, or whose program takes too much shared memory."""
    yield (
        negated(within(2, num_stages, most)),
        f"a ring needs a stage to fill besides the one that is read, so num_stages is from 2 to {most}",
    )
    if gpu is not None:
        yield (
            shared_bytes > gpu.shared_bytes_per_block,
            f"stages and parts of C take more than the {gpu.shared_bytes_per_block:,} bytes of shared memory",
        )
