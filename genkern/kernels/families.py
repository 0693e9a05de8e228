"""Kernel families: which kernels a config consists of, and what each is compiled with.

A kernel's text depends on the problem's layout and on where tiles overhang, not on its size: so equal
kernels of different sizes share one binary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from genkern.gemm.config import AMD_NEUTRAL, Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.kernels.family import FAMILIES, GLUON, PERSISTENT_TMA, powers_of, ring_k, sides, together
from genkern.kernels.gluon_tile import parts_of
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.variant import Variant
from genkern.ops.op import Op, get_op

# One program of the split-K reduction, or of the filling with zeros, takes this many elements of C, two per thread of
# four warps on AMD and four on NVIDIA: enough for 16-byte accesses, small enough to fill the GPU when M is 1.
REDUCE_BLOCK_SIZE = 512
ZERO_FILL_OPTIONS = (("num_warps", 4), ("num_stages", 1))
# From here on, an element's offset no longer fits 32 bits.
_WIDE = 2**31


# The last program of a tile adds up its splits: pointer loads, and the copy engine.
_POINTER_SEMAPHORES = ("tiled_semaphore", "tiled_swapped", "skinny")
_TILED_TMA = ("tiled_tma", "tiled_tma_swapped")
ZERO_FILL = Variant("zero_fill", "gemm/zero_fill.py.j2")
REDUCE = Variant("reduce_splits", "gemm/reduce_splits.py.j2")


def variants_of(problem: GemmProblem, config: Config) -> tuple[Variant, ...]:
    """The kernels of one call of `config`, in launch order."""
    template = f"gemm/{config.family}.py.j2"
    split = config.SPLIT_K > 1 and FAMILIES[config.family].split_apart
    if config.family in PERSISTENT_TMA:
        # Loaded and stored by the copy engine, which clips what overhangs: one text for every size.
        specialized = config.family == "persistent_tma_specialized"
        return (Variant(f"matmul_{config.family}", "gemm/persistent_tma.py.j2", specialized=specialized),)
    if config.family in GLUON:
        facts = FAMILIES[config.family]
        _, width = sides(config)
        column_boxes, c_parts = len(powers_of(width)), len(parts_of(width, facts.cluster))
        name = f"matmul_{config.family}_b{column_boxes}" + (f"_c{c_parts}" if facts.cluster > 1 else "")
        return (
            Variant(
                name + ("_split" if split else ""),
                "gemm/warp_specialized.py.j2",
                split=split,
                swapped=facts.swaps_operands,
                cluster=facts.cluster,
                column_boxes=column_boxes,
                c_parts=c_parts,
            ),
        )
    overhangs = {
        "m": problem.M % config.BLOCK_SIZE_M != 0,
        "n": problem.N % config.BLOCK_SIZE_N != 0,
        # The copy engine fills what lies beyond K with zeros.
        "k": problem.K % config.BLOCK_SIZE_K != 0 and config.family not in _TILED_TMA,
    }
    masked = "".join(letter for letter, needed in overhangs.items() if needed)
    placed = "_xcd" * config.xcd_remap + config.cache_modifier.replace("none", "").replace(".", "_")
    rows = config.BLOCK_SIZE_M if config.family == "skinny" else 0
    name = (
        f"matmul_{config.family}"
        + (f"_rows{rows}" if rows else "")
        + ("_split" if split else "")
        + placed
        + (f"_mask_{masked}" if masked else "")
    )
    masks = overhangs["m"], overhangs["n"], overhangs["k"]
    main = Variant(name, template, *masks, split, bool(config.xcd_remap), config.cache_modifier, rows)
    if config.family == "tiled_atomic":
        # What is added to is C itself where C is what the sums are.
        return (ZERO_FILL, main) if sums_are_c(problem) else (ZERO_FILL, main, REDUCE)
    return (main, REDUCE) if split else (main,)


def sums_are_c(problem: GemmProblem) -> bool:
    """Whether the accumulators need no epilogue: neither scale, bias nor activation, and C has their type."""
    op = get_op(problem.op)
    return not op.finishes(problem) and problem.dtype_c == op.accumulator(problem)


def main_variant(problem: GemmProblem, config: Config) -> Variant:
    """The kernel of `config` that multiplies."""
    return variants_of(problem, config)[FAMILIES[config.family].kernels_before]


def main_binary(config: Config, binaries: Sequence[Binary]) -> Binary:
    """Of the binaries of `config`, in launch order, that of the kernel that multiplies."""
    return binaries[FAMILIES[config.family].kernels_before]


def binary_name(config: Config) -> str:
    """The compile-time part of the config's name; the kernel's symbol ends in it."""
    one = replace(config, GROUP_SIZE_M=1, SPLIT_K=1)
    return one.name.removeprefix(f"{one.family}_").replace("_GM1_SK1", "", 1)


def wide_operands(problem: GemmProblem, max_split_k: int) -> dict[str, bool]:
    """Which operands have elements that 32-bit offsets do not reach."""
    return {
        "wide_a": problem.M * problem.K >= _WIDE,
        "wide_b": problem.K * problem.N >= _WIDE,
        "wide_c": problem.M * problem.N >= _WIDE,
        "wide_partial": problem.M * problem.N * max_split_k >= _WIDE,
    }


def starts_early(arch: str) -> bool:
    """Whether a kernel may be on the device, and wait there, before the one that it depends on has ended.

    CUDA's programmatic dependent launch, from sm_90 on. Triton's option is launch_pdl.
    """
    return arch.startswith("sm_") and int(arch[3:]) >= 90


def reduce_options(arch: str) -> tuple[tuple[str, int | str], ...]:
    """Triton's options of the kernel that adds up splits."""
    return (*ZERO_FILL_OPTIONS, ("launch_pdl", 1)) if starts_early(arch) else ZERO_FILL_OPTIONS


