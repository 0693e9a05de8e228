"""The orders in which the Triton and Gluon families add up K: by which instruction, and in which shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpu import arch_vendor
from genkern.gemm.gpus import capabilities_of
from genkern.gemm.problem import GemmProblem
from genkern.gemm.triton_release import triton_release
from genkern.kernels.contract.gluon_tile import ring_k
from genkern.kernels.contract.sum_order import INSTRUCTION_BYTES, SumOrder, instruction_k, is_exact, like, near_shares
from genkern.ops.accumulate import promotes_products
from genkern.ops.op import get_op, is_user_format, operands_of

# Rows and warps from which Triton uses wgmma. It also needs 16 columns before Triton 3.8 (8 from then on), although
# wgmma has a width of 8 (supportMMA in lib/Analysis/Utility.cpp). Smaller tiles are multiplied by mma.sync, so a tile
# of 32 rows and 16 columns has other bits than one of 64 rows; neither BLOCK_SIZE_K of 256 nor 8 warps make a
# difference.
_WGMMA_ROWS, _WGMMA_WARPS = 64, 4


def of_dot(
    swapped: bool,
    problem: GemmProblem,
    config: Config,
    arch: str,
    shares: Callable[[int, int, int], tuple[int, ...]] = near_shares,
) -> SumOrder:
    """Return the order of sums of a family whose step is the format's tl.dot.

    `swapped` says whether the operands are swapped, `shares` how SPLIT_K divides K. Each share is summed in one
    accumulator, block by block and within a block instruction by instruction. Stages do not divide K, nor do warps,
    which have rows and columns of their own. So only the instruction depends on the tile. If the instruction or its
    order of elements is not known, the order is that of one config's kernels only (`SumOrder.like`).
    """
    if is_exact(problem):
        return SumOrder("exact")
    op = get_op(problem.op)
    parts = shares(problem.K, config.BLOCK_SIZE_K, config.SPLIT_K)
    own = SumOrder("dot", parts, like=like(config))
    in_step = bool(op.step_operands(problem))
    instruction = _instruction(swapped, problem, config, arch)
    # The step of a format from outside genkern may compute anything.
    if is_user_format(problem.op) or not instruction:
        return own
    made = SumOrder(instruction, parts)
    if not _are_plain(problem):
        # For operands that the step converts to A's type, Triton assigns elements of K to registers as it likes. But
        # wgmma reads one operand from shared memory in the order of K, so the operand in registers follows that order.
        a, b = (DTYPES[each].size_bytes for each in (problem.dtype_a, problem.dtype_b))
        return made if a == 2 and b == 1 and instruction.startswith("wgmma") else own
    if in_step and not op.promoted(problem):
        return own
    if in_step:
        return replace(made, promoted=config.BLOCK_SIZE_K, scaled=True)
    return replace(made, promoted=config.BLOCK_SIZE_K) if promotes_products(problem, arch) else made


def _are_plain(problem: GemmProblem) -> bool:
    """Whether the instruction multiplies A and B in the type and in the order in which they are stored."""
    a, b, *_ = operands_of(problem)
    one_kind = a.dtype == b.dtype or (DTYPES[a.dtype].is_float8 and DTYPES[b.dtype].is_float8)
    converts = get_op(problem.op).converts_b
    return one_kind and not converts and {a.packed, b.packed, a.together, b.together} == {1}


def _instruction(swapped: bool, problem: GemmProblem, config: Config, arch: str) -> str:
    """Return Triton's instruction and the elements of K that it multiplies, such as "wgmma k16"; "" if unknown."""
    has, each, k = capabilities_of(arch), DTYPES[problem.dtype_a].size_bytes, instruction_k(problem.dtype_a)
    if arch_vendor(arch) != "nvidia" or has.tcgen05:
        return ""
    if DTYPES[problem.dtype_a].is_integer:
        return "exact"
    if each == 4 and not get_op(problem.op).as_tf32(problem):
        return "fma k1"
    rows, columns = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N
    if swapped:
        rows, columns = columns, rows
    least_columns = 8 if triton_release() >= (3, 8) else 16
    whole = rows % _WGMMA_ROWS == columns % least_columns == config.num_warps % _WGMMA_WARPS == 0
    if has.wgmma and whole and config.BLOCK_SIZE_K * each >= INSTRUCTION_BYTES:
        return f"wgmma k{k}"
    # It is not known which instruction Triton uses for fp8 before wgmma.
    return "" if each == 1 else f"mma k{k}"


def of_ring(cluster_k: int, problem: GemmProblem, config: Config, arch: str) -> SumOrder | None:
    """Return the order of sums of the Gluon kernels that read a ring of buffers, with `cluster_k` programs per tile.

    None with SPLIT_K above 1: which tiles are split depends on the number of tiles, and so on M. None also for clusters
    of more than two programs: the program that owns the columns adds the others' sums to its own, so the owner decides
    which sums are added first, and in a swapped tile the owner depends on the row's place. With two programs the order
    does not matter.
    """
    if is_exact(problem):
        return SumOrder("exact")
    if config.SPLIT_K > 1 or cluster_k > 2:
        return None
    is_scaled = get_op(problem.op).promoted(problem)
    depth = ring_k(DTYPES[problem.dtype_a].size_bytes)
    return SumOrder(
        "exact" if DTYPES[problem.dtype_a].is_integer else f"wgmma k{instruction_k(problem.dtype_a)}",
        near_shares(problem.K, depth, cluster_k),
        promoted=depth if is_scaled or promotes_products(problem, arch) else 0,
        scaled=is_scaled,
    )


def of_lanes(problem: GemmProblem, config: Config, arch: str) -> SumOrder:
    """Return the order of sums of the kernels for few rows, whose threads each sum some elements of K.

    The compiler's layout decides how the threads' sums are combined. It depends neither on masks of rows nor on whether
    A comes from shared memory.
    """
    if is_exact(problem):
        return SumOrder("exact")
    return SumOrder("lanes", near_shares(problem.K, config.BLOCK_SIZE_K, config.SPLIT_K), like=like(config))
