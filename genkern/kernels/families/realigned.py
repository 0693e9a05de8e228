"""`realigned`: forms that load through TMA, for rows of A or B that start where TMA cannot load them.

A first kernel copies each operand whose pitch is no multiple of 16 bytes into the workspace, with rows at a pitch of
whole cache lines; then the base form's own kernels multiply the copies. All are part of the config's time. B's copy
comes before A's, so that where they lie does not depend on M, but behind the sums of splits, where there are any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.argument import MOST_PROMISED, Argument, Constant, Integer, Pointer, Workspace
from genkern.kernels.contract.call import Call, Kernel, Options
from genkern.kernels.contract.form import Form, any_config
from genkern.kernels.contract.product import Copy, Product
from genkern.kernels.contract.symbols import K, M, N
from genkern.kernels.contract.variant import Variant
from genkern.kernels.expression import Value, cdiv, evaluate, name
from genkern.kernels.families.limits import TMA_BYTES, tma_output_limit

# Of a cache line, which a row of a copy begins with; and of the elements that are copied.
_LINE_BYTES = 128
_ELEMENT_BYTES = 2
# Of a partial sum, in float32 or int32.
_SUM_BYTES = 4
# What a program copies: 4 KB. A warp loads 64 or 128 bytes of a row at a time, and stores 256 bytes of two.
BLOCK_ROWS, BLOCK_COLUMNS = 16, 128
_OPTIONS: Options = (("num_warps", 4), ("num_stages", 1))


def copied_operands(problem: GemmProblem) -> str:
    """The letters of those of A and B whose rows do not start at multiples of 16 bytes: "", "a", "b" or "ab"."""
    row_a = problem.K if problem.row_major_a else problem.M
    row_b = problem.N if problem.row_major_b else problem.K
    sizes = DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_b].size_bytes
    off = (row * size % TMA_BYTES for row, size in zip((row_a, row_b), sizes, strict=True))
    return "".join(letter for letter, is_off in zip("ab", off, strict=True) if is_off)


def copies_of(problem: GemmProblem, start: Value = 0) -> tuple[Copy, ...]:
    """The copies that are made, so many elements behind the workspace's address. Their pitches are names, which
    `definitions` explains.
    """
    stored = {
        "b": (K, N) if problem.row_major_b else (N, K),
        "a": (M, K) if problem.row_major_a else (K, M),
    }
    copied = copied_operands(problem)
    copies: list[Copy] = []
    for operand in (operand for operand in stored if operand in copied):
        rows, columns = stored[operand]
        copies.append(Copy(operand, rows, columns, name(f"pitch_{operand}"), start))
        start = end_of(copies[-1])
    return tuple(copies)


def definitions(copies: tuple[Copy, ...]) -> tuple[tuple[str, Value], ...]:
    """The pitches by name: whole cache lines."""
    line = _LINE_BYTES // _ELEMENT_BYTES
    return tuple((f"pitch_{copy.operand}", cdiv(copy.columns, line) * line) for copy in copies)


def end_of(copy: Copy) -> Value:
    """Elements of the workspace up to the end of a copy."""
    return copy.pitch * copy.rows + copy.first


def _copy_kernel(product: Product, copies: tuple[Copy, ...]) -> Kernel:
    """A program for each block of each copy, those of the first one first."""
    letters = "".join(copy.operand for copy in copies)
    arguments: list[Argument] = [Pointer(f"{letter}_ptr", letter) for letter in letters]
    arguments.append(Workspace("copies_ptr", product.accumulator))
    for copy in copies:
        letter = copy.operand
        arguments += [
            Integer(f"rows_{letter}", copy.rows),
            Integer(f"columns_{letter}", copy.columns),
            product.leading(f"ld{letter}", letter),
            Integer(f"pitch_{letter}", copy.pitch, MOST_PROMISED),
            Integer(f"first_{letter}", copy.first, MOST_PROMISED),
        ]
    arguments += [
        Constant("BINARY", f"B{BLOCK_ROWS}x{BLOCK_COLUMNS}"),
        Constant("BLOCK_ROWS", BLOCK_ROWS),
        Constant("BLOCK_COLUMNS", BLOCK_COLUMNS),
    ]
    variant = Variant(f"realign_{letters}", "gemm/realign.py.j2", copies=letters)
    first, *others = (cdiv(copy.rows, BLOCK_ROWS) * cdiv(copy.pitch, BLOCK_COLUMNS) for copy in copies)
    return Kernel(variant, tuple(arguments), (sum(others, first), 1, 1), _OPTIONS)


def _call_on_copies(base: Form) -> Callable[[Product, Variant], Call]:
    def call(product: Product, variant: Variant) -> Call:
        sum_bytes = DTYPES[product.accumulator].size_bytes
        line = _LINE_BYTES // sum_bytes
        sums = base.call(product, variant).workspace if variant.split else 0
        start = cdiv(sums, line) * (_LINE_BYTES // _ELEMENT_BYTES) if variant.split else 0
        copies = copies_of(product.problem, start)
        made = base.call(replace(product, copies=copies), variant)
        return replace(
            made,
            kernels=(_copy_kernel(product, copies), *made.kernels),
            definitions=(*made.definitions, *definitions(copies)),
            workspace=cdiv(end_of(copies[-1]) * _ELEMENT_BYTES, sum_bytes),
        )

    return call


def _takes_by(base: Form) -> Callable[[GemmProblem, Gpu | None], str]:
    def takes(problem: GemmProblem, gpu: Gpu | None) -> str:
        """Operands of 16 bits with rows that TMA cannot load, C that the base can store, and offsets of 32 bits."""
        if {DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_b].size_bytes} != {_ELEMENT_BYTES}:
            return "this family copies operands of 16 bits"
        if not copied_operands(problem):
            return "rows of A and B start at multiples of 16 bytes: there is nothing to realign"
        if _elements(problem) >= INT32:
            return "copies of A and B have more elements than 32 bits count"
        return tma_output_limit(problem) if base.stores_tma else ""

    return takes


def _elements(problem: GemmProblem) -> int:
    """Of all copies; the last block may overhang by so many rows."""
    copies = copies_of(problem)
    if not copies:
        return 0
    known: dict[str, Value] = {letter: getattr(problem, letter) + BLOCK_ROWS for letter in "MNK"}
    for pitch, value in definitions(copies):
        known[pitch] = evaluate(value, known)
    return evaluate(end_of(copies[-1]), known)


def _shares_of(base: Form) -> Callable[[GemmProblem, Config, Gpu | None], str]:
    def shares(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
        """The base's own, and copies behind the sums of splits that 32 bits still reach."""
        sums = config.SPLIT_K * problem.M * problem.N * (_SUM_BYTES // _ELEMENT_BYTES)
        if config.SPLIT_K > 1 and sums + _LINE_BYTES + _elements(problem) >= INT32:
            return "sums of splits and copies have more elements than 32 bits count"
        return base.shares(problem, config, gpu)

    return shares


def realigned(base: Form) -> Form:
    """The base form on copies; it splits K where a kernel behind the product adds up the splits."""
    return replace(
        base,
        stem=f"realigned_{base.stem}",
        call=_call_on_copies(base),
        takes=_takes_by(base),
        shares=_shares_of(base) if base.cost.reduces == "kernel" else any_config,
        splits_k=base.cost.reduces == "kernel",
        split_apart=base.cost.reduces == "kernel",
        cost=replace(base.cost, reduces="kernel"),
        reads="",
        kernels_before=1,
        realigned=True,
        batches=False,
        groups=False,
        gathers=False,
    )
