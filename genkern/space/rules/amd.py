"""genkern's own pruning rules for AMD's parameters: LDS, waves_per_eu, kpack, schedule hints, XCDs, cache modifiers.

What Triton makes of each was read from its sources (third_party/amd) and from what 3.6 to 3.9 compile for
gfx90a, gfx942, gfx950 and gfx1201; nothing here was measured on AMD hardware. A rule returns True for a config to drop.
"""

# M, N, K and BLOCK_SIZE_* are fields in capitals, not constants.
# ruff: noqa: SIM300
from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.triton_release import triton_release
from genkern.ops.op import element_bytes
from genkern.space.rules.tiles import OTHER_REGISTERS, covering_block, tiles, tiles_m

# From this release on Triton copies from memory straight to LDS where the hardware can.
_DIRECT_TO_LDS_FROM = (3, 8)
# In these releases, hints that change how a loop with one product is scheduled. `attention` is known too, but is for
# two products in a row. Triton ignores a hint that it does not know, and from 3.8 on all of them.
_HINTS_UP_TO = (3, 8)
_HINTS = ("memory-bound-attention",)
# Releases with .ca in cp.async.
_ASYNC_CA_FROM = (3, 9)

# Rows that tiles of others' winners have even where A has one (vLLM's and AITER's files for gfx942 and gfx950).
_MOST_PADDED_ROWS = 64
# Rows of the instruction for which tiles of fewer are padded.
_FEW_ROWS = 16
# By lanes of a wave, tiles and workgroups per CU up to which published winners split K: 3.3 and 13 on gfx950, 8 and 64
# on gfx1201.
_SPLIT_TILES, _SPLIT_BLOCKS = {64: 4, 32: 8}, {64: 16, 32: 64}
# What a lane loads at least, a register.
_LANE_BYTES = 4


