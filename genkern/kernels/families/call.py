"""Family, and the Call of a config of it: what a family says of itself, in records that hang on no config's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, capabilities_of
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import (
    Argument,
    Constant,
    Copied,
    Counters,
    Descriptor,
    Integer,
    Leading,
    Pointer,
    Stride,
    Workspace,
    alignment_of,
)
from genkern.kernels.expression import Expression, Value, cdiv, least, name
from genkern.kernels.families.gluon_tile import WIDEST
from genkern.ops.groups import Groups
from genkern.ops.op import Op, get_op, groups_of

# What hangs on the config, by its fields' names.
BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K = (name(f"BLOCK_SIZE_{letter}") for letter in "MNK")
GROUP_SIZE_M, SPLIT_K, NUM_WARPS, NUM_STAGES = map(name, ("GROUP_SIZE_M", "SPLIT_K", "num_warps", "num_stages"))
# The problem's sizes.
M, N, K = map(name, "MNK")
# Products in a call, where the format has batches.
BATCH = name("BATCH")
# SMs or CUs of the device; XCDs of the kind of device that one works for, and how many CUs each has.
UNITS, XCDS, UNITS_PER_XCD = map(name, ("units", "XCDS", "UNITS_PER_XCD"))
# Tiles of C: the first of a call's definitions, where it uses them.
TILES = name("tiles")
TILES_OF_C = ("tiles", cdiv(M, BLOCK_SIZE_M) * cdiv(N, BLOCK_SIZE_N))

Options = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Copy:
    """An operand's copy in the workspace, as it is stored: `rows` of `columns` elements, `pitch` apart, the first one
    `first` elements behind the workspace's address.
    """

    operand: str
    rows: Expression
    columns: Expression
    pitch: Expression
    first: Value


@dataclass(frozen=True)
class Product:
    """A GEMM as kernels see it: `operands` are A, B, C and the others in the order in which kernels take them.

    `accumulator` is "fp32" or "int32". `sums_are_c`: accumulators need no epilogue, and C has their type.
    `starts_early`: as the function of that name says of the architecture. Descriptors are of `copies` where they are.
    """

    problem: GemmProblem
    operands: tuple[Operand, ...]
    accumulator: str
    sums_are_c: bool
    starts_early: bool
    copies: tuple[Copy, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Operand]:
        """The operands by their names."""
        return {operand.name: operand for operand in self.operands}

    @cached_property
    def groups(self) -> Groups | None:
        """How rows go to weights, where there are many."""
        return groups_of(self.problem)

    @cached_property
    def extra(self) -> tuple[Argument, ...]:
        """What a kernel that does all of the product takes besides A, B and C."""
        return _pointers(self.operands[3:])

    @cached_property
    def in_step(self) -> tuple[Argument, ...]:
        """What a kernel that leaves partial sums takes besides A and B."""
        return _pointers(operand for operand in self.operands[3:] if operand.in_step)

    @cached_property
    def at_end(self) -> tuple[Argument, ...]:
        """What a kernel that makes C of partial sums takes besides C."""
        return _pointers(operand for operand in self.operands[3:] if not operand.in_step)

    def leading(self, name: str, operand: str) -> Leading:
        """The operand's leading dimension; codegen uses what divides it without gaps between rows."""
        return Leading(name, operand, alignment_of(self.by_name[operand].storage_shape[-1]))

    def descriptor(self, name: str, operand: str, box: tuple[Value, Value], *, swizzled: bool = False) -> Descriptor:
        """A descriptor for boxes of these rows and columns of the operand, however it is stored, and packed."""
        facts = self.by_name[operand]
        outer, inner = box if facts.row_major else (box[1], box[0])
        packed = cdiv(inner, facts.packed) if facts.packed > 1 else inner
        said = name, operand, (outer, packed), not facts.row_major, swizzled
        copy = next((copy for copy in self.copies if copy.operand == operand), None)
        return Descriptor(*said) if copy is None else Copied(*said, copy.first, copy.pitch)


