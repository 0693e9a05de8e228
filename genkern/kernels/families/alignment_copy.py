"""`realigned`: forms that load through TMA, applied to rows of A or B whose addresses TMA cannot load.

A first kernel copies each operand whose pitch is not a multiple of 16 bytes into the workspace, at a pitch of whole
cache lines. Then the base form's kernels multiply the copies. The config's time includes all kernels. B's copy lies
before A's, so that without splits its place does not depend on M. Both lie behind the partial sums of splits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from genkern.gemm.columns import Refusals
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.contract.argument import MOST_PROMISED, Argument, Constant, Integer, Pointer, Workspace
from genkern.kernels.contract.call import Call, Kernel, Options
from genkern.kernels.contract.expression import Value, cdiv, evaluate, name
from genkern.kernels.contract.product import Copy, Product
from genkern.kernels.contract.symbols import K, M, N
from genkern.kernels.contract.traits import KernelTraits, Refuses, any_config
from genkern.kernels.contract.variant import Variant
from genkern.kernels.families.limits import TMA_BYTES, tma_output_limit

# Bytes of a cache line (every row of a copy starts at a multiple); bytes of an element that is copied.
_LINE_BYTES = 128
_ELEMENT_BYTES = 2
# Bytes of a partial sum, float32 or int32.
_SUM_BYTES = 4
# Block that one program copies: 4 KB. A warp loads 64 or 128 bytes of a row at a time, and stores 256 bytes of two
# rows.
BLOCK_ROWS, BLOCK_COLUMNS = 16, 128
_OPTIONS: Options = (("num_warps", 4), ("num_stages", 1))


def copied_operands(problem: GemmProblem) -> str:
    """Return the letters of the operands whose rows do not start at multiples of 16 bytes: "", "a", "b" or "ab"."""
    row_a = problem.K if problem.row_major_a else problem.M
    row_b = problem.N if problem.row_major_b else problem.K
    sizes = DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_b].size_bytes
    off = (row * size % TMA_BYTES for row, size in zip((row_a, row_b), sizes, strict=True))
    return "".join(letter for letter, is_off in zip("ab", off, strict=True) if is_off)


def copies_of(problem: GemmProblem, start: Value = 0) -> tuple[Copy, ...]:
    """Return the copies that a problem needs, the first of them `start` elements behind the workspace's address.

    Their pitches are names, which `definitions` defines.
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
    """Return the pitches by name, rounded up to whole cache lines."""
    line = _LINE_BYTES // _ELEMENT_BYTES
    return tuple((f"pitch_{copy.operand}", cdiv(copy.columns, line) * line) for copy in copies)


def end_of(copy: Copy) -> Value:
    """Return the number of elements from the workspace's address to the end of a copy."""
    return copy.pitch * copy.rows + copy.first


def _copy_kernel(product: Product, copies: tuple[Copy, ...]) -> Kernel:
    """Return the kernel with one program per block of each copy; the first copy's programs come first."""
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


def _call_on_copies(base: KernelTraits) -> Callable[[Product, Variant], Call]:
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


def _takes_by(base: KernelTraits) -> Callable[[GemmProblem, Gpu | None], str]:
    def takes(problem: GemmProblem, gpu: Gpu | None) -> str:
        """Require 16-bit operands, at least one unaligned, a C that the base form can store, and 32-bit offsets."""
        if {DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_b].size_bytes} != {_ELEMENT_BYTES}:
            return "this family copies operands of 16 bits"
        if not copied_operands(problem):
            return "rows of A and B already start at multiples of 16 bytes: nothing to realign"
        if _elements(problem) >= INT32:
            return "copies of A and B have more elements than 32 bits count"
        return tma_output_limit(problem) if base.stores_tma else ""

    return takes


def _elements(problem: GemmProblem) -> int:
    """Return the elements of all copies. The last block of a copy may overhang by up to BLOCK_ROWS rows."""
    copies = copies_of(problem)
    if not copies:
        return 0
    known: dict[str, Value] = {letter: getattr(problem, letter) + BLOCK_ROWS for letter in "MNK"}
    for pitch, value in definitions(copies):
        known[pitch] = evaluate(value, known)
    return evaluate(end_of(copies[-1]), known)


def _shares_of(base: KernelTraits) -> Refuses:
    def shares(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
        """Apply the base form's limit, and keep copies that lie behind the sums of splits within 32-bit offsets."""
        of_split = problem.M * problem.N * (_SUM_BYTES // _ELEMENT_BYTES)
        # SPLIT_K times these elements, which may exceed 64 bits, must fit the room that the copies leave.
        room = max(0, INT32 - _LINE_BYTES - _elements(problem))
        splits = configs.SPLIT_K
        yield (
            (splits > 1) & (splits >= -(-room // of_split)),
            "sums of splits and copies have more elements than 32 bits count",
        )
        yield from base.shares(problem, configs, gpu)

    return shares


def with_alignment_copies(base: KernelTraits) -> KernelTraits:
    """Return the form that runs `base` on copies. It splits K only if `base` adds up its splits in a second kernel."""
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
