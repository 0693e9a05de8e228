"""`Op`: everything that the rest of genkern needs to know about a number format."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import genkern.ops
from genkern.errors import InputError
from genkern.gemm.columns import Column, Refusals, mapped
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import known_archs
from genkern.gemm.operand import Operand
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.ops import user_formats
from genkern.ops.fields import NoFields, fields_of
from genkern.ops.groups import Groups


@dataclass(frozen=True)
class Op:
    """One number format.

    name: the format's name.
    folder: its folder of templates, with module.py.j2 (reference and library call) and kernel.py.j2 (macros for what
        differs between formats in kernels; the comments of the simplest one explain them).
    input_types: types that A and B may have.
    default_dtypes: function that returns (dtype_a, dtype_b, dtype_c) for an architecture.
    refuse: function that returns why a problem does not fit the format on an architecture, or "".
    accumulator: function that returns the type of partial sums for a problem, "fp32" or "int32".
    operands: function that returns A, B, C, then the other operands in the order in which kernels take them.
    worst_row_limit: function that returns the largest relative error of a row of C that counts as correct.
    no_vendor: function that returns "" if `vendor` in module.py.j2 computes the whole problem with the vendor's library
        (scales, bias, activation and conversion included); else why no such call, and so no library time, exists.
    by_types: True if a problem that states these types but no format means this one.
    fields: dataclass of the format's own problem fields (genkern.ops.fields).
    legal: generator of masks with reasons: which configs of a table cannot compute a problem in this format on any
        device, and why (genkern.gemm.columns). It adds to the family's own, and must not read GROUP_SIZE_M or SPLIT_K.
        A function of a single config that returns the reason or "" will do, too (genkern.kernels.legality).
    shared_scale: function that returns how many rows of A, columns of B and elements of K share a scale. Problems that
        are made smaller for Triton's interpreter keep whole blocks of these sizes, and the same remainder.
    converts_b: True if kernel.py.j2 has a macro `convert`, which converts loaded elements of B to numbers, and the
        format's step is this conversion and a product. Families without tl.dot call it, and so can read the operands of
        the step.
    promotes: True if kernel.py.j2 has a macro `scale_functions`, with which Gluon families scale the products of each
        128 bytes along K before adding them up (see templates/gemm/promote.py.j2).
    in_registers: True if kernel.py.j2 has a macro `register_functions`, with which skinny_dot converts words of B's
        elements to numbers in the instruction's layout (see templates/gemm/skinny_dot.py.j2).
    has_functions: True if the folder of templates has functions.py.j2, with functions that the macros of kernel.py.j2
        call.
    exact_inputs: function of (problem, operand, numbers, generator) that returns the stored values of an operand whose
        elements are not numbers of their storage type: packed operands, and the operands in `encoded`. `numbers` has
        the operand's logical shape and is on the input's device: integers and powers of two in exact rounds; in the
        random round normal deviates, which are rounded to what the type holds, up and down alike; None for an index
        operand, which is drawn with torch's `generator`. The result has the storage type and the shape
        `Operand.tensor_shape`; for operands whose rows are stored together, it may be the numbers in their places.
    encoded: names of operands that need `exact_inputs` although they are not packed, such as exponents.
    as_tf32: function that returns whether float32 operands are multiplied as tf32, which drops the last 13 bits of
        each.
    largest_exact: function that returns the largest n such that A and B can hold all integers from -n to n: 7 for int4,
        4 for e2m1.
    groups: function that returns how rows map to weights, for formats with several weights. The values of index
        operands come from its result. Elements of C that no call writes are NaN in the reference.
    error_beside: function that returns how much larger the error of a result may be than that of a plain sum: a factor,
        an additional error relative to the sum of the products' magnitudes, and the largest number by which an
        activation's result and its error are multiplied.
    plain_finish: True if the epilogue is only: float32 sums times the scales of A and B (if any), plus the bias, then
        the activation. Kernels that are not templates implement that too.
    by_rows: True if the reference computes as many rows of C as it gets of A, so that a check can compute it in bands
        of rows.
    """

    name: str
    folder: str
    input_types: tuple[str, ...]
    default_dtypes: Callable[[str], tuple[str, str, str]]
    refuse: Callable[[GemmProblem, str], str]
    accumulator: Callable[[GemmProblem], str]
    operands: Callable[[GemmProblem], tuple[Operand, ...]]
    worst_row_limit: Callable[[GemmProblem], float]
    no_vendor: Callable[[GemmProblem], str] = lambda problem: ""
    by_types: bool = False
    fields: type = NoFields
    legal: Callable[[GemmProblem, Any], Refusals | str] | None = None
    shared_scale: Callable[[GemmProblem], tuple[int, int, int]] = lambda problem: (1, 1, 1)
    converts_b: bool = False
    promotes: bool = False
    in_registers: bool = False
    has_functions: bool = False
    exact_inputs: Callable[[GemmProblem, Operand, Any, Any], Any] | None = None
    encoded: tuple[str, ...] = ()
    as_tf32: Callable[[GemmProblem], bool] = lambda problem: False
    largest_exact: Callable[[GemmProblem], int] = lambda problem: 8
    groups: Callable[[GemmProblem], Groups] | None = None
    error_beside: Callable[[GemmProblem], tuple[float, float, float]] = lambda problem: (1.0, 0.0, 1.0)
    plain_finish: bool = False
    by_rows: bool = False

    def encodes(self, operand: Operand) -> bool:
        """Whether only `exact_inputs` can make values for an operand."""
        return operand.name in self.encoded or not operand.is_plain

    def encode(self, problem: GemmProblem, operand: Operand, numbers: Any, generator: Any) -> Any:
        """Return the stored values for an operand's numbers (see `exact_inputs`), or None.

        None means that the numbers themselves are stored.
        """
        if operand.role == "index" and self.groups is not None:
            return self.groups(problem).values(problem.M, operand).to(generator.device)
        if self.exact_inputs is None or not self.encodes(operand):
            return None
        return self.exact_inputs(problem, operand, numbers, generator)

    @property
    def batched(self) -> bool:
        """Whether operands have a leading dimension for the products of a batch."""
        return any(field.name == "batch_size" for field in fields_of(self.fields))

    def extra_operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        """Return the operands after A, B and C, in the order in which kernels take them."""
        return self.operands(problem)[3:]

    def step_operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        """Return the `extra_operands` that the loop over K reads."""
        return tuple(operand for operand in self.extra_operands(problem) if operand.in_step)

    def finish_operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        """Return the `extra_operands` that only the epilogue reads."""
        return tuple(operand for operand in self.extra_operands(problem) if not operand.in_step)

    def promoted(self, problem: GemmProblem) -> bool:
        """Whether Gluon and CuTe DSL families scale the products of each step before adding them up."""
        return self.promotes and bool(self.step_operands(problem))

    def finishes(self, problem: GemmProblem) -> bool:
        """Whether the epilogue does more than convert the sums to C's type."""
        return problem.activation != "none" or bool(self.finish_operands(problem))


