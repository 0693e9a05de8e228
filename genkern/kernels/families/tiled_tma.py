"""tiled_tma: like tiled, with operands loaded through TMA. The last program of each tile adds up its splits.

With reduce = kernel a second kernel adds them up. `swapped` is meant for M up to 128: N takes the long side of the
matrix instruction.
"""

from __future__ import annotations

from functools import partial

from genkern.gemm.columns import Refusals
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import Gpu
from genkern.gemm.parameter import REALIGNED, REDUCE, SWAPPED
from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.contract.argument import Descriptor, Workspace
from genkern.kernels.contract.call import Call
from genkern.kernels.contract.cost import SWAPPED_EDGES, Cost
from genkern.kernels.contract.family import Choice, Family
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.symbols import BLOCK_SIZE_K, BLOCK_SIZE_M, BLOCK_SIZE_N, SPLIT_K, TILES, TILES_OF_C, M, N
from genkern.kernels.contract.traits import KernelTraits, TileLimits
from genkern.kernels.contract.variant import Variant
from genkern.kernels.families.alignment_copy import with_alignment_copies
from genkern.kernels.families.common import (
    C_POINTER,
    GROUP,
    SPLIT_TILES,
    SPLITS,
    leading,
    main_kernel,
    masked_variant,
    of_groups,
    reduction,
    sizes,
    sums,
    when_split,
)
from genkern.kernels.families.limits import (
    dot_limit,
    over_c_limit,
    splits_limit,
    tma_box_limit,
    tma_operands_limit,
)
from genkern.kernels.families.sum_orders import of_dot
from genkern.ops.op import groups_of


def _variant(stem: str, problem: GemmProblem, config: Config) -> Variant:
    # Gathered rows are loaded through pointers, which need a mask along K.
    groups = groups_of(problem)
    return masked_variant(stem, problem, config, clips_k=groups is None or not groups.gathered)


def _operands(product: Product) -> tuple[Descriptor, Descriptor]:
    a = product.descriptor("a_desc", "a", (BLOCK_SIZE_M, BLOCK_SIZE_K))
    return a, product.descriptor("b_desc", "b", (BLOCK_SIZE_K, BLOCK_SIZE_N))


def _call(product: Product, variant: Variant) -> Call:
    a, b = _operands(product)
    if product.groups and product.groups.sorted_slots:
        return of_groups(product, variant, a, b, (GROUP, SPLITS), TILES, SPLIT_K)
    numbers = (*sizes(product), *leading(product, "c"), GROUP, SPLITS)
    kernel = main_kernel(variant, (a, b, C_POINTER, *sums(product), *product.extra, *numbers), TILES, SPLIT_K)
    return Call((kernel,), (TILES_OF_C,), when_split(SPLIT_TILES), when_split(TILES))


def _split_variant(problem: GemmProblem, config: Config) -> Variant:
    split = config.SPLIT_K > 1
    return masked_variant("split_tma", problem, config, split=split, clips_k=True, template="tiled_tma")


def _split_call(product: Product, variant: Variant) -> Call:
    if not variant.split:
        return _call(product, variant)
    partial = Workspace("partial_ptr", product.accumulator)
    arguments = (*_operands(product), partial, *product.in_step, *sizes(product), GROUP, SPLITS)
    kernels = main_kernel(variant, arguments, TILES, SPLIT_K), reduction(product, SPLIT_K)
    return Call(kernels, (TILES_OF_C,), workspace=SPLIT_K * M * N)


def _takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    """Require operands that TMA can load.

    A descriptor covers all matrices of a batch, or all weights of groups, stacked. A tile that overhangs one matrix
    along M or N reads the next one.
    """
    if problem.batch > 1 or groups_of(problem) is not None:
        if problem.row_major_b or not problem.row_major_a:
            return (
                "in a batch or for groups, TMA reads zeros beyond K only if rows are contiguous along K "
                "(rowMajorA: T, rowMajorB: N)"
            )
        if problem.batch * max(problem.M, problem.N) >= INT32 // 2:
            return "the batch has more rows than 32 bits count"
    return tma_operands_limit(problem)


def _split_shares(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    yield from splits_limit(problem, configs, gpu)
    if reason := over_c_limit(problem, gpu):
        yield configs.SPLIT_K > 1, reason


def _legal(swapped: bool, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    yield from tma_box_limit(problem, configs)
    yield from dot_limit(problem, configs, gpu, swapped=swapped)


# C is stored through pointers, so its rows may start at any address.
_SEMAPHORE = KernelTraits(
    "tiled_tma",
    partial(_variant, "tiled_tma"),
    _call,
    takes=_takes,
    legal=partial(_legal, False),
    shares=splits_limit,
    sums=partial(of_dot, False),
    cost=Cost(reduces="semaphore"),
    uses_tma=True,
    needs=("tma",),
    splits_k=True,
    batches=True,
    groups=True,
    gathers=True,
)
_SWAPPED = KernelTraits(
    "tiled_tma_swapped",
    partial(_variant, "tiled_tma_swapped"),
    _call,
    takes=_takes,
    legal=partial(_legal, True),
    shares=splits_limit,
    sums=partial(of_dot, True),
    cost=Cost(SWAPPED_EDGES, reduces="semaphore"),
    sides=TileLimits(least_m=8),
    uses_tma=True,
    needs=("tma",),
    splits_k=True,
    batches=True,
    swapped=True,
)
_KERNEL = KernelTraits(
    "split_tma",
    _split_variant,
    _split_call,
    takes=_takes,
    legal=partial(_legal, False),
    shares=_split_shares,
    sums=partial(of_dot, False),
    uses_tma=True,
    needs=("tma",),
    splits_k=True,
    split_apart=True,
)


def _form(choice: Choice) -> KernelTraits | str:
    if choice["swapped"]:
        if choice["realigned"] or choice["reduce"] != "usual":
            return "swapped tiles are neither realigned nor added up by a second kernel (reduce)"
        return _SWAPPED
    if choice["reduce"] == "kernel":
        return _REALIGNED_KERNEL if choice["realigned"] else _KERNEL
    return _REALIGNED if choice["realigned"] else _SEMAPHORE


_REALIGNED, _REALIGNED_KERNEL = with_alignment_copies(_SEMAPHORE), with_alignment_copies(_KERNEL)
TILED_TMA = Family("tiled_tma", _form, (REDUCE.of("usual", "kernel"), SWAPPED, REALIGNED))
