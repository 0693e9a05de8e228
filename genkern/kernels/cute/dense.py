"""cute_wgmma, in CuTe DSL for sm_90 (templates/cute/dense_sm90.py): a persistent GEMM by TMA and wgmma.

`schedule`: in cooperative kernels up to three warpgroups share a tile; in ping_pong each of two has its own, and while
one multiplies the other brings its sums to C. `cluster`: two to eight programs have tiles beside each other, and load
for one another. `swapped` computes C^T = B^T A^T: the 64 rows of wgmma go along N, and BLOCK_SIZE_M is any multiple
of 8. `store`: direct stores C from registers, for rows of C off 16 bytes and for float32. With SPLIT_K cooperative
direct kernels share K out too, and sums go to the workspace, where a kernel in Triton adds them up.

NVIDIA's guide to autotuning CuTe DSL GEMMs calls cluster and store cluster_shape_mn and use_tma_store, and the blocks
mma_tiler_mn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpu import WARPGROUP_SHARED_BYTES, Gpu
from genkern.gemm.parameter import CLUSTER, SCHEDULE, STORE, SWAPPED, pair_of
from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.argument import Argument, Constant, Integer, Leading, Map, Pointer, Workspace
from genkern.kernels.contract.call import Call, Kernel
from genkern.kernels.contract.cost import Turn
from genkern.kernels.contract.family import Choice, Family
from genkern.kernels.contract.form import Form, any_config
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.sums import Sums, instruction_k, near_shares, own_finish
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
from genkern.kernels.expression import Value, cdiv, least, most, name, where
from genkern.kernels.families.common import BINARY_NAME, GROUP, SPLITS, reduction
from genkern.kernels.families.gluon_tile import TURNED_BOX, buffer_bytes, columns_held, turned
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
# Of products with scales of blocks, which are promoted to float32 K-block by K-block.
PROMOTED = "cute/promoted_sm90.py"
# Of fp8 with full sums, which are promoted so too, without scales.
FULL_SUMS = "cute/compiled_only/full_sm90.py"
_TURNS = name("turns")
Side = TypeVar("Side")
# What a tile is high at most, and wide, by whether it is one warpgroup's or two share it.
_HIGHEST = {True: 128, False: 256}
_WIDEST = {True: tile.WIDEST, False: tile.WIDEST_OF_TWO}
# Of any alignment: one binary serves all sizes.
_SIZES = (Integer("M", M), Integer("N", N), Integer("K", K))


@dataclass(frozen=True)
class Shape:
    """What tells the forms apart: the schedule, the side, the cluster along M and N, and how C is stored."""

    ping_pong: bool
    swapped: bool
    cluster_m: int
    cluster_n: int
    tma_store: bool

    @property
    def cluster(self) -> int:
        """Programs of a cluster."""
        return self.cluster_m * self.cluster_n

    def stem(self, *, split: bool = False) -> str:
        """What its kernels are called after, those that make parts of K otherwise."""
        schedule = "split" if split else "ping_pong" if self.ping_pong else "cooperative"
        cluster = f"_{self.cluster_m}x{self.cluster_n}" if self.cluster > 1 else ""
        direct = "" if self.tma_store or split else "_direct"
        return f"cute_{schedule}" + "_swapped" * self.swapped + cluster + direct

    def sides(self, along_m: Side, along_n: Side) -> tuple[Side, Side]:
        """What is of M and of N, as that of the side that wgmma's rows go along, the height, and that of the width."""
        return (along_n, along_m) if self.swapped else (along_m, along_n)

    def widths(self, problem: GemmProblem, config: Config) -> tuple[int, int]:
        """Columns of the left one and the right one of two groups that have a tile's 64 rows together; else none and
        all.
        """
        height, width = self.sides(config.BLOCK_SIZE_M, config.BLOCK_SIZE_N)
        beside = not self.ping_pong and height == tile.ROWS and config.num_warps > tile.GROUP_WARPS
        left = tile.left_of(width, turned(problem, self.swapped)[1]) if beside else 0
        return left, width - left

    def part(self, problem: GemmProblem, config: Config) -> int:
        """How much of a group's width goes to C at a time by TMA, 0 where none does."""
        if not self.tma_store:
            return 0
        part_of = tile.rows_part_of if self.swapped else tile.part_of
        left, right = self.widths(problem, config)
        part = part_of(right)
        return part_of(left) if 0 < left < part else part


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
    # Upright a thread has neighbours in a row; from registers they go out together where every row begins with an even
    # element, which nobody promises of the products of a batch (Stride).
    pairs = not (variant.swapped or tma_store or batched) and problem.N % 2 == 0
    c: tuple[Argument, ...] = (Pointer("c_ptr", "c"), *product.extra)
    leading: tuple[Argument, ...] = (Leading("ldc", "c", 1 + pairs),)
    if variant.split:
        c, leading = (Workspace("partial_ptr", product.accumulator),), (Integer("ldc", N), SPLITS)
    if tma_store:
        # Of a batch the rows of a box that are the next product's must not be written: the others go by the pointer.
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
        # What is done to sums is the other kernel's.
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
    """The descriptor of A or B: what each of so many programs loads of a block of the tile's rows.

    That is some of the rows, or, 64 at a time across, some of K.
    """
    box = (rows // sharers, BLOCK_SIZE_K) if k_major else (BLOCK_SIZE_K // sharers, TURNED_BOX)
    transposed = not product.by_name[operand].row_major
    return Map(f"{operand}_desc", operand, box, transposed, tile.SWIZZLE_128)


def _takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    if reason := operands_limit(problem):
        return reason
    if DTYPES[problem.dtype_a].size_bytes == 1 and (not problem.row_major_a or problem.row_major_b):
        return "wgmma takes operands of 8 bits whose rows run along K only (rowMajorA: T, rowMajorB: N)"
    if problem.batch > 1 and problem.batch * max(problem.M, problem.N, problem.K) >= INT32 // 2:
        return "the batch has more rows than 32 bits count"
    return finish_limit(problem) or tma_operands_limit(problem)


def _takes_tma_store(problem: GemmProblem, gpu: Gpu | None) -> str:
    if DTYPES[problem.dtype_c].size_bytes != 2:
        return "this family stores C of 16 bits through TMA"
    return _takes(problem, gpu) or tma_output_limit(problem)


def _shares_of_k(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Each split has a K-block, and what adds them up has so many programs; K of one product, whose steps read A and
    B alone, is split.
    """
    if config.SPLIT_K == 1:
        return ""
    if get_op(problem.op).batched:
        return "this family computes one product, not a batch of them, where it splits K"
    if scales_of(problem) == BLOCKS:
        return "this family reads nothing but A and B in its steps over K where it splits K"
    if is_full(problem):
        return "this family adds up in the matrix units where it splits K (accumulate: fast)"
    if config.SPLIT_K > -(-problem.K // config.BLOCK_SIZE_K):
        return "more splits than K-blocks"
    return splits_limit(problem, config, gpu) or over_c_limit(problem, gpu)


def _legal(shape: Shape, problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """The tile is one for wgmma and its copies, and stages and parts of C fit shared memory."""
    # First, since nothing else of the config is read for it: half of a space's tiles are asked no more.
    across_k = not problem.row_major_a and problem.row_major_b
    whole = config.BLOCK_SIZE_K * DTYPES[problem.dtype_a].size_bytes == tile.BLOCK_BYTES
    if not whole and not (across_k and config.BLOCK_SIZE_K == tile.TURNED_K):
        return f"BLOCK_SIZE_K is what {tile.BLOCK_BYTES} bytes hold, or {tile.TURNED_K} where no operand runs along it"
    block_m, block_n = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N
    height, width = shape.sides(block_m, block_n)
    if height % tile.ROWS or height > _HIGHEST[shape.ping_pong]:
        return f"tiles have 64 or 128 {'columns' if shape.swapped else 'rows'} for each warpgroup"
    groups, promotes = tile.groups_of(height, width, shape.ping_pong), _promotes(problem)
    if is_full(problem) and (shape.ping_pong or shape.swapped or get_op(problem.op).batched):
        return "this family makes full sums of fp8 in cooperative, upright tiles of one product (accumulate)"
    if groups > 2 and promotes:
        return "at most two warpgroups share a tile whose products have scales of blocks, or full sums"
    left, right = shape.widths(problem, config)
    if left and config.num_warps == 2 * tile.GROUP_WARPS and not promotes:
        groups = 2
    if config.num_warps != groups * tile.GROUP_WARPS:
        return f"num_warps is {groups * tile.GROUP_WARPS}: whole warpgroups that multiply such a tile"
    if right > tile.WIDEST:
        return f"a warpgroup multiplies at most {tile.WIDEST} columns"
    if any(k_major and side // sharers > tile.WIDEST for side, k_major, sharers in _shares(shape, problem, config)):
        return f"the copy engine takes at most {tile.WIDEST} rows at a time"
    most_accumulators, of_tile = tile.MOST_ACCUMULATORS[groups], 1 if shape.ping_pong else groups
    accumulators = tile.accumulators(height, width, of_tile)
    if promotes:
        # Beside sums lie products of 64 rows, which one group has, and scales.
        accumulators += tile.accumulators(tile.ROWS, width, 1)
        most_accumulators = tile.MOST_PROMOTED
    if accumulators > most_accumulators:
        return f"a thread would have more than {most_accumulators} accumulators"
    if not (problem.row_major_a and not problem.row_major_b) and problem.batch > 1 and problem.K % config.BLOCK_SIZE_K:
        # To a descriptor the matrices of a batch are one, so that it fills nothing with zeros there.
        return "in a batch what is beyond K is the next product's where an operand does not run along K"
    if problem.batch > 1 and problem.batch * tiles(problem, config) >= INT32 // 2:
        return "more tiles than 32 bits count"
    return ""


def _promotes(problem: GemmProblem) -> bool:
    """Whether products of a K-block are made for themselves, and added up in float32."""
    return scales_of(problem) == BLOCKS or is_full(problem)


def _shares(shape: Shape, problem: GemmProblem, config: Config) -> tuple[tuple[int, bool, int], ...]:
    """Of A and B: a tile's side, whether they run along K, and the programs of a cluster that load it together."""
    of_a = config.BLOCK_SIZE_M, problem.row_major_a, shape.cluster_n
    return of_a, (config.BLOCK_SIZE_N, not problem.row_major_b, shape.cluster_m)


def _shared_bytes(shape: Shape, problem: GemmProblem, config: Config) -> Callable[[int], int]:
    """Shared memory of one program, in bytes, by its stages; the constant of that name in its kernel says the same."""
    height, width = shape.sides(config.BLOCK_SIZE_M, config.BLOCK_SIZE_N)
    groups = config.num_warps // tile.GROUP_WARPS
    parts = groups * tile.ROWS * shape.part(problem, config) * DTYPES[problem.dtype_c].size_bytes
    columns_turned = turned(problem, shape.swapped)[1]
    row_bytes = config.BLOCK_SIZE_K * DTYPES[problem.dtype_a].size_bytes
    stage_bytes = buffer_bytes(height, width, columns_turned) // tile.BLOCK_BYTES * row_bytes

    def taken(stages: int) -> int:
        before_parts = tile.BARRIER_BYTES + stages * stage_bytes
        buffers = tile.MOST_BUFFERS if before_parts + tile.MOST_BUFFERS * parts <= WARPGROUP_SHARED_BYTES else 1
        return before_parts + buffers * parts

    return taken


def _stages(shape: Shape, problem: GemmProblem, config: Config, gpu: Gpu | None) -> Callable[[int], str]:
    """Why a ring of so many stages does not fit beside parts of C."""
    return ring_limit(tile.MOST_STAGES, gpu, _shared_bytes(shape, problem, config))


def _sums(problem: GemmProblem, config: Config, arch: str) -> Sums:
    """One accumulator, whatever the schedule and the cluster, whose programs have tiles of their own."""
    is_split = config.SPLIT_K > 1
    is_scaled = scales_of(problem) == BLOCKS
    return Sums(
        f"wgmma k{instruction_k(problem.dtype_a)}",
        near_shares(problem.K, config.BLOCK_SIZE_K, config.SPLIT_K),
        promoted=config.BLOCK_SIZE_K if _promotes(problem) else 0,
        scaled=is_scaled,
        # The finish of splits is Triton's.
        finish="cute" if is_scaled else "" if is_split else own_finish(problem, "cute"),
    )


@lru_cache(maxsize=64)
def _form_of(shape: Shape) -> Form:
    splits, widest = not shape.ping_pong and not shape.tma_store, _WIDEST[shape.ping_pong]
    turn = Turn(
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
        turn,
        needs=("tma", "wgmma"),
        takes=_takes_tma_store if shape.tma_store else _takes,
        legal=partial(_legal, shape),
        stages=partial(_stages, shape),
        sums=_sums,
        shares=_shares_of_k if splits else any_config,
        # Two groups that share a tile drift apart; those that take turns would not hide each other's promotion.
        promotes=not shape.ping_pong and not shape.swapped,
        widest=widest,
        height_step=tile.ROWS,
        block_m=(tile.WIDTH_STEP, widest) if shape.swapped else (tile.ROWS, _HIGHEST[shape.ping_pong]),
        helper_warps=tile.LOADING_WARPS,
        batches=True,
        splits_k=splits,
    )


def _form(choice: Choice) -> Form:
    cluster = pair_of(str(choice["cluster"]))
    return _form_of(
        Shape(choice["schedule"] == "ping_pong", bool(choice["swapped"]), *cluster, choice["store"] == "tma")
    )


CUTE_WGMMA = Family("cute_wgmma", _form, (SCHEDULE, CLUSTER, STORE, SWAPPED), language="cute")