def matrices(problem: GemmProblem) -> tuple[Operand, Operand, Operand]:
    """Return A [M, K], B [K, N] and C [M, N] of a single product. B is the weight, of which timing rotates copies."""
    M, N, K = problem.M, problem.N, problem.K
    return (
        Operand("a", "activation", (M, K), problem.dtype_a, problem.row_major_a),
        Operand("b", "weight", (K, N), problem.dtype_b, problem.row_major_b, rotates=True),
        Operand("c", "output", (M, N), problem.dtype_c),
    )


def in_batch(problem: GemmProblem, operands: Iterable[Operand]) -> tuple[Operand, ...]:
    """Return the operands with a leading dimension of the problem's batch size."""
    return tuple(replace(operand, shape=(problem.batch, *operand.shape)) for operand in operands)


def bias_of(problem: GemmProblem) -> tuple[Operand, ...]:
    """Return the bias vector [N] in C's type as a tuple, empty if the problem has no bias."""
    return (Operand("bias", "bias", (problem.N,), problem.dtype_c),) if problem.bias else ()


@functools.lru_cache(maxsize=1)
def _own_names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(genkern.ops.__path__) if module.ispkg))


def op_names() -> tuple[str, ...]:
    """Return the names of all formats: the folders in genkern/ops, then the added ones."""
    return (*_own_names(), *op_folders())


