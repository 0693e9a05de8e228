"""cute_wgmma: a persistent GEMM by TMA and wgmma in CuTe DSL for sm_90 (templates/cute/dense_sm90.py).

Its parameters:

schedule: in cooperative kernels up to three warpgroups share a tile. In ping_pong kernels each of two warpgroups has a
    tile of its own, and one multiplies while the other stores its sums to C.
cluster: two to eight programs have tiles side by side, and load for each other.
swapped: computes C^T = B^T A^T. The 64 rows of wgmma lie along N, and BLOCK_SIZE_M is any multiple of 8.
store: "direct" stores C from registers, for rows of C that do not start at multiples of 16 bytes and for float32.
SPLIT_K: cooperative kernels with direct stores can split K. The sums go to the workspace, and a Triton kernel adds them
    up.

NVIDIA's guide to autotuning CuTe DSL GEMMs calls `cluster` cluster_shape_mn, `store` use_tma_store and the block sizes
mma_tiler_mn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

from genkern.gemm.columns import Column, Refusals, either, is_in, mapped
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpu import WARPGROUP_SHARED_BYTES, Gpu
from genkern.gemm.parameter import CLUSTER, SCHEDULE, STORE, SWAPPED, pair_of
from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.contract.argument import Argument, Constant, Integer, Leading, Map, Pointer, Workspace
from genkern.kernels.contract.call import Call, Kernel
from genkern.kernels.contract.cost import TileWave
from genkern.kernels.contract.expression import Value, cdiv, least, most, name, where
from genkern.kernels.contract.family import Choice, Family
from genkern.kernels.contract.gluon_tile import TURNED_BOX, buffer_bytes, columns_held, turned
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.sum_order import SumOrder, instruction_k, near_shares, own_finish
from genkern.kernels.contract.symbols import (
    BATCH,
    BLOCK_SIZE_K,
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
    NUM_STAGES,
    NUM_WARPS,
    SPLIT_K,
    UNITS,
    K,
    M,
    N,
)
from genkern.kernels.contract.traits import KernelTraits, any_config
from genkern.kernels.contract.variant import Variant
from genkern.kernels.cute import tile
from genkern.kernels.cute.dense_product import (
    BLOCKS,
    dense_form,
    finish_limit,
    operands_limit,
    product_constants,
    ring_limit,
    scales_of,
)
from genkern.kernels.families.common import BINARY_NAME, GROUP, SPLITS, reduction
from genkern.kernels.families.limits import (
    over_c_limit,
    splits_limit,
    tiles,
    tma_operands_limit,
    tma_output_limit,
    units_in_clusters,
)
from genkern.ops.accumulate import is_full
from genkern.ops.op import get_op

TEMPLATE = "cute/dense_sm90.py"
# Kernel for operands with scales of blocks. It scales the products of each K-block and adds them up in float32.
PROMOTED = "cute/promoted_sm90.py"
# Kernel for fp8 with full sums. It adds up the products of K-blocks in the same way, without scales.
FULL_SUMS = "cute/compiled_only/full_sm90.py"
_TURNS = name("turns")
Side = TypeVar("Side")
# Largest height and width of a tile, by whether the schedule is ping_pong.
_HIGHEST = {True: 128, False: 256}
_WIDEST = {True: tile.WIDEST, False: tile.WIDEST_OF_TWO}
# Without guaranteed divisors, so that one binary serves all sizes.
_SIZES = (Integer("M", M), Integer("N", N), Integer("K", K))


@dataclass(frozen=True)
class Shape:
    """What distinguishes the forms.

    ping_pong: True for the ping_pong schedule, False for cooperative.
    swapped: True if C is computed transposed.
    cluster_m, cluster_n: programs of a cluster along M and N.
    tma_store: True if C is stored by TMA.
    """

    ping_pong: bool
    swapped: bool
    cluster_m: int
    cluster_n: int
    tma_store: bool

    @property
    def cluster(self) -> int:
        """Number of programs in a cluster."""
        return self.cluster_m * self.cluster_n

    def stem(self, *, split: bool = False) -> str:
        """Return the prefix of the kernels' names; with `split`, of the kernels that split K."""
        schedule = "split" if split else "ping_pong" if self.ping_pong else "cooperative"
        cluster = f"_{self.cluster_m}x{self.cluster_n}" if self.cluster > 1 else ""
        direct = "" if self.tma_store or split else "_direct"
        return f"cute_{schedule}" + "_swapped" * self.swapped + cluster + direct

    def sides(self, along_m: Side, along_n: Side) -> tuple[Side, Side]:
        """Return values for M and N as (height, width): along wgmma's rows, and along its columns."""
        return (along_n, along_m) if self.swapped else (along_m, along_n)

    def widths(self, problem: GemmProblem, configs: Config | ConfigTable) -> tuple[Column, Column]:
        """Return the columns of the left and the right warpgroup of a tile.

        They are 0 and all columns unless two warpgroups share the tile's 64 rows.
        """
        height, width = self.sides(configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N)
        if self.ping_pong:
            return 0, width
        is_shared = (height == tile.ROWS) & (configs.num_warps > tile.GROUP_WARPS)
        left = either(is_shared, tile.left_of(width, turned(problem, self.swapped)[1]), 0)
        return left, width - left

    def part(self, problem: GemmProblem, configs: Config | ConfigTable) -> Column:
        """Return the columns of a warpgroup that TMA stores at a time; 0 for direct stores."""
        if not self.tma_store:
            return 0
        return mapped(_rows_stored if self.swapped else _columns_stored, *self.widths(problem, configs))