def tile_far_over_problem(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Block larger than the next power of two of its dimension; of rows up to 64 stay.

    genkern: as tile_over_problem, but where memory is the limit rows that are padded cost nothing, and published
    winners for one row have up to 64.
    """
    return (
        config.BLOCK_SIZE_M > max(_MOST_PADDED_ROWS, covering_block(problem.M))
        or config.BLOCK_SIZE_N > covering_block(problem.N)
        or config.BLOCK_SIZE_K > max(32, covering_block(problem.K))
    )


def few_rows_needless(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Tile of 4 or 8 rows for an M from 64 on, where tiles of 16 rows fill the GPU, too.

    genkern: the instruction multiplies 16 rows anyway, and B is read as often as there are rows of tiles.
    """
    if config.BLOCK_SIZE_M >= _FEW_ROWS or problem.M < _MOST_PADDED_ROWS:
        return False
    of_sixteen = problem.batch * -(-problem.M // _FEW_ROWS) * -(-problem.N // config.BLOCK_SIZE_N)
    return of_sixteen >= gpu.compute_units


def split_k_many(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """SPLIT_K although there are over four tiles a CU, or beyond 16 workgroups on each (RDNA: 8, and 64).

    genkern: as split_k_fills, with the bounds of published winners, several of whose workgroups share a CU.
    """
    if config.SPLIT_K == 1:
        return False
    count = tiles(problem, config)
    if count > _SPLIT_TILES[gpu.warp_size] * gpu.compute_units:
        return True
    return count * config.SPLIT_K > _SPLIT_BLOCKS[gpu.warp_size] * gpu.compute_units


def lanes_without_loads(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """More warps than the tiles of A and B have registers for.

    genkern: lanes beyond that load what others load, too, and multiply nothing of their own.
    """
    size_a, size_b = element_bytes(problem)
    loaded = (config.BLOCK_SIZE_M * size_a + config.BLOCK_SIZE_N * size_b) * config.BLOCK_SIZE_K
    return bool(loaded < config.num_warps * gpu.warp_size * _LANE_BYTES)


def _lds_bytes(problem: GemmProblem, config: Config, gpu: Gpu) -> float:
    """LDS of one workgroup, without the padding (up to 3 %) against bank conflicts."""
    size_a, size_b = element_bytes(problem)
    a = config.BLOCK_SIZE_M * config.BLOCK_SIZE_K * size_a
    b = config.BLOCK_SIZE_N * config.BLOCK_SIZE_K * size_b
    if config.num_stages <= 1:
        return max(a, b)
    direct = gpu.has.async_copies and triton_release() >= _DIRECT_TO_LDS_FROM
    return (a + b) * (config.num_stages if direct else config.num_stages - 1)


def lds_pipeline(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """More LDS for the pipeline's tiles of A and B than a workgroup may have.

    genkern: one of the tiles at a time without a pipeline (num_stages 1), else num_stages - 1 of both, since the
    newest are still in registers; num_stages of both where they go straight to LDS (gfx950 from Triton 3.8 on).
    """
    return _lds_bytes(problem, config, gpu) > gpu.shared_bytes_per_block


def waves_per_eu_given(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """waves_per_eu below what a single workgroup brings to each SIMD.

    genkern: eight warps are two on each of four SIMDs, so LLVM ignores an aim of one: the code is that of 0.
    """
    return bool(0 < config.waves_per_eu < -(-config.num_warps // gpu.simds_per_unit))


def waves_per_eu_over_lds(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """waves_per_eu above what fits the LDS of a CU.

    genkern: registers are saved for workgroups that never run together.
    """
    if config.waves_per_eu == 0:
        return False
    workgroups = gpu.shared_bytes_per_unit // _lds_bytes(problem, config, gpu)
    return bool(config.waves_per_eu * gpu.simds_per_unit > max(1, workgroups) * config.num_warps)


def waves_per_eu_spills(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """waves_per_eu that leaves a thread fewer registers than its accumulators need.

    genkern: so many waves share the registers of a SIMD (512 of 32 bits a lane on CDNA); 20 more hold addresses and
    operands, and what does not fit is spilled in every iteration.
    """
    if config.waves_per_eu == 0:
        return False
    accumulators = config.BLOCK_SIZE_M * config.BLOCK_SIZE_N // (config.num_warps * gpu.warp_size)
    registers = gpu.registers_per_unit // (gpu.simds_per_unit * gpu.warp_size) // config.waves_per_eu
    return bool(accumulators + OTHER_REGISTERS > registers)


def kpack_no_effect(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """kpack 2 where Triton compiles the same as for 1.

    genkern: on gfx950 it is overwritten by 1, with a warning (HIPOptions of Triton 3.6 to 3.9); it is a property of
    MFMA, which RDNA does not have.
    """
    return bool(config.kpack > gpu.has.kpack_max)


def schedule_hint_ignored(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """schedule_hint that the installed Triton ignores in a GEMM.

    genkern: no release refuses an unknown hint, it compiles as `none`. 3.6 and 3.7 know memory-bound-attention
    (another scheduler of LLVM) and attention, which changes nothing in a loop with one product; 3.8 and 3.9 look at
    none.
    """
    return config.schedule_hint != "none" and (config.schedule_hint not in _HINTS or triton_release() >= _HINTS_UP_TO)


def xcd_remap_one_xcd(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """xcd_remap on a GPU with one XCD.

    genkern: there is one L2 for all programs, so that their order is GROUP_SIZE_M's alone.
    """
    return config.xcd_remap == 1 and gpu.xcds == 1


def cache_modifier_reused(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """cache_modifier although several rows of tiles read B.

    genkern: the modifiers say that B is read once, so that caches need not keep it; that holds for one row of tiles.
    """
    return config.cache_modifier != "none" and tiles_m(problem, config) > 1


def cache_modifier_no_effect(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """cache_modifier that compiles to the same loads as another.

    genkern: on AMD .ca is the default, and .cs (from Triton 3.8 on) is .cg: both set the bits for no reuse (nt; glc
    and slc on gfx90a). On NVIDIA the pipeline's cp.async goes past L1 as .cg says, and takes .ca from 3.9 on.
    """
    modifier = config.cache_modifier
    if modifier == "none":
        return False
    if gpu.vendor == "amd":
        return bool(modifier != ".cg")
    return config.num_stages > 1 and (modifier != ".ca" or triton_release() < _ASYNC_CA_FROM)
