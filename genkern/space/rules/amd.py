"""genkern's own pruning rules for AMD's parameters: LDS, waves_per_eu, kpack, schedule hints, XCDs, cache modifiers.

What Triton does with each parameter was read from its sources (third_party/amd) and from the code that 3.6 to 3.9
compile for gfx90a, gfx942, gfx950 and gfx1201. Nothing here was measured on AMD hardware. A rule returns True to drop a
configs.
"""

# M, N, K and BLOCK_SIZE_* are fields in capitals, not constants.
# ruff: noqa: SIM300
from __future__ import annotations

from genkern.gemm.columns import Column, Mask, either, is_in, most, negated, within
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.triton_release import triton_release
from genkern.ops.op import element_bytes
from genkern.space.rules.tiles import OTHER_REGISTERS, covering_block, tiles, tiles_m

# From this release on, Triton copies from memory straight to LDS if the hardware can.
_DIRECT_TO_LDS_FROM = (3, 8)
# Hints that change the schedule of a loop with one product, and the release from which Triton ignores all hints.
# `attention` exists too, but is for two products in a row. Triton ignores unknown hints.
_HINTS_UP_TO = (3, 8)
_HINTS = ("memory-bound-attention",)
# First release with .ca for cp.async.
_ASYNC_CA_FROM = (3, 9)

# Largest number of tile rows of published winners if A has one row (vLLM's and AITER's files for gfx942 and gfx950).
_MOST_PADDED_ROWS = 64
# Rows of the instruction to which smaller tiles are padded.
_FEW_ROWS = 16
# By threads per wave (64: CDNA, 32: RDNA), tiles and workgroups per CU up to which published winners split K: 3.3 and
# 13 on gfx950, 8 and 64 on gfx1201.
_SPLIT_TILES, _SPLIT_BLOCKS = {64: 4, 32: 8}, {64: 16, 32: 64}
# Least number of bytes that a lane loads: one register.
_LANE_BYTES = 4