# Cached because pruning asks for the same few widths with every form.
@lru_cache(maxsize=4096)
def _columns_stored(left: int, right: int) -> int:
    """Return the columns of C that TMA stores at a time, for the columns of both warpgroups of a tile."""
    part = tile.part_of(right)
    return tile.part_of(left) if 0 < left < part else part


@lru_cache(maxsize=4096)
def _rows_stored(left: int, right: int) -> int:
    """Return the rows of C that TMA stores at a time, for the rows of both warpgroups of a swapped tile."""
    part = tile.rows_part_of(right)
    return tile.rows_part_of(left) if 0 < left < part else part


def _variant(shape: Shape, problem: GemmProblem, config: Config) -> Variant:
    part, split = shape.part(problem, config), config.SPLIT_K > 1
    return Variant(
        f"matmul_{shape.stem(split=split)}" + (f"_p{part}" if part else ""),
        FULL_SUMS if is_full(problem) else PROMOTED if scales_of(problem) == BLOCKS else TEMPLATE,
        cluster=shape.cluster,
        part=part,
        split=split,
        specialized=shape.ping_pong,
        swapped=shape.swapped,
        down=shape.cluster_m,
        across=shape.cluster_n,
    )


def _call(product: Product, variant: Variant) -> Call:
    problem, ping_pong, tma_store = product.problem, variant.specialized, variant.part > 0
    groups = NUM_WARPS // tile.GROUP_WARPS
    box = (variant.part, tile.ROWS) if variant.swapped else (tile.WARP_ROWS, variant.part)
    swizzle = tile.SWIZZLE_128 if tile.is_swizzled(box[1]) else tile.NO_SWIZZLE
    batched = get_op(problem.op).batched
    # An upright tile's thread holds neighbours in a row. Direct stores write two at a time if every row starts at an
    # even element. For the products of a batch this is not guaranteed (Stride).
    pairs = not (variant.swapped or tma_store or batched) and problem.N % 2 == 0
    c: tuple[Argument, ...] = (Pointer("c_ptr", "c"), *product.extra)
    leading: tuple[Argument, ...] = (Leading("ldc", "c", 1 + pairs),)
    if variant.split:
        c, leading = (Workspace("partial_ptr", product.accumulator),), (Integer("ldc", N), SPLITS)
    if tma_store:
        # In a batch a box may overhang into the next product, which must not be written. Such rows are stored through
        # the pointer.
        c = (Map("c_desc", "c", box, False, swizzle), *(c if batched else product.extra))
    arguments = [
        _share(product, "a", problem.row_major_a, BLOCK_SIZE_M, variant.across),
        _share(product, "b", not problem.row_major_b, BLOCK_SIZE_N, variant.down),
        *c,
        *_SIZES,
        GROUP,
        *(() if tma_store and not batched else leading),
        *((Integer("BATCH", BATCH),) if batched else ()),
    ]
    held = columns_held(BLOCK_SIZE_M, not problem.row_major_a) + columns_held(BLOCK_SIZE_N, problem.row_major_b)
    row_bytes = BLOCK_SIZE_K * DTYPES[problem.dtype_a].size_bytes
    before_parts = NUM_STAGES * (held * row_bytes) + tile.BARRIER_BYTES
    part_bytes = groups * (tile.ROWS * variant.part * DTYPES[product.by_name["c"].dtype].size_bytes)
    buffers = where(before_parts + part_bytes * tile.MOST_BUFFERS > WARPGROUP_SHARED_BYTES, 1, tile.MOST_BUFFERS)
    constants: dict[str, Value | str] = {
        **product_constants(problem, variant),
        "swapped": int(variant.swapped),
        "ping_pong": int(ping_pong),
        "part": variant.part,
        "buffers": buffers,
        "swizzled": int(swizzle == tile.SWIZZLE_128),
        "shared_bytes": before_parts + buffers * part_bytes,
        "warps": NUM_WARPS + tile.LOADING_WARPS,
        "left": tile.left_of(BLOCK_SIZE_M if variant.swapped else BLOCK_SIZE_N, turned(problem, variant.swapped)[1]),
    }
    if batched:
        constants["batched"] = 1
    if pairs:
        constants["pairs"] = 1
    if variant.split:
        # The reduction kernel applies the epilogue, so this kernel only stores sums.
        constants |= {"split": 1, "dtype_c": product.accumulator, "scales": "none", "bias": 0, "activation": "none"}
    kernel = Kernel(
        variant,
        (*arguments, BINARY_NAME, *(Constant(name, value) for name, value in constants.items())),
        (least(most(1, units_in_clusters(UNITS, variant.cluster) // variant.cluster), _TURNS), 1, 1),
        (),
        walks_batch=True,
    )
    turns = cdiv(M, BLOCK_SIZE_M * variant.down) * cdiv(N, BLOCK_SIZE_N * variant.across)
    if variant.split:
        kernels = kernel, reduction(product, SPLIT_K)
        return Call(kernels, (("turns", SPLIT_K * turns),), workspace=SPLIT_K * M * N)
    return Call((kernel,), (("turns", BATCH * turns if batched else turns),))


def _share(product: Product, operand: str, k_major: bool, rows: Value, sharers: int) -> Map:
    """Return the descriptor by which each of `sharers` programs loads its share of a block of A or B.

    Each program loads some of the rows. If the operand is not contiguous along K, it loads all rows of some of the
    elements of K, in boxes of 64 rows.
    """
    box = (rows // sharers, BLOCK_SIZE_K) if k_major else (BLOCK_SIZE_K // sharers, TURNED_BOX)
    transposed = not product.by_name[operand].row_major
    return Map(f"{operand}_desc", operand, box, transposed, tile.SWIZZLE_128)


def _takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    if reason := operands_limit(problem):
        return reason
    if DTYPES[problem.dtype_a].size_bytes == 1 and (not problem.row_major_a or problem.row_major_b):
        return "wgmma takes 8-bit operands only if they are contiguous along K (rowMajorA: T, rowMajorB: N)"
    if problem.batch > 1 and problem.batch * max(problem.M, problem.N, problem.K) >= INT32 // 2:
        return "the batch has more rows than 32 bits count"
    return finish_limit(problem) or tma_operands_limit(problem)


def _takes_tma_store(problem: GemmProblem, gpu: Gpu | None) -> str:
    if DTYPES[problem.dtype_c].size_bytes != 2:
        return "this family stores C of 16 bits through TMA"
    return _takes(problem, gpu) or tma_output_limit(problem)


def _shares_of_k(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require for SPLIT_K: a K-block for each split, a single product, no scales of blocks, and no full sums."""
    is_split = configs.SPLIT_K > 1
    if get_op(problem.op).batched:
        yield is_split, "this family cannot split K of a batch, only of one product"
    if scales_of(problem) == BLOCKS:
        yield is_split, "with SPLIT_K the loop over K of this family reads nothing but A and B"
    if is_full(problem):
        yield is_split, "with SPLIT_K this family adds up in the tensor cores only (accumulate: fast)"
    yield is_split & (configs.SPLIT_K > -(-problem.K // configs.BLOCK_SIZE_K)), "more splits than K-blocks"
    for mask, reason in splits_limit(problem, configs, gpu):
        yield is_split & mask, reason
    if reason := over_c_limit(problem, gpu):
        yield is_split, reason


def _legal(shape: Shape, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require a tile that wgmma and TMA can handle, with whole warpgroups and enough registers for its accumulators."""
    across_k = not problem.row_major_a and problem.row_major_b
    partial = configs.BLOCK_SIZE_K * DTYPES[problem.dtype_a].size_bytes != tile.BLOCK_BYTES
    if across_k:
        partial = partial & (configs.BLOCK_SIZE_K != tile.TURNED_K)
    yield (
        partial,
        f"BLOCK_SIZE_K must be {tile.BLOCK_BYTES} bytes, or {tile.TURNED_K} if no operand is contiguous along K",
    )
    height, width = shape.sides(configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N)
    yield (
        (height % tile.ROWS != 0) | (height > _HIGHEST[shape.ping_pong]),
        f"a tile must have 64 or 128 {'columns' if shape.swapped else 'rows'} for each warpgroup",
    )
    groups, promotes = tile.groups_of(height, width, shape.ping_pong), _promotes(problem)
    if is_full(problem) and (shape.ping_pong or shape.swapped or get_op(problem.op).batched):
        yield True, "accumulate: full needs cooperative, upright tiles of one product in this family"
    if promotes:
        yield groups > 2, "at most two warpgroups can share a tile with scales of blocks or full sums"
    left, right = shape.widths(problem, configs)
    if not promotes:
        groups = either((left > 0) & (configs.num_warps == 2 * tile.GROUP_WARPS), 2, groups)
    for number in (1, 2, 3):
        warps = number * tile.GROUP_WARPS
        yield (
            (groups == number) & (configs.num_warps != warps),
            f"num_warps must be {warps} for this tile: four for each warpgroup that multiplies",
        )
    yield right > tile.WIDEST, f"a warpgroup can multiply at most {tile.WIDEST} columns"
    for side, k_major, sharers in _shares(shape, problem, configs):
        if k_major:
            yield side // sharers > tile.WIDEST, f"TMA copies at most {tile.WIDEST} rows at a time"
    if promotes:
        # Besides the sums a thread holds the products of 64 rows (of one warpgroup) and scales.
        of_products = tile.accumulators(tile.ROWS, width, 1)
        sums = tile.accumulators(height, width, 1 if shape.ping_pong else groups)
        yield (
            sums + of_products > tile.MOST_PROMOTED,
            f"a thread would have more than {tile.MOST_PROMOTED} accumulators",
        )
    else:
        for most_sums in sorted({*tile.MOST_ACCUMULATORS.values()}):
            these = is_in(groups, tuple(n for n, each in tile.MOST_ACCUMULATORS.items() if each == most_sums))
            sums = tile.accumulators(height, width, 1 if shape.ping_pong else groups)
            yield these & (sums > most_sums), f"a thread would have more than {most_sums} accumulators"
    if not (problem.row_major_a and not problem.row_major_b) and problem.batch > 1:
        # A descriptor covers all matrices of a batch, so TMA does not fill with zeros between them.
        yield (
            problem.K % configs.BLOCK_SIZE_K != 0,
            "in a batch, an operand that is not contiguous along K continues with the next product beyond K",
        )
    if problem.batch > 1:
        yield problem.batch * tiles(problem, configs) >= INT32 // 2, "more tiles than 32 bits count"


def _promotes(problem: GemmProblem) -> bool:
    """Whether the products of each K-block are summed separately and then added in float32."""
    return scales_of(problem) == BLOCKS or is_full(problem)


def _shares(shape: Shape, problem: GemmProblem, configs: ConfigTable) -> tuple[tuple[Column, bool, int], ...]:
    """Return for A and B: the tile's side, whether they are contiguous along K, and how many programs share a load."""
    of_a = configs.BLOCK_SIZE_M, problem.row_major_a, shape.cluster_n
    return of_a, (configs.BLOCK_SIZE_N, not problem.row_major_b, shape.cluster_m)


def _shared_bytes(shape: Shape, problem: GemmProblem, configs: ConfigTable) -> Column:
    """Return the shared memory of a program in bytes. It must agree with the constant shared_bytes of the kernel."""
    height, width = shape.sides(configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N)
    groups = configs.num_warps // tile.GROUP_WARPS
    parts = groups * tile.ROWS * shape.part(problem, configs) * DTYPES[problem.dtype_c].size_bytes
    columns_turned = turned(problem, shape.swapped)[1]
    row_bytes = configs.BLOCK_SIZE_K * DTYPES[problem.dtype_a].size_bytes
    stage_bytes = buffer_bytes(height, width, columns_turned) // tile.BLOCK_BYTES * row_bytes
    before_parts = tile.BARRIER_BYTES + configs.num_stages * stage_bytes
    has_room = before_parts + tile.MOST_BUFFERS * parts <= WARPGROUP_SHARED_BYTES
    return before_parts + either(has_room, tile.MOST_BUFFERS, 1) * parts


def _stages(shape: Shape, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require a ring whose stages fit beside the parts of C."""
    yield from ring_limit(configs.num_stages, tile.MOST_STAGES, _shared_bytes(shape, problem, configs), gpu)


def _sums(problem: GemmProblem, config: Config, arch: str) -> SumOrder:
    """Return the order of sums: one accumulator for each split of K, whatever the schedule and the cluster are."""
    is_split = config.SPLIT_K > 1
    is_scaled = scales_of(problem) == BLOCKS
    return SumOrder(
        f"wgmma k{instruction_k(problem.dtype_a)}",
        near_shares(problem.K, config.BLOCK_SIZE_K, config.SPLIT_K),
        promoted=config.BLOCK_SIZE_K if _promotes(problem) else 0,
        scaled=is_scaled,
        # A Triton kernel computes the epilogue of splits.
        finish="cute" if is_scaled else "" if is_split else own_finish(problem, "cute"),
    )


@lru_cache(maxsize=64)
def _form_of(shape: Shape) -> KernelTraits:
    splits, widest = not shape.ping_pong and not shape.tma_store, _WIDEST[shape.ping_pong]
    tile_wave = TileWave(
        *(shape.cluster_m, shape.cluster_n),
        programs_of_tile=1,
        programs=shape.cluster,
        tma_store=shape.tma_store,
        tma_stores=(2,),
        hides_stores=shape.ping_pong,
        width_step=tile.WIDTH_STEP,
        units=lambda units: units_in_clusters(units, shape.cluster),
        swapped=shape.swapped,
        swaps_for_few=not shape.swapped,
    )
    return dense_form(
        shape.stem(),
        partial(_variant, shape),
        _call,
        tile_wave,
        needs=("tma", "wgmma"),
        takes=_takes_tma_store if shape.tma_store else _takes,
        legal=partial(_legal, shape),
        stages=partial(_stages, shape),
        sums=_sums,
        shares=_shares_of_k if splits else any_config,
        # Two warpgroups that share a tile drift apart in time, so that one multiplies while the other promotes. The
        # warpgroups of ping_pong would not.
        promotes=not shape.ping_pong and not shape.swapped,
        widest=widest,
        height_step=tile.ROWS,
        block_m=(tile.WIDTH_STEP, widest) if shape.swapped else (tile.ROWS, _HIGHEST[shape.ping_pong]),
        helper_warps=tile.LOADING_WARPS,
        batches=True,
        splits_k=splits,
    )


def _form(choice: Choice) -> KernelTraits:
    cluster = pair_of(str(choice["cluster"]))
    return _form_of(
        Shape(choice["schedule"] == "ping_pong", bool(choice["swapped"]), *cluster, choice["store"] == "tma")
    )


CUTE_WGMMA = Family("cute_wgmma", _form, (SCHEDULE, CLUSTER, STORE, SWAPPED), language="cute")
