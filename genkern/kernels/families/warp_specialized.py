"""warp_specialized (Gluon, wgmma): one warp loads through TMA, the other warps multiply.

One program per SM walks over the tiles of C. With SPLIT_K, programs share the tiles beyond the last full wave. With
`cluster_k`, each tile has a cluster, whose programs compute it together, each over a share of K. With `cluster`, two
programs have tiles side by side and load for each other. Rows in groups use none of these; they have a kernel of their
own, which finds the group of each tile.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from genkern.gemm.columns import Column, Refusals, either
from genkern.gemm.columns import least as smaller
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpu import WARPGROUP_SHARED_BYTES, Gpu
from genkern.gemm.parameter import CLUSTER, CLUSTER_K, REALIGNED, SWAPPED, pair_of
from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.contract.argument import (
    WIDTH,
    Argument,
    Constant,
    Counters,
    Descriptor,
    Descriptors,
    Integer,
    Workspace,
)
from genkern.kernels.contract.call import Call, Kernel, Options
from genkern.kernels.contract.cost import EDGES, SWAPPED_EDGES, Cost
from genkern.kernels.contract.expression import Value, cdiv, evaluate_columns, least, most, name, where
from genkern.kernels.contract.family import Choice, Family
from genkern.kernels.contract.gluon_tile import (
    BLOCK_BYTES,
    EIGHT,
    MOST_BUFFERS,
    RING_BYTES,
    STORED,
    TURNED_BOX,
    WIDEST,
    Tile,
    columns_held,
    parts_of,
    powers_of,
    ring_k,
    scale_bytes,
    tile_of,
    tile_refusals,
    turned,
)
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.symbols import (
    BLOCK_SIZE_K,
    BLOCK_SIZE_M,
    BLOCK_SIZE_N,
    NUM_STAGES,
    NUM_WARPS,
    SPLIT_K,
    TILES,
    TILES_OF_C,
    UNITS,
    K,
    M,
    N,
)
from genkern.kernels.contract.traits import KernelTraits, TileLimits, any_config
from genkern.kernels.contract.variant import Variant
from genkern.kernels.families.alignment_copy import with_alignment_copies
from genkern.kernels.families.common import (
    BINARY_NAME,
    C_POINTER,
    GROUP,
    leading,
    sizes,
    slot_elements,
    slot_rows,
    slot_sums,
)
from genkern.kernels.families.limits import tiles, tma_operands_limit, tma_output_limit
from genkern.kernels.families.sum_orders import of_ring
from genkern.ops.accumulate import promotes_products
from genkern.ops.op import get_op, groups_of

# Registers are assigned to whole warpgroups, so the one loading warp costs a group of four.
HELPER_WARPS = 4
# Element sizes, in bytes, of the operands that the kernels multiply.
_OPERAND_BYTES = (1, 2)
_SHAPE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_stages")
# Registers per thread if one program has the whole SM: 65,536 divided by its threads, in steps of 8.
MAX_REGISTERS = least(256, 65536 // ((NUM_WARPS + HELPER_WARPS) * 32) // 8 * 8)
# Tiles beyond the last full wave, and the programs that share them: all programs, or SPLIT_K per tile if that is fewer.
# Every sharing program has at least one K-block.
REST, SHARERS = name("rest"), name("sharers")
SHARES = (
    TILES_OF_C,
    ("rest", TILES % UNITS),
    ("sharers", most(1, least(UNITS, REST * least(SPLIT_K, cdiv(K, BLOCK_SIZE_K))))),
)


class _Shape(NamedTuple):
    """What distinguishes the forms: swapped operands, programs that share K, programs side by side along M and N."""

    swapped: bool
    cluster_k: int
    cluster: tuple[int, int]

    @property
    def stem(self) -> str:
        swapped = "_swapped" * self.swapped
        beside = "" if self.cluster == (1, 1) else f"_{self.cluster[0]}x{self.cluster[1]}"
        return f"warp_specialized{swapped}{beside}" + f"_cluster{self.cluster_k}" * (self.cluster_k > 1)

    @property
    def down_across(self) -> tuple[int, int]:
        """Programs with tiles of their own: (along wgmma's rows, along wgmma's columns)."""
        along_m, along_n = self.cluster
        return (along_n, along_m) if self.swapped else (along_m, along_n)

    def sides(self, config: Config | ConfigTable) -> tuple[Column, Column]:
        """Return the sides of a tile: (along wgmma's rows, along wgmma's columns)."""
        upright = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N
        return upright[::-1] if self.swapped else upright

    @property
    def is_alone(self) -> bool:
        """Whether the programs form no clusters."""
        return self.cluster_k == 1 and self.cluster == (1, 1)


def _variant(shape: _Shape, problem: GemmProblem, config: Config) -> Variant:
    split = config.SPLIT_K > 1 and shape.is_alone
    in_groups = groups_of(problem) is not None
    width = config.BLOCK_SIZE_M if shape.swapped else config.BLOCK_SIZE_N
    down, across = shape.down_across
    column_boxes = 1 if turned(problem, shape.swapped)[1] else len(powers_of(width // down))
    stored = _stored(shape, problem, config)
    c_parts = len(parts_of(width, shape.cluster_k, stored))
    name = f"matmul_{shape.stem}_b{column_boxes}" + (
        f"_c{c_parts}" if shape.cluster_k > 1 or c_parts != column_boxes else ""
    )
    return Variant(
        name + ("_groups" if in_groups else "_split" if split else ""),
        f"gemm/warp_specialized{'_groups' if in_groups else ''}.py.j2",
        split=split,
        swapped=shape.swapped,
        cluster=shape.cluster_k * down * across,
        down=down,
        across=across,
        column_boxes=column_boxes,
        c_parts=c_parts,
    )


def _ring_k(product: Product) -> int:
    return ring_k(DTYPES[product.problem.dtype_a].size_bytes)


def _boxes(product: Product, variant: Variant) -> tuple[Argument, ...]:
    """Return the descriptors of the operand along wgmma's rows, of the parts of the other operand and of C's parts."""
    width, height = (BLOCK_SIZE_M, BLOCK_SIZE_N) if variant.swapped else (BLOCK_SIZE_N, BLOCK_SIZE_M)

    def box(name: str, operand: str, box: tuple[Value, Value]) -> Descriptor:
        return product.descriptor(name, operand, box, swizzled=True)

    depth = _ring_k(product)
    rows_turned, columns_turned = turned(product.problem, variant.swapped)
    part = TURNED_BOX if rows_turned else height // variant.across
    of_columns = TURNED_BOX if columns_turned else WIDTH
    if variant.swapped:
        rows, columns = box("rows_desc", "b", (depth, part)), box("columns_desc", "a", (of_columns, depth))
        c = box("c_desc", "c", (WIDTH, height))
    else:
        rows, columns = box("rows_desc", "a", (part, depth)), box("columns_desc", "b", (depth, of_columns))
        c = box("c_desc", "c", (height, WIDTH))
    # The programs that share K load all columns, and each stores a share of them.
    if variant.side_by_side:
        parts = Descriptors(c, variant.c_parts, width, 1, _most_stored(product.problem, variant.swapped))
    else:
        parts = Descriptors(c, variant.c_parts, width, variant.cluster)
    if columns_turned:
        return rows, replace(columns, name="columns_desc_0"), parts
    return rows, Descriptors(columns, variant.column_boxes, width // variant.down), parts


@lru_cache(maxsize=64)
def _most_stored(problem: GemmProblem, swapped: bool) -> Value:
    """Return the largest number of columns of C that are stored at a time.

    It is WIDEST (no limit) if all fit beside the ring, else 64 or 32.

    If not all fit beside the ring, C goes through two buffers in turn.
    """
    width, height = (BLOCK_SIZE_M, BLOCK_SIZE_N) if swapped else (BLOCK_SIZE_N, BLOCK_SIZE_M)
    held = columns_held(width, turned(problem, swapped)[1])
    buffers = NUM_STAGES * (BLOCK_SIZE_K // ring_k(DTYPES[problem.dtype_a].size_bytes))
    ring = buffers * (height + held) * RING_BYTES + BLOCK_BYTES
    column = height * DTYPES[problem.dtype_c].size_bytes
    some, few = STORED
    in_turns = ring + column * (width % some + 2 * some)
    return where(
        ring + column * width > WARPGROUP_SHARED_BYTES, where(in_turns > WARPGROUP_SHARED_BYTES, few, some), WIDEST
    )


def _stored(shape: _Shape, problem: GemmProblem, configs: Config | ConfigTable) -> Column:
    """Return the value of `_most_stored`. Programs without neighbours store all columns at once."""
    if shape.cluster == (1, 1):
        return WIDEST
    return evaluate_columns(_most_stored(problem, shape.swapped), {name: getattr(configs, name) for name in _SHAPE})


def _call(product: Product, variant: Variant) -> Call:
    arguments = [*_boxes(product, variant)]
    if product.groups is not None:
        # If a group ends inside a tile, C is stored through its pointer. Slot rows are always stored through pointers.
        arguments += [C_POINTER, slot_rows(product)] if product.groups.summed else [C_POINTER, *leading(product, "c")]
    if variant.split:
        arguments += [Workspace("partial_ptr", product.accumulator), Counters("ready_ptr")]
    arguments += [*product.extra, *sizes(product), GROUP]
    if variant.split:
        arguments += [Integer("WHOLE_TILES", TILES - REST), Integer("SHARERS", SHARERS)]
    together = BLOCK_SIZE_K // _ring_k(product)
    arguments += [
        BINARY_NAME,
        Constant("BLOCK_SIZE_M", BLOCK_SIZE_M),
        Constant("BLOCK_SIZE_N", BLOCK_SIZE_N),
        Constant("STAGES", NUM_STAGES * together),
        Constant("MOST", _most_stored(product.problem, variant.swapped))
        if variant.side_by_side
        else Constant("TOGETHER", together),
        Constant("num_warps", NUM_WARPS),
    ]
    # There is one program per SM, so it may use all registers of the SM.
    options: Options = (("num_warps", NUM_WARPS), ("maxnreg", MAX_REGISTERS))
    if variant.side_by_side:
        return _side_by_side(variant, arguments, options)
    if variant.cluster > 1:
        return _launched(variant, arguments, TILES, options)
    if not variant.split:
        call = _launched(variant, arguments, least(UNITS, TILES), options)
        if product.groups is None or not product.groups.summed:
            return call
        return replace(call, kernels=(*call.kernels, slot_sums(product)), workspace=slot_elements(product))
    kernel = Kernel(variant, tuple(arguments), (where(TILES > REST, UNITS, SHARERS), 1, 1), options)
    return Call((kernel,), SHARES, SHARERS * BLOCK_SIZE_M * BLOCK_SIZE_N, SHARERS)


def _launched(variant: Variant, arguments: list[Argument], programs: Value, options: Options) -> Call:
    return Call((Kernel(variant, tuple(arguments), (programs, 1, 1), options),), (TILES_OF_C,))


def _side_by_side(variant: Variant, arguments: list[Argument], options: Options) -> Call:
    """Return a launch of as many clusters as fit on the GPU. A cluster computes one tile per program at a time."""
    along_m, along_n = (variant.across, variant.down) if variant.swapped else (variant.down, variant.across)
    turns = cdiv(M, BLOCK_SIZE_M * along_m) * cdiv(N, BLOCK_SIZE_N * along_n)
    clusters = least(most(1, UNITS // variant.cluster), name("turns"))
    return Call((Kernel(variant, tuple(arguments), (clusters, 1, 1), options),), (("turns", turns),))


def _takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Require operands of 8 or 16 bits that wgmma can read and TMA can load, and a C that TMA can store."""
    element_bytes = DTYPES[problem.dtype_a].size_bytes
    if element_bytes not in _OPERAND_BYTES or DTYPES[problem.dtype_b].size_bytes != element_bytes:
        return f"this family takes operands of {' or '.join(str(8 * size) for size in _OPERAND_BYTES)} bits"
    if element_bytes == 1 and (not problem.row_major_a or problem.row_major_b):
        return "wgmma takes 8-bit operands only if they are contiguous along K (rowMajorA: T, rowMajorB: N)"
    if (groups := groups_of(problem)) is not None:
        if groups.gathered:
            return "TMA loads consecutive rows only, not rows gathered by token"
        if problem.row_major_b:
            return "for groups, TMA reads zeros beyond K only if weights are contiguous along K (rowMajorB: N)"
    return tma_operands_limit(problem) or tma_output_limit(problem)