def tile_far_over_problem(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Block larger than the next power of two of its dimension; BLOCK_SIZE_M up to 64 is always kept.

    genkern: as tile_over_problem. But if memory is the limit, padded rows cost nothing, and published winners for one
    row have up to 64.
    """
    return (
        (configs.BLOCK_SIZE_M > max(_MOST_PADDED_ROWS, covering_block(problem.M)))
        | (configs.BLOCK_SIZE_N > covering_block(problem.N))
        | (configs.BLOCK_SIZE_K > max(32, covering_block(problem.K)))
    )


def few_rows_needless(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Tile of 4 or 8 rows for an M of at least 64, if tiles of 16 rows fill the GPU, too.

    genkern: the instruction multiplies 16 rows anyway, and each row of tiles reads B once more.
    """
    if problem.M < _MOST_PADDED_ROWS:
        return False
    of_sixteen = problem.batch * -(-problem.M // _FEW_ROWS) * -(-problem.N // configs.BLOCK_SIZE_N)
    return (configs.BLOCK_SIZE_M < _FEW_ROWS) & (of_sixteen >= gpu.compute_units)


def split_k_many(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """SPLIT_K with over four tiles per CU, or over 16 workgroups per CU (RDNA: 8 and 64).

    genkern: for the same reason as tiles.split_k_fills (the tiles already fill the GPU). The bounds are those up to
    which published winners split K; several of their workgroups share a CU.
    """
    count = tiles(problem, configs)
    fills = count > _SPLIT_TILES[gpu.warp_size] * gpu.compute_units
    crowds = count * configs.SPLIT_K > _SPLIT_BLOCKS[gpu.warp_size] * gpu.compute_units
    return (configs.SPLIT_K != 1) & (fills | crowds)


def lanes_without_loads(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """More warps than the tiles of A and B have 4-byte words for.

    genkern: the excess lanes load what other lanes load, too, and multiply nothing of their own.
    """
    size_a, size_b = element_bytes(problem)
    loaded = (configs.BLOCK_SIZE_M * size_a + configs.BLOCK_SIZE_N * size_b) * configs.BLOCK_SIZE_K
    return loaded < configs.num_warps * gpu.warp_size * _LANE_BYTES


def _lds_bytes(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Column:
    """Return the LDS of a workgroup in bytes, without the padding (up to 3 %) against bank conflicts."""
    size_a, size_b = element_bytes(problem)
    a = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_K * size_a
    b = configs.BLOCK_SIZE_N * configs.BLOCK_SIZE_K * size_b
    direct = gpu.has.async_copies and triton_release() >= _DIRECT_TO_LDS_FROM
    in_lds = configs.num_stages if direct else configs.num_stages - 1
    return either(configs.num_stages <= 1, most(a, b), (a + b) * in_lds)


def lds_pipeline(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Tiles of A and B whose pipeline needs more LDS than a workgroup may have.

    genkern: without a pipeline (num_stages 1) one tile is in LDS at a time. Otherwise num_stages - 1 tiles of both are,
    since the newest are still in registers; or num_stages if loads go straight to LDS (gfx950 from Triton 3.8 on).
    """
    return _lds_bytes(problem, configs, gpu) > gpu.shared_bytes_per_block


def waves_per_eu_given(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """waves_per_eu below the waves that a single workgroup has on each SIMD.

    genkern: eight warps are two on each of four SIMDs, so LLVM ignores a target of one, and the code equals that for 0.
    """
    return within(1, configs.waves_per_eu, -(-configs.num_warps // gpu.simds_per_unit) - 1)


def waves_per_eu_over_lds(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """waves_per_eu above the number of waves that the LDS of a CU allows.

    genkern: registers would be saved for workgroups that never run together.
    """
    workgroups = gpu.shared_bytes_per_unit // _lds_bytes(problem, configs, gpu)
    too_many = configs.waves_per_eu * gpu.simds_per_unit > most(1, workgroups) * configs.num_warps
    return (configs.waves_per_eu != 0) & too_many


def waves_per_eu_spills(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """waves_per_eu that leaves a thread fewer registers than its accumulators need.

    genkern: this many waves share the registers of a SIMD (512 of 32 bits per lane on CDNA). 20 more registers hold
    addresses and operands, and values that do not fit are spilled in every iteration.
    """
    accumulators = configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N // (configs.num_warps * gpu.warp_size)
    registers = gpu.registers_per_unit // (gpu.simds_per_unit * gpu.warp_size) // most(1, configs.waves_per_eu)
    return (configs.waves_per_eu != 0) & (accumulators + OTHER_REGISTERS > registers)


def kpack_no_effect(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """kpack 2 if Triton compiles the same code as for 1.

    genkern: on gfx950 Triton overwrites it with 1 and warns (HIPOptions of Triton 3.6 to 3.9). It is a property of
    MFMA, which RDNA does not have.
    """
    return configs.kpack > gpu.has.kpack_max


def schedule_hint_ignored(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """schedule_hint that the installed Triton ignores in a GEMM.

    genkern: no release refuses an unknown hint; it compiles as `none`. 3.6 and 3.7 know memory-bound-attention (another
    scheduler of LLVM) and attention, which changes nothing in a loop with one product. 3.8 and 3.9 ignore all hints.
    """
    if triton_release() >= _HINTS_UP_TO:
        return configs.schedule_hint != "none"
    return negated(is_in(configs.schedule_hint, ("none", *_HINTS)))


def xcd_remap_one_xcd(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """xcd_remap on a GPU with one XCD.

    genkern: all programs share one L2, so GROUP_SIZE_M alone determines their order.
    """
    return gpu.xcds == 1 and configs.xcd_remap == 1


def cache_modifier_reused(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """cache_modifier although several rows of tiles read B.

    genkern: the modifiers say that B is read once, so that caches need not keep it. That holds only for a single row of
    tiles.
    """
    return (configs.cache_modifier != "none") & (tiles_m(problem, configs) > 1)


def cache_modifier_no_effect(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """cache_modifier that compiles to the same loads as another.

    genkern: on AMD .ca is the default, and .cs (from Triton 3.8 on) equals .cg: both set the bits for no reuse (nt; glc
    and slc on gfx90a). On NVIDIA the pipeline's cp.async bypasses L1, as .cg asks for, and takes .ca from 3.9 on.
    """
    modifier = configs.cache_modifier
    if gpu.vendor == "amd":
        return negated(is_in(modifier, ("none", ".cg")))
    has_effect = is_in(modifier, ("none", ".ca") if triton_release() >= _ASYNC_CA_FROM else ("none",))
    return (configs.num_stages > 1) & negated(has_effect)