@dataclass(frozen=True)
class Variant:
    """One kernel text of a module: its name, its template, which dimensions need masks, and what is written out.

    That is `rows` of skinny; in CuTe DSL how many columns of C go out at a time, `part`; and in Gluon how many copies
    bring the columns of a tile, `column_boxes`, and how many take parts of it to C, `c_parts`, each by a descriptor of
    its own. The `cluster` programs of a cluster make one
    tile, or have tiles of their own: `down` of them along the rows that wgmma goes along, `across` along the columns;
    in CuTe DSL along M and along N.
    Of these `ctas` share one (tcgen05.mma's cta_group). `copies`: the operands that realign copies, by letters.
    """

    name: str
    template: str
    mask_m: bool = False
    mask_n: bool = False
    mask_k: bool = False
    split: bool = False
    xcd: bool = False
    cache_modifier: str = "none"
    rows: int = 0
    swapped: bool = False
    cluster: int = 1
    down: int = 1
    across: int = 1
    column_boxes: int = 0
    c_parts: int = 0
    specialized: bool = False
    part: int = 0
    ctas: int = 1
    copies: str = ""
    held: int = 0
    in_parts: bool = False

    @property
    def in_module(self) -> bool:
        """Whether its text is made by a template of the generated module, and in no file of its own."""
        return self.template.endswith(".j2")

    @property
    def side_by_side(self) -> bool:
        """Whether the programs of a cluster have tiles of their own."""
        return self.down * self.across > 1

    @property
    def boxes(self) -> tuple[str, ...]:
        """Its descriptors of operands (families in Gluon)."""
        return ("rows_desc", *(f"columns_desc_{number}" for number in range(self.column_boxes)))

    @property
    def parts(self) -> tuple[str, ...]:
        """Its descriptors of C (families in Gluon)."""
        return tuple(f"c_desc_{number}" for number in range(self.c_parts))


@dataclass(frozen=True)
class Kernel:
    """One kernel of a call.

    `arguments` are those of its parameters, constants last. `grid` is how many programs there are in three dimensions.
    `options` are Triton's; with `takes_amd_options` those of a config's AMD fields that are set come after them.
    `steps`: names of pointers, and of how far they go from one product of a batch to the next (`for_batch`), or from
    the weight of one group to the next (`for_groups`).
    `walks_batch`: its programs walk over the tiles of all products of a batch, so that its grid has no third dimension,
    and its binary is for any step from one product to the next.
    """

    variant: Variant
    arguments: tuple[Argument, ...]
    grid: tuple[Value, Value, Value]
    options: Options
    takes_amd_options: bool = False
    steps: tuple[tuple[str, str], ...] = ()
    walks_batch: bool = False


@dataclass(frozen=True)
class Call:
    """What one call of a config launches, in order, and what it needs.

    `definitions` are values by name, each in terms of those before it, that the others are in terms of. `workspace` is
    in elements of the accumulators' type, `counters` in elements of int32.
    """

    kernels: tuple[Kernel, ...]
    definitions: tuple[tuple[str, Value], ...] = ()
    workspace: Value = 0
    counters: Value = 0


def for_batch(product: Product, call: Call) -> Call:
    """The call for all products of a batch, of formats that have it: they go along the third dimension of the grid, or
    programs walk over them.
    """
    if len(product.operands[0].shape) == 2:
        return call
    return replace(
        call,
        kernels=tuple(_for_batch(product, call, kernel) for kernel in call.kernels),
        workspace=call.workspace and BATCH * call.workspace,
        counters=call.counters and BATCH * call.counters,
    )