def op_folders() -> dict[str, Path]:
    """Return the folders of added formats by name."""
    return _outside_names(user_formats.format_folders())


def is_user_format(name: str) -> bool:
    """Whether a format is not one of genkern's own."""
    return name not in _own_names()


def op_folder(name: str) -> Path:
    """Return the folder of a format, which may also hold its search spaces (*.yaml)."""
    return op_folders().get(name) or Path(genkern.ops.__path__[0]) / name


@functools.lru_cache(maxsize=16)
def _outside_names(folders: tuple[Path, ...]) -> dict[str, Path]:
    return {_outside_op(folder).name: folder for folder in folders}


def _outside_op(folder: Path) -> Op:
    op = getattr(user_formats.load_package(folder), "OP", None)
    if not isinstance(op, Op) or op.folder != op.name or not op.name.isidentifier():
        raise InputError(
            f"{folder}/__init__.py has no OP = Op(name=NAME, folder=NAME, ...): see docs/your_own_format.md"
        )
    if op.name in _own_names():
        raise InputError(f"{folder}/__init__.py: genkern already has a format {op.name}: choose another name")
    for name in ("kernel.py.j2", "module.py.j2"):
        if not (folder / name).is_file():
            raise InputError(f"{folder} has no {name}: see docs/your_own_format.md")
    return op


def add_op(path: str) -> Op:
    """Register a user's format, for this process and processes that it starts from now on, and return it.

    `path` is its folder: a Python package with OP, kernel.py.j2, module.py.j2, and optional spaces (*.yaml). Raises
    InputError if it is not such a folder, or if its name is taken.
    """
    folder = Path(path).resolve()
    op = _outside_op(folder)
    taken = op_folders().get(op.name, folder)
    if taken != folder:
        raise InputError(f"{folder}: the format {op.name} is already defined in {taken}")
    user_formats.add_folder(folder)
    return op


def doc_of(name: str) -> str:
    """Return the docstring of a format's package; "" if it has none."""
    is_own = name in _own_names()
    package = importlib.import_module(f"genkern.ops.{name}") if is_own else user_formats.load_package(op_folder(name))
    return package.__doc__ or ""


def op_by_type(dtype: str) -> Op:
    """Return the format that operands of this type mean if none is named."""
    ops = (get_op(name) for name in op_names())
    return next((op for op in ops if op.by_types and dtype in op.input_types), get_op(DEFAULT_OP))


def get_op(name: str) -> Op:
    """Return the format of this name. Raises InputError if it does not exist."""
    if name in _own_names():
        return _own_op(name)
    if name not in op_names():
        raise InputError(f"unknown op {name!r}: use one of {', '.join(op_names())}")
    op: Op = user_formats.load_package(op_folders()[name]).OP
    return op


# Cached because it is called for every config. Added formats cannot take the name of an own one.
@functools.lru_cache(maxsize=64)
def _own_op(name: str) -> Op:
    op: Op = importlib.import_module(f"genkern.ops.{name}").OP
    return op


# Function that returns C [M, N] of a problem, without its activation, from its operands by name as PyTorch tensors.
Library = Callable[[GemmProblem, Mapping[str, Any]], Any]


# Function that returns C [..., N] from x [..., K], weight [N, K] and, if the problem has one, bias [N], as PyTorch
# tensors.
Linear = Callable[..., Any]


def library_of(name: str) -> Library | None:
    """Return the function `library` in library.py of the format's folder, which computes the product with PyTorch.

    It runs on any device. None if an added format has no such function.
    """
    library: Library | None = getattr(_library_module(name), "library", None)
    return library


def linear_of(problem: GemmProblem) -> Linear | None:
    """Return the PyTorch function that computes the whole product, except the activation; None for most formats.

    It is what `linear` in library.py of the format's folder returns for the problem.
    """
    linear = getattr(_library_module(problem.op), "linear", None)
    found: Linear | None = linear(problem) if linear is not None else None
    return found


@functools.lru_cache(maxsize=64)
def _library_module(name: str) -> Any:
    package = f"genkern.ops.{name}" if name in _own_names() else user_formats.load_package(op_folder(name)).__name__
    try:
        return importlib.import_module(f"{package}.library")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.library":
            raise
        return None


