"""cute_tcgen05: a persistent GEMM by TMA and tcgen05.mma in CuTe DSL for sm_100 (templates/cute/compiled_only).

Compiled only: no kernel of genkern has run on such a GPU.

Its parameters are those of NVIDIA's guide to autotuning CuTe DSL GEMMs:

cluster: programs that load for each other (cluster_shape_mn).
ctas: 2 if two neighbours along M compute one tile together (use_2cta_instrs).
store: C is stored by TMA or from registers (use_tma_store).
BLOCK_SIZE_M, BLOCK_SIZE_N: tile of one instruction; of both programs together if ctas is 2 (mma_tiler_mn).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from genkern.gemm.columns import Column, Refusals, either, is_in, mapped, negated
from genkern.gemm.columns import most as larger
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpu import WARPGROUP_SHARED_BYTES, Gpu
from genkern.gemm.parameter import CLUSTER, CTAS, STORE, pair_of
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import Argument, Constant, Integer, Leading, Map, Pointer
from genkern.kernels.contract.call import Call, Kernel
from genkern.kernels.contract.cost import TileWave
from genkern.kernels.contract.expression import Expression, Value, cdiv, least, most, name, where
from genkern.kernels.contract.family import Choice, Family
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.sum_order import SumOrder, instruction_k, own_finish
from genkern.kernels.contract.symbols import BLOCK_SIZE_M, BLOCK_SIZE_N, NUM_STAGES, UNITS, K, M, N
from genkern.kernels.contract.traits import KernelTraits
from genkern.kernels.contract.variant import Variant
from genkern.kernels.cute import tile_sm100 as tile
from genkern.kernels.cute.dense_product import dense_form, finish_limit, operands_limit, product_constants, ring_limit
from genkern.kernels.cute.tile import BARRIER_BYTES, BLOCK_BYTES, MOST_BUFFERS, SWIZZLE_128
from genkern.kernels.families.common import BINARY_NAME, GROUP
from genkern.kernels.families.limits import tma_operands_limit, tma_output_limit

TEMPLATE = "cute/compiled_only/dense_sm100.py"
NAME = "cute_tcgen05"
# Clusters for one and for two programs per tile. The guide also tries (4, 4), but CUDA launches clusters of more than
# eight programs only with cudaFuncAttributeNonPortableClusterSizeAllowed, which genkern does not set.
_CLUSTERS = {
    1: ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)),
    2: ((2, 1), (2, 2), (4, 1), (4, 2), (2, 4)),
}
# Clusters of more than two programs leave some SMs over, since a processing cluster has 16 to 20 SMs. How many clusters
# a B200 runs at the same time has not been measured. This estimate assumes processing clusters of 18 SMs of which 16
# are used. It is low on purpose: one cluster too many would start when all others end.
_USED, _OF = 16, 18
_TURNS = name("turns")


@dataclass(frozen=True)
class Shape:
    """What distinguishes the forms.

    ctas: programs that share a tile.
    cluster_m, cluster_n: programs of a cluster along M and N.
    tma_store: True if C is stored by TMA.
    """

    ctas: int
    cluster_m: int
    cluster_n: int
    tma_store: bool

    @property
    def cluster(self) -> int:
        """Number of programs in a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def stem(self) -> str:
        """Prefix of the kernels' names."""
        together = "_2cta" if self.ctas == 2 else ""
        cluster = f"_{self.cluster_m}x{self.cluster_n}" if self.cluster > 1 else ""
        return f"{NAME}{together}{cluster}" + ("" if self.tma_store else "_direct")


