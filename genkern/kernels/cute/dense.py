"""The families in CuTe DSL for sm_90 (templates/cute/dense_sm90.py): a persistent GEMM by TMA and wgmma.

In the cooperative ones up to three warpgroups share a tile; in ping-pong each of two has its own, and while one
multiplies the other brings its sums to C. Programs of a cluster of two to eight have tiles beside each other, and load
for one another.
`swapped` ones compute C^T = B^T A^T: the 64 rows of wgmma go along N, and BLOCK_SIZE_M is any multiple of 8.
`direct` ones store C from registers, for rows of C off 16 bytes and for float32; the others by TMA, but for `split`
ones: these are cooperative and share K out too, and sums go to the workspace, where a kernel in Triton adds them up.

NVIDIA's guide to autotuning CuTe DSL GEMMs calls this cluster_shape_mn and use_tma_store, and the blocks mma_tiler_mn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import Argument, Constant, Integer, Leading, Map, Pointer, Workspace
from genkern.kernels.cute import tile
from genkern.kernels.cute.dense_product import (
    BLOCKS,
    dense_family,
    finish_limit,
    operands_limit,
    product_constants,
    scales_of,
)
from genkern.kernels.expression import Value, cdiv, least, most, name, where
from genkern.kernels.families.call import (
    BATCH,
    BLOCK_SIZE_K,
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
    NUM_STAGES,
    NUM_WARPS,
    SPLIT_K,
    UNITS,
    Call,
    K,
    Kernel,
    M,
    N,
    Product,
    Variant,
)
from genkern.kernels.families.common import BINARY_NAME, GROUP, SPLITS, reduction
from genkern.kernels.families.gluon_tile import TURNED_BOX, buffer_bytes, columns_held, turned
from genkern.kernels.families.limits import (
    INT32,
    over_c_limit,
    splits_limit,
    tiles,
    tma_operands_limit,
    tma_output_limit,
    units_in_clusters,
)
from genkern.ops.op import get_op

TEMPLATE = "cute/dense_sm90.py"
# Of products with scales of blocks, which are promoted to float32 K-block by K-block.
PROMOTED = "cute/promoted_sm90.py"
# From so many programs on clusters, which leave SMs over (units_in_clusters), are for one wave, or two.
LARGE_CLUSTER = 4
_CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
_TURNS = name("turns")
Side = TypeVar("Side")
# What a tile is high at most, and wide, by whether it is one warpgroup's or two share it.
_HIGHEST = {True: 128, False: 256}
_WIDEST = {True: tile.WIDEST, False: tile.WIDEST_OF_TWO}
# Of any alignment: one binary serves all sizes.
_SIZES = (Integer("M", M), Integer("N", N), Integer("K", K))


@dataclass(frozen=True)
class Form:
    """What tells the families apart: the schedule, the cluster along M and N, how C is stored, and if K is split."""

    ping_pong: bool
    swapped: bool
    cluster_m: int
    cluster_n: int
    tma_store: bool
    split: bool = False

    @property
    def cluster(self) -> int:
        """Programs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def schedule(self) -> str:
        """The name without the cluster and the way to store."""
        schedule = "split" if self.split else "ping_pong" if self.ping_pong else "cooperative"
        return f"cute_{schedule}" + ("_swapped" if self.swapped else "")

    @property
    def name(self) -> str:
        """Of the family."""
        cluster = f"_{self.cluster_m}x{self.cluster_n}" if self.cluster > 1 else ""
        return self.schedule + cluster + ("" if self.tma_store or self.split else "_direct")

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


def _forms() -> Iterator[Form]:
    for swapped in (False, True):
        for ping_pong in (False, True):
            for cluster_m, cluster_n in _CLUSTERS:
                for tma_store in (True, False):
                    yield Form(ping_pong, swapped, cluster_m, cluster_n, tma_store)
        for cluster_m, cluster_n in _CLUSTERS:
            yield Form(False, swapped, cluster_m, cluster_n, tma_store=False, split=True)