def compile_options(config: Config) -> tuple[tuple[str, int | str], ...]:
    """Triton's options of the config's main kernel; AMD's at their neutral values are left to Triton."""
    amd = ((name, getattr(config, name)) for name in AMD_NEUTRAL)
    chosen = ((name, value) for name, value in amd if value != AMD_NEUTRAL[name])
    return (("num_warps", config.num_warps), ("num_stages", config.num_stages), *chosen)


def max_registers(config: Config) -> int:
    """Registers per thread when one program has the whole SM: 65,536 over its threads, in steps of 8."""
    threads = 32 * (config.num_warps + FAMILIES[config.family].helper_warps)
    return min(256, 65536 // threads // 8 * 8)


def _tile_type(dtype: str, row_major: bool, rows: int, columns: int) -> str:
    shape = (rows, columns) if row_major else (columns, rows)
    return f"tensordesc<{DTYPES[dtype].triton}[{shape[0]}, {shape[1]}]>"


@lru_cache(maxsize=8192)
def _specs(
    problem: GemmProblem, one: Config, split: bool, op: Op, hashes: tuple[tuple[str, str], ...], arch: str
) -> tuple[KernelSpec, ...]:
    source = dict(hashes)
    accumulator = op.accumulator(problem)
    a, b, c = (f"*{DTYPES[d].triton}" for d in (problem.dtype_a, problem.dtype_b, problem.dtype_c))
    partial = "*i32" if accumulator == "int32" else "*fp32"
    extra, in_step, at_end = (
        [(f"{operand.name}_ptr", f"*{DTYPES[operand.dtype].triton}") for operand in operands]
        for operands in (op.extra_operands(problem), op.step_operands(problem), op.finish_operands(problem))
    )
    lda = problem.K if problem.row_major_a else problem.M
    ldb = problem.N if problem.row_major_b else problem.K
    # Alignment that codegen can use: of leading dimensions, and of the dimensions along which memory runs.
    sizes = {"N": problem.N, "K": problem.K, "lda": lda, "ldb": ldb, "ldc": problem.N, "ld_sum": problem.N}
    if not problem.row_major_a:
        sizes["M"] = problem.M
    aligned = {name for name, size in sizes.items() if size % 16 == 0}
    mnk = [("M", "i32"), ("N", "i32"), ("K", "i32")]
    config = replace(one, SPLIT_K=2) if split else one
    blocks = tuple((n, getattr(config, n)) for n in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"))
    bm, bn, bk = (value for _, value in blocks)
    descriptors = [
        ("a_desc", _tile_type(problem.dtype_a, problem.row_major_a, bm, bk)),
        ("b_desc", _tile_type(problem.dtype_b, problem.row_major_b, bk, bn)),
        ("c_desc", _tile_type(problem.dtype_c, True, bm, bn)),
    ]
    xcds = [("NUM_XCDS", "i32")] * config.xcd_remap
    specs = []
    for variant in variants_of(problem, config):
        constants: tuple[tuple[str, int | str], ...] = (("BINARY", binary_name(config)), *blocks)
        options = compile_options(config)
        if variant is ZERO_FILL:
            signature = [("sum_ptr", partial), *mnk[:2], ("ld_sum", "i32")]
            constants = (("BINARY", f"B{REDUCE_BLOCK_SIZE}"), ("BLOCK_SIZE", REDUCE_BLOCK_SIZE))
            options = ZERO_FILL_OPTIONS
        elif variant is REDUCE:
            signature = [("partial_ptr", partial), ("c_ptr", c), *at_end, *mnk[:2], ("ldc", "i32"), ("SPLIT_K", "i32")]
            constants = (("BINARY", f"B{REDUCE_BLOCK_SIZE}"), ("BLOCK_SIZE", REDUCE_BLOCK_SIZE))
            options = reduce_options(arch)
        elif config.family in (*_POINTER_SEMAPHORES, "stream_k"):
            signature = [("a_ptr", a), ("b_ptr", b), ("c_ptr", c), ("partial_ptr", partial), ("arrived_ptr", "*i32")]
            signature += [*extra, *mnk, ("lda", "i32"), ("ldb", "i32"), ("ldc", "i32")]
            signature += [("GROUP_SIZE_M", "i32")] if FAMILIES[config.family].uses_dot else []
            signature += [("SPLIT_K", "i32")] if FAMILIES[config.family].splits_k else []
        elif config.family == "tiled_atomic":
            signature = [("a_ptr", a), ("b_ptr", b), ("sum_ptr", partial), *in_step, *mnk]
            signature += [(name, "i32") for name in ("lda", "ldb", "ld_sum", "GROUP_SIZE_M", "SPLIT_K")]
        elif config.family == "gemv":
            signature = [("a_ptr", a), ("b_ptr", b), ("c_ptr", c), *extra, *mnk[1:], ("ldb", "i32")]
        elif config.family in _TILED_TMA:
            signature = [*descriptors[:2], ("c_ptr", c), ("partial_ptr", partial), ("arrived_ptr", "*i32"), *extra]
            signature += [*mnk, ("ldc", "i32"), ("GROUP_SIZE_M", "i32"), ("SPLIT_K", "i32")]
        elif config.family in PERSISTENT_TMA:
            signature = [*descriptors, *extra, *mnk, ("GROUP_SIZE_M", "i32")]
        elif config.family in GLUON:
            types = [problem.dtype_a, problem.dtype_b]
            of_rows, of_columns = reversed(types) if variant.swapped else types
            rows, width = sides(config)
            element_bytes = DTYPES[problem.dtype_a].size_bytes
            boxes = [(of_rows, rows), *((of_columns, count) for count in powers_of(width))]
            signature = [
                (name, _tile_type(dtype, True, count, ring_k(element_bytes)))
                for name, (dtype, count) in zip(variant.boxes, boxes, strict=True)
            ]
            for name, part in zip(variant.parts, parts_of(width, variant.cluster), strict=True):
                signature.append((name, _tile_type(problem.dtype_c, not variant.swapped, rows, part.width)))
            if variant.split:
                signature += [("partial_ptr", partial), ("ready_ptr", "*i32")]
            signature += [*extra, *mnk, ("GROUP_SIZE_M", "i32")]
            if variant.split:
                signature += [("WHOLE_TILES", "i32"), ("SHARERS", "i32")]
            at_once = together(config, element_bytes)
            ring = ("STAGES", config.num_stages * at_once), ("TOGETHER", at_once)
            constants = (*constants[:3], *ring, ("num_warps", config.num_warps))
            options = (("num_warps", config.num_warps), ("maxnreg", max_registers(config)))
            if variant.cluster > 1:
                options = (*options, ("num_ctas", variant.cluster))
        elif variant.split:
            lds = [("lda", "i32"), ("ldb", "i32")]
            signature = [("a_ptr", a), ("b_ptr", b), ("partial_ptr", partial), *in_step, *mnk, *lds]
            signature += [("GROUP_SIZE_M", "i32"), *xcds, ("SPLIT_K", "i32")]
        else:
            lds = [("lda", "i32"), ("ldb", "i32"), ("ldc", "i32")]
            signature = [("a_ptr", a), ("b_ptr", b), ("c_ptr", c), *extra, *mnk, *lds, ("GROUP_SIZE_M", "i32"), *xcds]
        divisible = tuple(name for name, kind in signature if kind.startswith("*") or name in aligned)
        specs.append(KernelSpec(variant.name, source[variant.name], tuple(signature), constants, divisible, options))
    return tuple(specs)


def kernel_specs(
    problem: GemmProblem, config: Config, op: Op, source_sha256: dict[str, str], arch: str
) -> tuple[KernelSpec, ...]:
    """What to compile for one call of `config` on `arch`; `source_sha256` is by kernel name.

    GROUP_SIZE_M and SPLIT_K are run-time arguments, so configs that differ only there share their specs.
    """
    one = replace(config, GROUP_SIZE_M=1, SPLIT_K=1)
    return _specs(problem, one, config.SPLIT_K > 1, op, tuple(source_sha256.items()), arch)