@functools.lru_cache(maxsize=4096)
def operands_of(problem: GemmProblem) -> tuple[Operand, ...]:
    """Return the problem's operands: A, B, C, then the other operands in the order in which kernels take them."""
    return get_op(problem.op).operands(problem)


@functools.lru_cache(maxsize=4096)
def element_bytes(problem: GemmProblem) -> tuple[float, float]:
    """Return the bytes of an element of A and of B; a fraction if several elements are packed in a byte."""
    a, b, *_ = operands_of(problem)
    return DTYPES[a.dtype].size_bytes / a.packed, DTYPES[b.dtype].size_bytes / b.packed


@functools.lru_cache(maxsize=4096)
def has_exponents(problem: GemmProblem) -> bool:
    """Whether A and B have one-byte scales along K.

    The tensor cores multiply both operands with their exponents, or the kernel converts both to bf16.
    """
    scaled = {
        each.scales
        for each in operands_of(problem)
        if each.role == "scale" and each.in_step and DTYPES[each.dtype].size_bytes == 1
    }
    return scaled >= {"a", "b"}


@functools.lru_cache(maxsize=4096)
def bytes_moved(problem: GemmProblem) -> int:
    """Return the least traffic with device memory in bytes: each input is read once, the output is written once.

    For groups chosen evenly, only weights of the mean number of groups with rows count; for groups with a capacity,
    only existing rows count.
    """
    op = get_op(problem.op)
    moved = {operand.name: operand.size_bytes for operand in operands_of(problem)}
    if op.groups is not None:
        groups = op.groups(problem)
        of_weights = groups.expected_used(problem.M) / groups.count
        of_rows = problem.M * groups.top_k / groups.rows(problem.M)
        for operand in operands_of(problem):
            if len(operand.shape) == 3:
                moved[operand.name] = round(moved[operand.name] * of_weights)
            elif groups.capacity and operand.shape[0] == groups.rows(problem.M):
                moved[operand.name] = round(moved[operand.name] * of_rows)
    return sum(moved.values())


@functools.lru_cache(maxsize=4096)
def columns_of_b(problem: GemmProblem) -> int:
    """Return the columns of B that one column of C is computed from: two for a gate and its up projection, else one."""
    return operands_of(problem)[1].shape[-1] // problem.N


@functools.lru_cache(maxsize=4096)
def groups_of(problem: GemmProblem) -> Groups | None:
    """Return how the problem's rows map to weights; None if there is one weight."""
    groups = get_op(problem.op).groups
    return groups(problem) if groups is not None else None


def row_tiles(problem: GemmProblem, block_m: Column) -> Column:
    """Return the tiles along the rows of one product; for groups, the mean number if groups are chosen evenly.

    `block_m` is a number or a column of a table of configs.
    """
    groups = groups_of(problem)
    if groups is None:
        return -(-problem.M // block_m)
    return mapped(functools.partial(groups.expected_tiles, problem.M), block_m)


def gb_per_s(problem: GemmProblem, time_us: float) -> float:
    """Return the achieved GB/s (10^9 bytes) of `bytes_moved` in `time_us` microseconds."""
    return bytes_moved(problem) / time_us * 1e-3


def refusal(problem: GemmProblem, arch: str = "") -> str:
    """Return why `arch` cannot compute the problem, or "". For "" or an unknown `arch`: why no known one can."""
    op = get_op(problem.op)
    if arch in known_archs():
        return op.refuse(problem, arch)
    # "" has no capabilities, so every architecture computes the problems that it computes. Most problems end here.
    if not (reason := op.refuse(problem, "")):
        return ""
    return "" if any(not op.refuse(problem, each) for each in known_archs()) else reason


def check_problem(problem: GemmProblem, arch: str) -> None:
    """Raise InputError if the problem does not fit its format on `arch`, or no inputs can be made for it."""
    op = get_op(problem.op)
    reason = op.refuse(problem, arch)
    if not reason and op.exact_inputs is None and op.groups is None:
        names = [operand.name for operand in op.operands(problem) if op.encodes(operand)]
        reason = f"only the format can make values for {', '.join(names)}: give its Op exact_inputs" if names else ""
    if reason:
        raise InputError(f"{problem.size} {problem.op}: {reason}")