def _part(shape: Shape, problem: GemmProblem, configs: Config | ConfigTable) -> Column:
    """Return the columns of C that TMA stores at a time; 0 for direct stores."""
    if not shape.tma_store:
        return 0
    halves = either(configs.BLOCK_SIZE_M == 128, 2, 1) if shape.ctas == 2 else 1
    return tile.part_of(configs.BLOCK_SIZE_N // halves, DTYPES[problem.dtype_c].size_bytes)


def _variant(shape: Shape, problem: GemmProblem, config: Config) -> Variant:
    part = _part(shape, problem, config)
    return Variant(
        f"matmul_{shape.stem}" + (f"_p{part}" if part else ""),
        TEMPLATE,
        cluster=shape.cluster,
        part=part,
        down=shape.cluster_m,
        across=shape.cluster_n,
        ctas=shape.ctas,
    )


def _call(product: Product, variant: Variant) -> Call:
    problem, ctas, tma_store = product.problem, variant.ctas, variant.part > 0
    element_bytes = DTYPES[product.by_name["c"].dtype].size_bytes
    # The formulas of buffers_and_bytes and columns_of (tile_sm100), which take numbers, written as expressions.
    warp_rows = least(32, BLOCK_SIZE_M // 4)
    used = where(64 * ctas < BLOCK_SIZE_M, BLOCK_SIZE_N * tile.ACCUMULATORS, BLOCK_SIZE_N)
    columns: Value = tile.LEAST_COLUMNS
    for power in (32, 64, 128, 256):
        columns = where(used > power, 2 * power, columns)
    before = NUM_STAGES * ((BLOCK_SIZE_M + BLOCK_SIZE_N) // ctas * BLOCK_BYTES) + BARRIER_BYTES
    part_bytes = warp_rows * (tile.STORING_WARPS * variant.part * element_bytes)
    buffers = where(before + part_bytes * MOST_BUFFERS > WARPGROUP_SHARED_BYTES, 1, MOST_BUFFERS)
    spare = most(0, (part_bytes * buffers + before) * -1 + tile.ALONE_BYTES)
    c: Argument = Pointer("c_ptr", "c")
    if tma_store:
        swizzle = tile.SWIZZLE_128 if variant.part * element_bytes == tile.PART_BYTES else tile.SWIZZLE_64
        c = Map("c_desc", "c", (warp_rows, variant.part), False, swizzle)
    arguments = (
        _block(product, "a", problem.row_major_a, BLOCK_SIZE_M // ctas),
        _block(product, "b", not problem.row_major_b, BLOCK_SIZE_N // ctas),
        c,
        *product.extra,
        *(Integer("M", M), Integer("N", N), Integer("K", K)),
        GROUP,
        *(() if tma_store else (Leading("ldc", "c"),)),
    )
    constants: dict[str, Value | str] = {
        **product_constants(problem, variant),
        "ctas": ctas,
        "columns": columns,
        "tma_store": int(tma_store),
        "part": variant.part or tile.DIRECT_PART,
        "buffers": buffers,
        "spare_bytes": spare,
        "shared_bytes": part_bytes * buffers + before + spare,
        "warps": tile.STORING_WARPS + tile.HELPER_WARPS,
    }
    kernel = Kernel(
        variant,
        (*arguments, BINARY_NAME, *(Constant(name, value) for name, value in constants.items())),
        (least(most(1, _in_clusters(variant.cluster) // variant.cluster), _TURNS), 1, 1),
        (),
    )
    turns = cdiv(M, BLOCK_SIZE_M * (variant.down // ctas)) * cdiv(N, BLOCK_SIZE_N * variant.across)
    return Call((kernel,), (("turns", turns),))


def _in_clusters(cluster: int) -> Expression:
    return UNITS if cluster <= 2 else UNITS * _USED // _OF


def units_in_clusters(units: int, cluster: int) -> int:
    """Return how many of `units` SMs clusters of `cluster` programs can occupy at once. Launch plans rely on it."""
    return units if cluster <= 2 else units * _USED // _OF


def _block(product: Product, operand: str, k_major: bool, rows: Value) -> Map:
    """Return the descriptor of A or B for boxes of 128 bytes along K.

    A box has all rows of a program if the operand is contiguous along K, else 128 bytes of rows by as many elements of
    K.
    """
    square = BLOCK_BYTES // DTYPES[product.by_name[operand].dtype].size_bytes
    box: tuple[Value, Value] = (rows, square) if k_major else (square, square)
    return Map(f"{operand}_desc", operand, box, not product.by_name[operand].row_major, SWIZZLE_128)


def _takes(problem: GemmProblem, gpu: Gpu | None) -> str:
    return operands_limit(problem) or finish_limit(problem) or tma_operands_limit(problem)


def _takes_tma_store(problem: GemmProblem, gpu: Gpu | None) -> str:
    return _takes(problem, gpu) or tma_output_limit(problem)


def instruction_limit(shape: Shape, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require a tile that one tcgen05.mma computes: 64 or 128 rows, or 128 or 256 for two programs (cta_group::2).

    Source: PTX ISA, tcgen05.mma, shapes of kind::f16 and kind::f8f6f4. N could be a multiple of 8 to 32. Here it is a
    multiple of 32, as in the guide's example, so that parts of C have rows of 64 bytes; or of 64 if two programs have
    64 rows each, since the columns then lie in two halves. A block has 128 bytes along K, which is four instructions.
    """
    ctas = shape.ctas
    said = "tiles of two programs (2cta)" if ctas == 2 else "tiles of one program"
    yield (
        negated(is_in(configs.BLOCK_SIZE_M, tile.ROWS[ctas])),
        f"{said} must have {' or '.join(map(str, tile.ROWS[ctas]))} rows",
    )
    if ctas == 2:
        yield (
            (configs.BLOCK_SIZE_M == 128) & (configs.BLOCK_SIZE_N % 64 != 0),
            "tiles of two programs with 64 rows each must have a multiple of 64 columns, which lie in two halves",
        )
    yield (
        configs.BLOCK_SIZE_K * DTYPES[problem.dtype_a].size_bytes != BLOCK_BYTES,
        f"BLOCK_SIZE_K must be {BLOCK_BYTES} bytes, the width of the swizzle",
    )


def copies_limit(shape: Shape, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require whole squares of 128 bytes a side if an operand is not contiguous along K.

    tcgen05 also takes narrower swizzles (PTX ISA); the kernel does not use them.
    """
    square = BLOCK_BYTES // DTYPES[problem.dtype_a].size_bytes
    for k_major, side in (
        (problem.row_major_a, configs.BLOCK_SIZE_M),
        (not problem.row_major_b, configs.BLOCK_SIZE_N),
    ):
        if not k_major:
            yield (
                side // shape.ctas % square != 0,
                f"a program copies {square} rows or columns at a time of an operand that is not contiguous along K",
            )


def tensor_memory_limit(shape: Shape, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require that two accumulators fit tensor memory: 512 columns of 128 lanes of 32 bits (PTX ISA, tcgen05)."""
    columns = mapped(partial(tile.columns_of, ctas=shape.ctas), configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N)
    yield (
        columns > tile.MEMORY_COLUMNS,
        f"{tile.ACCUMULATORS} accumulators need more than the {tile.MEMORY_COLUMNS} columns of tensor memory",
    )


def warps_limit(shape: Shape, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require four warps that store C, since each may read a quarter of tensor memory's lanes (PTX ISA, tcgen05.ld)."""
    yield (
        configs.num_warps != tile.STORING_WARPS,
        f"num_warps must be {tile.STORING_WARPS}, the warps that store C; two more warps load and multiply",
    )


LIMITS: tuple[Callable[[Shape, GemmProblem, ConfigTable, Gpu | None], Refusals], ...] = (
    instruction_limit,
    warps_limit,
    copies_limit,
    tensor_memory_limit,
)


def _legal(shape: Shape, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require all LIMITS."""
    for limit in LIMITS:
        yield from limit(shape, problem, configs, gpu)


def _shared_bytes(shape: Shape, problem: GemmProblem, configs: ConfigTable) -> Column:
    """Return the shared memory of a program in bytes. It must agree with the constant shared_bytes of the kernel."""
    sides = configs.BLOCK_SIZE_M, configs.BLOCK_SIZE_N, shape.ctas
    element_bytes, part = DTYPES[problem.dtype_c].size_bytes, _part(shape, problem, configs)
    used = tile.buffers_and_bytes(*sides, configs.num_stages, part, element_bytes)[1]
    return larger(used, tile.ALONE_BYTES)


def _stages(shape: Shape, problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Require a ring whose stages fit beside the parts of C."""
    yield from ring_limit(configs.num_stages, tile.MOST_STAGES, _shared_bytes(shape, problem, configs), gpu)


def _sums(shape: Shape, problem: GemmProblem, config: Config, arch: str) -> SumOrder:
    """Return the order of sums: one accumulator in tensor memory.

    Whether the instruction of two programs sums in the same order as that of one is not known, so they count as
    different.
    """
    pair = " pair" * (shape.ctas > 1)
    return SumOrder(f"tcgen05{pair} k{instruction_k(problem.dtype_a)}", finish=own_finish(problem, "cute"))


@lru_cache(maxsize=64)
def _form_of(shape: Shape) -> KernelTraits | str:
    if (shape.cluster_m, shape.cluster_n) not in _CLUSTERS[shape.ctas]:
        said = ", ".join(f"{along_m}x{along_n}" for along_m, along_n in _CLUSTERS[shape.ctas])
        return f"with {shape.ctas} program{'s' * (shape.ctas > 1)} per tile, cluster must be one of {said}"
    tile_wave = TileWave(
        *(shape.cluster_m // shape.ctas, shape.cluster_n),
        programs_of_tile=shape.ctas,
        programs=shape.cluster,
        tma_store=shape.tma_store,
        tma_stores=(2, 4),
        hides_stores=True,
        width_step=32,
        units=lambda units: units_in_clusters(units, shape.cluster),
        full_rows=tile.FULL_ROWS,
    )
    return dense_form(
        shape.stem,
        partial(_variant, shape),
        _call,
        tile_wave,
        needs=("tma", "tcgen05"),
        takes=_takes_tma_store if shape.tma_store else _takes,
        legal=partial(_legal, shape),
        stages=partial(_stages, shape),
        sums=partial(_sums, shape),
        block_m=tile.ROWS[shape.ctas],
        helper_warps=tile.HELPER_WARPS,
    )


def _form(choice: Choice) -> KernelTraits | str:
    cluster = pair_of(str(choice["cluster"]))
    return _form_of(Shape(int(choice["ctas"]), *cluster, choice["store"] == "tma"))


CUTE_TCGEN05 = Family(NAME, _form, (CLUSTER, CTAS, STORE), language="cute")