def _tile(shape: _Shape, problem: GemmProblem, configs: ConfigTable) -> Tile:
    """Return the shared memory of the tiles."""
    columns_turned = turned(problem, shape.swapped)[1]
    types = problem.dtype_a, problem.dtype_c
    return tile_of(*shape.sides(configs), configs.BLOCK_SIZE_K, *types, columns_turned, shape.cluster_k)


def _legal(shape: _Shape, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require a tile that wgmma can compute, and products that the kernel can promote."""
    yield from tile_refusals(
        *shape.sides(configs),
        configs.BLOCK_SIZE_K,
        configs.num_warps,
        problem.dtype_a,
        turned(problem, shape.swapped),
        shape.down_across,
    )
    if shape.cluster != (1, 1) and gpu is not None and promotes_products(problem, gpu.arch):
        yield True, "programs with tiles side by side add up in the tensor cores only (accumulate: fast)"
    if (op := get_op(problem.op)).promoted(problem):
        _, block_n, _ = op.shared_scale(problem)
        if not shape.swapped and block_n % EIGHT:
            yield (
                True,
                "products are scaled eight columns at a time, but a scale covers columns that are no multiple of eight",
            )


def _stages(shape: _Shape, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require that the ring, the staged C and the partial sums of other programs fit shared memory."""
    tile = _tile(shape, problem, configs)
    rows, width = shape.sides(configs)
    scales = 0
    if (op := get_op(problem.op)).promoted(problem):
        scales = scale_bytes(rows, width, shape.swapped, op.shared_scale(problem)[1])
    buffers = configs.num_stages * tile.together
    yield buffers <= tile.together, "a ring needs a buffer to read besides the buffers that are filled together"
    yield buffers > MOST_BUFFERS, f"the barriers of more than {MOST_BUFFERS} buffers do not fit their block"
    ring = buffers * (tile.buffer_bytes + scales) + tile.behind_ring
    # The kernels expect the ring at the start of shared memory, which is where Triton places the largest allocation.
    yield tile.part_bytes >= ring, "the ring must be larger than the part of C in shared memory"
    if gpu is None:
        return
    stored, c_bytes = _stored(shape, problem, configs), tile.c_bytes
    c_bytes = either(stored < width, c_bytes // width * (width % stored + 2 * stored), c_bytes)
    most_bytes = gpu.shared_bytes_per_block
    yield ring + c_bytes > most_bytes, f"ring and C need more than the {most_bytes:,} bytes of shared memory"


def _shares(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """The K-blocks of the tiles beyond the last full wave are numbered across all sharing programs, in 32 bits."""
    if gpu is None:
        return
    rest = tiles(problem, configs) % gpu.compute_units
    sharers = smaller(gpu.compute_units, rest * configs.SPLIT_K)
    blocks = -(-problem.K // ring_k(DTYPES[problem.dtype_a].size_bytes))
    yield (
        (configs.SPLIT_K > 1) & ((sharers + 1) * rest * blocks >= INT32),
        "the shared tiles have more K-blocks than 32 bits count",
    )


def _formed(shape: _Shape) -> KernelTraits:
    # Programs that share columns load multiples of eight columns each.
    step = max(8 if shape.swapped else 16, EIGHT * shape.down_across[0])
    return KernelTraits(
        shape.stem,
        partial(_variant, shape),
        _call,
        takes=_takes,
        legal=partial(_legal, shape),
        stages=partial(_stages, shape),
        shares=_shares if shape.is_alone else any_config,
        sums=partial(of_ring, shape.cluster_k),
        cost=Cost(SWAPPED_EDGES if shape.swapped else EDGES, reduces="shares"),
        sides=TileLimits(least_m=8 if shape.swapped else 16, width_step=step),
        reads="promoted" if shape.cluster == (1, 1) else "",
        uses_tma=True,
        needs=("tma", "wgmma"),
        stores_tma=True,
        splits_k=shape.is_alone,
        split_apart=shape.is_alone,
        interpreted=False,
        in_ring=True,
        helper_warps=HELPER_WARPS,
        swapped=shape.swapped,
        cluster_k=shape.cluster_k,
        cluster=shape.cluster,
        groups=shape.is_alone,
        gathers=shape.is_alone,
    )


@lru_cache(maxsize=64)
def _form_of(shape: _Shape, is_realigned: bool) -> KernelTraits | str:
    if shape.cluster_k > 1 and (shape.cluster != (1, 1) or not shape.swapped):
        return "cluster_k is for swapped tiles, and not together with cluster"
    if is_realigned and not shape.is_alone:
        return "realigned operands and clusters exclude each other"
    return with_alignment_copies(_formed(shape)) if is_realigned else _formed(shape)


def _form(choice: Choice) -> KernelTraits | str:
    cluster = pair_of(str(choice["cluster"]))
    return _form_of(_Shape(bool(choice["swapped"]), int(choice["cluster_k"]), cluster), bool(choice["realigned"]))


WARP_SPECIALIZED = Family("warp_specialized", _form, (CLUSTER.of("1x1", "2x1", "1x2"), CLUSTER_K, SWAPPED, REALIGNED))