def _for_batch(product: Product, call: Call, kernel: Kernel) -> Kernel:
    steps: dict[str, Argument] = {}
    for argument in kernel.arguments:
        step = f"{argument.name.removesuffix('_ptr')}_step"
        if isinstance(argument, Workspace):
            # Whole tiles of sums, or matrices of N columns.
            steps[argument.name] = Integer(step, call.workspace, alignment_of(product.problem.N))
        elif isinstance(argument, Counters):
            steps[argument.name] = Integer(step, call.counters)
        elif isinstance(argument, Pointer) and len((operand := product.by_name[argument.operand]).shape) == 3:
            # Whatever M is: a row without gaps is so long.
            multiple_of = 1 if kernel.walks_batch else alignment_of(operand.storage_shape[-1])
            steps[argument.name] = Stride(step, argument.operand, multiple_of)
    constants = tuple(argument for argument in kernel.arguments if isinstance(argument, Constant))
    arguments = tuple(argument for argument in kernel.arguments if not isinstance(argument, Constant))
    x, y, z = kernel.grid
    return replace(
        kernel,
        arguments=(*arguments, *steps.values(), *constants),
        grid=(x, y, z if kernel.walks_batch else BATCH),
        steps=tuple((pointer, step.name) for pointer, step in steps.items()),
    )


def for_groups(product: Product, call: Call) -> Call:
    """The call for rows in groups, of formats that have them: as many tiles as there may be, and a step of each
    operand that groups have of their own.
    """
    groups = product.groups
    if groups is None:
        return call
    rows = M * groups.top_k if groups.top_k > 1 else M
    tiles_m = (rows + least(groups.count, rows) * (BLOCK_SIZE_M - 1)) // BLOCK_SIZE_M
    if groups.capacity:
        tiles_m = cdiv(groups.capacity, BLOCK_SIZE_M) * groups.count
    tiles = TILES_OF_C[0], tiles_m * cdiv(N, BLOCK_SIZE_N)
    return replace(
        call,
        kernels=tuple(_for_groups(product, kernel) for kernel in call.kernels),
        definitions=tuple(tiles if definition == TILES_OF_C else definition for definition in call.definitions),
    )


def _for_groups(product: Product, kernel: Kernel) -> Kernel:
    steps: dict[str, Argument] = {}
    for argument in kernel.arguments:
        if isinstance(argument, Pointer) and len((operand := product.by_name[argument.operand]).shape) == 3:
            step = f"{argument.name.removesuffix('_ptr')}_step"
            steps[argument.name] = Stride(step, argument.operand, alignment_of(operand.storage_shape[-1]))
    constants = tuple(argument for argument in kernel.arguments if isinstance(argument, Constant))
    arguments = tuple(argument for argument in kernel.arguments if not isinstance(argument, Constant))
    return replace(
        kernel,
        arguments=(*arguments, *steps.values(), *constants),
        steps=tuple((pointer, step.name) for pointer, step in steps.items()),
    )


