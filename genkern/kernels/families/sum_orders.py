"""The orders in which the families in Triton and Gluon add up K: by which instruction, and in which shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpu import arch_vendor
from genkern.gemm.gpus import capabilities_of
from genkern.gemm.problem import GemmProblem
from genkern.gemm.triton_release import triton_release
from genkern.kernels.contract.sums import INSTRUCTION_BYTES, Sums, instruction_k, is_exact, like, near_shares
from genkern.kernels.families.gluon_tile import ring_k
from genkern.ops.accumulate import promotes_products
from genkern.ops.op import get_op, is_outside, operands_of

# What wgmma takes of a tile: rows of it for four warps, and columns, of which Triton asks for 16 before 3.8, though
# wgmma has 8 (supportMMA in lib/Analysis/Utility.cpp); fewer are multiplied by mma.sync. That, neither its BLOCK_SIZE_K
# of 256 nor its 8 warps, is why a tile of 32 rows and 16 columns has other bits: with 64 rows it has not.
_WGMMA_ROWS, _WGMMA_WARPS = 64, 4


def of_dot(
    swapped: bool,
    problem: GemmProblem,
    config: Config,
    arch: str,
    shares: Callable[[int, int, int], tuple[int, ...]] = near_shares,
) -> Sums:
    """Of a family whose step is the format's tl.dot, with `swapped` operands or not, and SPLIT_K `shares` of K.

    All of a share goes to one accumulator, block by block, and of a block instruction by instruction: neither stages
    nor warps, which have rows and columns of their own, share K out. So a tile says no more than which instruction it
    is.
    """
    if is_exact(problem):
        return Sums("exact")
    op = get_op(problem.op)
    parts = shares(problem.K, config.BLOCK_SIZE_K, config.SPLIT_K)
    own = Sums("dot", parts, like=like(config))
    in_step = bool(op.step_operands(problem))
    instruction = _instruction(swapped, problem, config, arch)
    # Another's step may do anything.
    if is_outside(problem.op) or not instruction:
        return own
    made = Sums(instruction, parts)
    if not _are_plain(problem):
        # Of what a step converts to A's type Triton puts elements of K where it finds registers. But wgmma reads one
        # side from shared memory, in the order of K, and so what is in registers is in that order too.
        a, b = (DTYPES[each].size_bytes for each in (problem.dtype_a, problem.dtype_b))
        return made if a == 2 and b == 1 and instruction.startswith("wgmma") else own
    if in_step and not op.promoted(problem):
        return own
    if in_step:
        return replace(made, promoted=config.BLOCK_SIZE_K, scaled=True)
    return replace(made, promoted=config.BLOCK_SIZE_K) if promotes_products(problem, arch) else made


def _are_plain(problem: GemmProblem) -> bool:
    """Whether the instruction multiplies A and B as they are stored, in the order in which they are."""
    a, b, *_ = operands_of(problem)
    one_kind = a.dtype == b.dtype or (DTYPES[a.dtype].is_float8 and DTYPES[b.dtype].is_float8)
    converts = get_op(problem.op).converts_b
    return one_kind and not converts and {a.packed, b.packed, a.together, b.together} == {1}


def _instruction(swapped: bool, problem: GemmProblem, config: Config, arch: str) -> str:
    """What Triton multiplies by, and how many of K at a time; "" where nothing is known."""
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
    # mma.sync of fp8 is of what it was made of before.
    return "" if each == 1 else f"mma k{k}"


def of_ring(cluster_k: int, problem: GemmProblem, config: Config, arch: str) -> Sums | None:
    """Of kernels in Gluon whose products read a ring of buffers, `cluster_k` programs a tile.

    Which tiles SPLIT_K shares out hangs on how many there are, and so on M. A program of a cluster adds the others'
    sums to its own: of three, whose columns those are decides which two come first, and of swapped tiles that is a
    row's place. Of two either order is the same.
    """
    if is_exact(problem):
        return Sums("exact")
    if config.SPLIT_K > 1 or cluster_k > 2:
        return None
    is_scaled = get_op(problem.op).promoted(problem)
    depth = ring_k(DTYPES[problem.dtype_a].size_bytes)
    return Sums(
        "exact" if DTYPES[problem.dtype_a].is_integer else f"wgmma k{instruction_k(problem.dtype_a)}",
        near_shares(problem.K, depth, cluster_k),
        promoted=depth if is_scaled or promotes_products(problem, arch) else 0,
        scaled=is_scaled,
    )


def of_lanes(problem: GemmProblem, config: Config, arch: str) -> Sums:
    """Of kernels for few rows: lanes have elements of K each, which come together as a compiler has laid them out.

    Neither masks of rows nor where A comes from change which element of K is whose.
    """
    if is_exact(problem):
        return Sums("exact")
    return Sums("lanes", near_shares(problem.K, config.BLOCK_SIZE_K, config.SPLIT_K), like=like(config))