def _variant(problem: GemmProblem, config: Config) -> Variant:
    form = FORMS[config.family]
    part = form.part(problem, config)
    return Variant(
        f"matmul_{form.name}" + (f"_p{part}" if part else ""),
        PROMOTED if scales_of(problem) == BLOCKS else TEMPLATE,
        cluster=form.cluster,
        part=part,
        split=form.split,
        specialized=form.ping_pong,
        swapped=form.swapped,
        down=form.cluster_m,
        across=form.cluster_n,
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
    buffers = where(before_parts + part_bytes * tile.MOST_BUFFERS > tile.SHARED_BYTES, 1, tile.MOST_BUFFERS)
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
    if gpu is not None and not gpu.has.wgmma:
        return f"this family is written for wgmma, which {gpu.arch} does not have"
    if reason := operands_limit(problem):
        return reason
    if DTYPES[problem.dtype_a].size_bytes == 1 and (not problem.row_major_a or problem.row_major_b):
        return "wgmma takes operands of 8 bits whose rows run along K only (rowMajorA: T, rowMajorB: N)"
    if problem.batch > 1 and problem.batch * max(problem.M, problem.N, problem.K) >= INT32 // 2:
        return "the batch has more rows than 32 bits count"
    return finish_limit(problem) or tma_operands_limit(problem, gpu)


def _takes_tma_store(problem: GemmProblem, gpu: Gpu | None) -> str:
    if DTYPES[problem.dtype_c].size_bytes != 2:
        return "this family stores C of 16 bits through TMA"
    return _takes(problem, gpu) or tma_output_limit(problem)


def _shares_of_k(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Each split has a K-block, and what adds them up has so many programs."""
    if not FORMS[config.family].split:
        return ""
    if config.SPLIT_K > -(-problem.K // config.BLOCK_SIZE_K):
        return "more splits than K-blocks"
    return splits_limit(problem, config, gpu) or over_c_limit(problem, gpu)


def _legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """The tile is one for wgmma and its copies, and stages and parts of C fit shared memory."""
    form, block_m, block_n = FORMS[config.family], config.BLOCK_SIZE_M, config.BLOCK_SIZE_N
    height, width = form.sides(block_m, block_n)
    if height % tile.ROWS or height > _HIGHEST[form.ping_pong]:
        return f"tiles have 64 or 128 {'columns' if form.swapped else 'rows'} for each warpgroup"
    groups = tile.groups_of(height, width, form.ping_pong)
    if groups > 2 and scales_of(problem) == BLOCKS:
        return "at most two warpgroups share a tile whose products have scales of blocks"
    left, right = form.widths(problem, config)
    if left and config.num_warps == 2 * tile.GROUP_WARPS and scales_of(problem) != BLOCKS:
        groups = 2
    if config.num_warps != groups * tile.GROUP_WARPS:
        return f"num_warps is {groups * tile.GROUP_WARPS}: whole warpgroups that multiply such a tile"
    if right > tile.WIDEST:
        return f"a warpgroup multiplies at most {tile.WIDEST} columns"
    if any(k_major and side // sharers > tile.WIDEST for side, k_major, sharers in _shares(problem, config)):
        return f"the copy engine takes at most {tile.WIDEST} rows at a time"
    across_k = not problem.row_major_a and problem.row_major_b
    whole = config.BLOCK_SIZE_K * DTYPES[problem.dtype_a].size_bytes == tile.BLOCK_BYTES
    if not whole and not (across_k and config.BLOCK_SIZE_K == tile.TURNED_K):
        return f"BLOCK_SIZE_K is what {tile.BLOCK_BYTES} bytes hold, or {tile.TURNED_K} where no operand runs along it"
    most_accumulators, of_tile = tile.MOST_ACCUMULATORS[groups], 1 if form.ping_pong else groups
    accumulators = tile.accumulators(height, width, of_tile)
    if scales_of(problem) == BLOCKS:
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
    if not 2 <= config.num_stages <= tile.MOST_STAGES:
        return "a ring needs a stage to fill besides the one that is read, and room for its barriers"
    if gpu is not None and shared_bytes(problem, config) > gpu.shared_bytes_per_block:
        return f"stages and parts of C take more than the {gpu.shared_bytes_per_block:,} bytes of shared memory"
    return ""


def _shares(problem: GemmProblem, config: Config) -> tuple[tuple[int, bool, int], ...]:
    """Of A and B: a tile's side, whether they run along K, and the programs of a cluster that load it together."""
    form = FORMS[config.family]
    of_a = config.BLOCK_SIZE_M, problem.row_major_a, form.cluster_n
    return of_a, (config.BLOCK_SIZE_N, not problem.row_major_b, form.cluster_m)


def shared_bytes(problem: GemmProblem, config: Config) -> int:
    """Shared memory of one program, in bytes; the constant of that name in its kernel says the same."""
    form = FORMS[config.family]
    height, width = form.sides(config.BLOCK_SIZE_M, config.BLOCK_SIZE_N)
    groups = config.num_warps // tile.GROUP_WARPS
    parts = groups * tile.ROWS * form.part(problem, config) * DTYPES[problem.dtype_c].size_bytes
    columns_turned = turned(problem, form.swapped)[1]
    row_bytes = config.BLOCK_SIZE_K * DTYPES[problem.dtype_a].size_bytes
    stage_bytes = buffer_bytes(height, width, columns_turned) // tile.BLOCK_BYTES * row_bytes
    before_parts = tile.BARRIER_BYTES + config.num_stages * stage_bytes
    buffers = tile.MOST_BUFFERS if before_parts + tile.MOST_BUFFERS * parts <= tile.SHARED_BYTES else 1
    return before_parts + buffers * parts


FORMS = {form.name: form for form in _forms()}
SCHEDULES = tuple(dict.fromkeys(form.schedule for form in FORMS.values()))
CUTE_DENSE = tuple(
    dense_family(
        form.name,
        _variant,
        _call,
        takes=_takes_tma_store if form.tma_store else _takes,
        legal=_legal,
        shares=_shares_of_k,
        # Two groups that share a tile drift apart; those that take turns would not hide each other's promotion.
        promotes=not form.ping_pong and not form.swapped and not form.split,
        tma_store=form.tma_store,
        swapped=form.swapped,
        width_step=tile.WIDTH_STEP,
        widest=_WIDEST[form.ping_pong],
        height_step=tile.ROWS,
        block_m=(tile.WIDTH_STEP, _WIDEST[form.ping_pong]) if form.swapped else (tile.ROWS, _HIGHEST[form.ping_pong]),
        helper_warps=tile.LOADING_WARPS,
        batches=not form.split,
        splits_k=form.split,
    )
    for form in FORMS.values()
)