def takes_any(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Of a family that computes every problem on every GPU that it runs on."""
    return ""


def any_config(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Of a family that asks for nothing besides what holds for all (genkern.kernels.legality)."""
    return ""


@dataclass(frozen=True)
class Family:
    """Facts of one family, the text of its main kernel for a config (`variant`), and what a `call` of it launches.

    What it cannot compute, as why not or "", in three parts (genkern.kernels.legality says when they are asked):
    `takes`: problems; without a GPU, as far as that holds on all. `legal`: configs, and of these reads neither
    GROUP_SIZE_M nor SPLIT_K. `shares`: a SPLIT_K, and then all larger ones; of the other fields this reads
    BLOCK_SIZE_M, _N and _K.

    `uses_tma`: loads A and B through descriptors; `stores_tma`: stores C so.
    `splits_k`: takes SPLIT_K above 1.
    `runs_on_amd`: has an AMD form. `interpreted`: runs under Triton's interpreter (Gluon does not).
    `uses_dot`: multiplies by tl.dot or wgmma, so that blocks have 16 elements at least.
    `steps`: multiplies by the format's step over K, so that operands may be read there (Operand.in_step).
    `converts`: without that, what it has loaded of B becomes numbers as the format says (Op.converts_b).
    `promotes`: without `steps`, the products of each buffer of its ring are scaled as the format says (Op.promotes).
    `in_registers`: without `steps`, B's elements become numbers in registers as the format says (Op.in_registers).
    `aligned_rows`: without `uses_tma`, its loads ask for rows of A and B that begin at multiples of 16 bytes, too.
    `width_step`: the side of a tile that wgmma's rows do not go along may be any multiple of this, not only a power of
    two (0: it may not), up to `widest`. That is BLOCK_SIZE_N, or with swapped operands BLOCK_SIZE_M. `height_step`: the
    other side may be any multiple of this (0: a power of two).
    `helper_warps`: warps that it runs beyond num_warps.
    `places_loads`: takes xcd_remap and cache_modifier.
    `has_semaphore`: one program of a tile adds up its splits, in a fixed order, in the same kernel.
    `deterministic`: two runs agree to the bit, whatever the type; see is_deterministic for those that are not.
    `swaps_operands`: computes C transposed, so that N takes the long side of the matrix instruction.
    `split_apart`: has a kernel of its own for SPLIT_K above 1.
    `cluster`: programs that make a tile together, each over a share of K (sm_90: a cluster's blocks).
    `side_by_side`: programs of a cluster along M and along N that have tiles of their own, and load for one another.
    `least_block_m` to `most_block_m`: its BLOCK_SIZE_M. `most_block_k`: its largest BLOCK_SIZE_K.
    `kernels_before`: kernels that it launches before its main one. `realigns`: what it copies first has rows that start
    anywhere; it has the kernel of the family of that name on the copies.
    `language`: what its kernels are written in, "triton" (Gluon too) or "cute"; what is not Triton's is no part of a
    generated module, and `Variant.template` names its file. Kernels around the main one may be Triton's all the same.
    `batches`: its kernels find the product of a batch that they are for (`for_batch`).
    `groups`: its kernels find the group that a tile's rows are of (`for_groups`). `gathers`: also rows of A that lie
    anywhere, and rows of C that are sums of several.
    """

    name: str
    variant: Callable[[GemmProblem, Config], Variant]
    call: Callable[[Product, Variant], Call]
    takes: Callable[[GemmProblem, Gpu | None], str] = takes_any
    legal: Callable[[GemmProblem, Config, Gpu | None], str] = any_config
    shares: Callable[[GemmProblem, Config, Gpu | None], str] = any_config
    uses_tma: bool = False
    stores_tma: bool = False
    splits_k: bool = False
    runs_on_amd: bool = False
    interpreted: bool = True
    uses_dot: bool = True
    steps: bool = True
    converts: bool = False
    promotes: bool = False
    in_registers: bool = False
    aligned_rows: bool = False
    width_step: int = 0
    widest: int = WIDEST
    height_step: int = 0
    helper_warps: int = 0
    places_loads: bool = False
    has_semaphore: bool = False
    deterministic: bool = True
    swaps_operands: bool = False
    split_apart: bool = False
    cluster: int = 1
    side_by_side: tuple[int, int] = (1, 1)
    least_block_m: int = 16
    most_block_m: int = 1024
    most_block_k: int = 1024
    kernels_before: int = 0
    realigns: str = ""
    batches: bool = False
    groups: bool = False
    gathers: bool = False
    language: str = "triton"

    @property
    def in_clusters(self) -> bool:
        """Whether several programs are a cluster, for whatever reason."""
        return self.cluster > 1 or self.side_by_side != (1, 1)

    @property
    def in_gluon(self) -> bool:
        """Whether its kernel that multiplies is written in Gluon, for wgmma."""
        return bool(self.width_step) and self.language == "triton"


def _pointers(operands: Iterable[Operand]) -> tuple[Argument, ...]:
    return tuple(Pointer(f"{operand.name}_ptr", operand.name) for operand in operands)


@lru_cache(maxsize=256)
def product_of(problem: GemmProblem, op: Op, arch: str) -> Product:
    """What kernels see of a problem on `arch`."""
    return Product(problem, op.operands(problem), op.accumulator(problem), sums_are_c(problem), starts_early(arch))


def sums_are_c(problem: GemmProblem) -> bool:
    """Whether the accumulators need no epilogue: neither scale, bias nor activation, and C has their type."""
    op = get_op(problem.op)
    return not op.finishes(problem) and problem.dtype_c == op.accumulator(problem)


def starts_early(arch: str) -> bool:
    """Whether a kernel may be on the device, and wait there, before the one that it depends on has ended.

    CUDA's programmatic dependent launch. Triton's option is launch_pdl.
    """
    return capabilities_of(arch).dependent_launches
