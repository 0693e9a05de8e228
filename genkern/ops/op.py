"""Op: what one GEMM format says of itself, so that the rest of the pipeline need not know it."""

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
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import known_archs
from genkern.gemm.operand import Operand
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.ops import outside
from genkern.ops.fields import NoFields, fields_of
from genkern.ops.groups import Groups


@dataclass(frozen=True)
class Op:
    """One GEMM format.

    `folder`: its folder of templates, with module.py.j2 (reference and vendor call) and kernel.py.j2 (what its kernels
    do where formats differ; the simplest one in templates says how).
    `input_types`: types that A and B may have. Where a problem says its types but no format, they mean the one that is
    chosen `by_types`.
    `default_dtypes`: (dtype_a, dtype_b, dtype_c) for an architecture.
    `refuse`: why a problem does not fit the format on an architecture, or "".
    `accumulator`: "fp32" or "int32" for a problem: what partial sums are kept in.
    `operands`: A, B, C, then the others in the order in which kernels take them.
    `worst_row_limit`: the largest relative error of a row of C that still counts as correct.
    `fields`: what the format asks of a problem besides (genkern.ops.fields).
    `no_vendor`: "" where module.py.j2's `vendor` computes the whole problem by the vendor library, with scales, bias,
    activation and cast; else why there is no such call, and so no vendor time.
    `legal`: why a config cannot compute a problem in this format whatever the device, or ""; it is asked besides the
    family, and does not read GROUP_SIZE_M or SPLIT_K.
    `shared_scale`: how many rows of A, columns of B and elements of K have a scale in common, if they have: a reduced
    size for the interpreter has whole blocks of them, and the same rest.
    `converts_b`: its kernel.py.j2 has a macro `convert` too, which makes numbers of what is loaded of B, and its step
    is that and a product: families without a dot call it, and so may read operands of the step.
    `promotes`: its kernel.py.j2 has a macro `scale_functions` too, by which families in Gluon multiply the products of
    each 128 bytes along K, where they have operands of the step, before they add them up (templates/gemm/promote.py.j2
    says how).
    `in_registers`: its kernel.py.j2 has a macro `register_functions` too, by which skinny_dot makes numbers of words of
    B's elements, where instructions want them (templates/gemm/skinny_dot.py.j2 says how).
    `has_functions`: its folder of templates has functions.py.j2 too, with functions that the macros of its kernel.py.j2
    call.
    `exact_inputs`: what is stored for `numbers`, by (problem, operand, numbers, generator): of those operands whose
    elements are no numbers of their storage type (packed ones, indices, and by `encoded` others: exponents). `numbers`
    has the operand's logical shape on the device that the input is for: integers and powers of two in exact rounds,
    deviates in the random one, which are rounded to what the type holds, toward either side alike; None for an index,
    which is made with torch's `generator`. The result has the shape `Operand.tensor_shape` and the storage type; of
    rows that are `together` it may be the numbers, in their places.
    `as_tf32`: whether operands in float32 are multiplied as tf32, which drops the last 13 bits of each.
    `plain_finish`: its finish is no more than float32 sums times its scales of A and B, if it has any, plus the bias,
    then the activation: kernels that are no templates do that too.
    `largest_exact`: the integer up to which A and B hold every one, of either sign: of int4 7, of e2m1 4.
    `groups`: how rows go to weights, of formats with many; their index operands are made by that, and C's elements
    that no call writes are NaN in the reference.
    `error_beside`: by how much more than a sum's a result may be off: as a factor, relative to the sum of the products'
    magnitudes besides, and the largest number that an activation's result, and its error, is multiplied by.
    `by_rows`: its reference makes as many rows of C as it is given of A, so that a check can go by bands of them.
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
    legal: Callable[[GemmProblem, Config], str] | None = None
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
        """What is stored for an operand's numbers (see `exact_inputs`); None where these are."""
        if operand.role == "index" and self.groups is not None:
            return self.groups(problem).values(problem.M, operand).to(generator.device)
        if self.exact_inputs is None or not self.encodes(operand):
            return None
        return self.exact_inputs(problem, operand, numbers, generator)

    @property
    def batched(self) -> bool:
        """Whether operands have a dimension more, of the products of a batch."""
        return any(field.name == "batch_size" for field in fields_of(self.fields))

    def extra_operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        """The operands besides A, B and C, in the order in which kernels take them."""
        return self.operands(problem)[3:]

    def step_operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        """Those of `extra_operands` that are read at every step over K."""
        return tuple(operand for operand in self.extra_operands(problem) if operand.in_step)

    def finish_operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        """Those of `extra_operands` that are read once, when the sums are complete."""
        return tuple(operand for operand in self.extra_operands(problem) if not operand.in_step)

    def promoted(self, problem: GemmProblem) -> bool:
        """Whether families in Gluon and in CuTe DSL scale the products of each step before they add them up."""
        return self.promotes and bool(self.step_operands(problem))

    def finishes(self, problem: GemmProblem) -> bool:
        """Whether anything but the cast to C's type is left to do when the sums are complete."""
        return problem.activation != "none" or bool(self.finish_operands(problem))


def matrices(problem: GemmProblem) -> tuple[Operand, Operand, Operand]:
    """A [M, K], B [K, N] and C [M, N] of a plain product; B is the weight, and rotates."""
    M, N, K = problem.M, problem.N, problem.K
    return (
        Operand("a", "activation", (M, K), problem.dtype_a, problem.row_major_a),
        Operand("b", "weight", (K, N), problem.dtype_b, problem.row_major_b, rotates=True),
        Operand("c", "output", (M, N), problem.dtype_c),
    )


def in_batch(problem: GemmProblem, operands: Iterable[Operand]) -> tuple[Operand, ...]:
    """The operands with as many matrices, one behind the other, as the problem has products."""
    return tuple(replace(operand, shape=(problem.batch, *operand.shape)) for operand in operands)


def bias_of(problem: GemmProblem) -> tuple[Operand, ...]:
    """The bias vector [N] in C's type, where the problem has one."""
    return (Operand("bias", "bias", (problem.N,), problem.dtype_c),) if problem.bias else ()


@functools.lru_cache(maxsize=1)
def _own_names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(genkern.ops.__path__) if module.ispkg))


def op_names() -> tuple[str, ...]:
    """The formats there are: one folder each in genkern/ops, and those that were added."""
    return (*_own_names(), *op_folders())


def op_folders() -> dict[str, Path]:
    """The folders of the formats that are not genkern's, by name."""
    return _outside_names(outside.folders())


def is_outside(name: str) -> bool:
    """Whether a format is none of genkern's own."""
    return name not in _own_names()


def op_folder(name: str) -> Path:
    """The folder of a format, where its spaces lie too, if it has any."""
    return op_folders().get(name) or Path(genkern.ops.__path__[0]) / name


@functools.lru_cache(maxsize=16)
def _outside_names(folders: tuple[Path, ...]) -> dict[str, Path]:
    return {_outside_op(folder).name: folder for folder in folders}


def _outside_op(folder: Path) -> Op:
    op = getattr(outside.load_package(folder), "OP", None)
    if not isinstance(op, Op) or op.folder != op.name or not op.name.isidentifier():
        raise InputError(f"{folder}/__init__.py has no OP = Op(name=NAME, folder=NAME, ...) (docs/your_own_format.md)")
    if op.name in _own_names():
        raise InputError(f"{folder}/__init__.py: {op.name} is a format of genkern's own: give yours another name")
    for name in ("kernel.py.j2", "module.py.j2"):
        if not (folder / name).is_file():
            raise InputError(f"{folder} has no {name} (docs/your_own_format.md)")
    return op


def add_op(path: str) -> Op:
    """Make a format of someone's own known, here and in processes that are started from now on.

    `path` is its folder: a Python package with OP, kernel.py.j2, module.py.j2, and spaces as *.yaml. Raises InputError
    where it is not such a folder.
    """
    folder = Path(path).resolve()
    op = _outside_op(folder)
    taken = op_folders().get(op.name, folder)
    if taken != folder:
        raise InputError(f"{folder}: the format {op.name} is in {taken} already")
    outside.add_folder(folder)
    return op


def doc_of(name: str) -> str:
    """What the package of a format says of it: its docstring, "" if it has none."""
    is_own = name in _own_names()
    package = importlib.import_module(f"genkern.ops.{name}") if is_own else outside.load_package(op_folder(name))
    return package.__doc__ or ""


def op_by_type(dtype: str) -> Op:
    """The format that operands of this type mean where nothing names one."""
    ops = (get_op(name) for name in op_names())
    return next((op for op in ops if op.by_types and dtype in op.input_types), get_op(DEFAULT_OP))


def get_op(name: str) -> Op:
    """The op of that name. Raises InputError when there is none."""
    if name in _own_names():
        return _own_op(name)
    if name not in op_names():
        raise InputError(f"unknown op {name!r}: use one of {', '.join(op_names())}")
    op: Op = outside.load_package(op_folders()[name]).OP
    return op


# Asked of every config, and a format of someone else's cannot take one of these names.
@functools.lru_cache(maxsize=64)
def _own_op(name: str) -> Op:
    op: Op = importlib.import_module(f"genkern.ops.{name}").OP
    return op


# C of a problem [M, N], without its activation, of its operands by name, as PyTorch tensors.
Library = Callable[[GemmProblem, Mapping[str, Any]], Any]


# C [..., N] of x [..., K] and weight [N, K], as PyTorch tensors, and the bias [N] of a problem that has one.
Linear = Callable[..., Any]


def library_of(name: str) -> Library | None:
    """The function `library` in library.py of the format's folder: its product by PyTorch's own calls on any device.

    None where a format of someone's own has none.
    """
    library: Library | None = getattr(_library_module(name), "library", None)
    return library


def linear_of(problem: GemmProblem) -> Linear | None:
    """What `linear` in the same file gives for a problem: one function of PyTorch's that is the whole product.

    None where there is none, as for most formats.
    """
    linear = getattr(_library_module(problem.op), "linear", None)
    found: Linear | None = linear(problem) if linear is not None else None
    return found


@functools.lru_cache(maxsize=64)
def _library_module(name: str) -> Any:
    package = f"genkern.ops.{name}" if name in _own_names() else outside.load_package(op_folder(name)).__name__
    try:
        return importlib.import_module(f"{package}.library")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.library":
            raise
        return None


@functools.lru_cache(maxsize=4096)
def operands_of(problem: GemmProblem) -> tuple[Operand, ...]:
    """What the problem's format declares for it: A, B, C, then the others in the order in which kernels take them."""
    return get_op(problem.op).operands(problem)


@functools.lru_cache(maxsize=4096)
def element_bytes(problem: GemmProblem) -> tuple[float, float]:
    """Of an element of A, and of B: a part of a byte where several are packed in one."""
    a, b, *_ = operands_of(problem)
    return DTYPES[a.dtype].size_bytes / a.packed, DTYPES[b.dtype].size_bytes / b.packed


@functools.lru_cache(maxsize=4096)
def has_exponents(problem: GemmProblem) -> bool:
    """Whether both operands have scales of a byte along K: matrix units take these, or both become bf16."""
    scaled = {
        each.scales
        for each in operands_of(problem)
        if each.role == "scale" and each.in_step and DTYPES[each.dtype].size_bytes == 1
    }
    return scaled >= {"a", "b"}


@functools.lru_cache(maxsize=4096)
def bytes_moved(problem: GemmProblem) -> int:
    """Least traffic with device memory: each input read once, the output written once.

    Of weights of groups, those of as many as have rows on average where rows are shared evenly; of memory for more rows
    than there are, what is used.
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
    """How many columns of B a column of C is made of: of a gate and of what it lets through, two."""
    return operands_of(problem)[1].shape[-1] // problem.N


@functools.lru_cache(maxsize=4096)
def groups_of(problem: GemmProblem) -> Groups | None:
    """How the problem's rows go to weights, where it has many."""
    groups = get_op(problem.op).groups
    return groups(problem) if groups is not None else None


def row_tiles(problem: GemmProblem, block_m: int) -> int:
    """Tiles along the rows of one product: of groups, about how many there are where rows are shared evenly."""
    groups = groups_of(problem)
    return -(-problem.M // block_m) if groups is None else groups.expected_tiles(problem.M, block_m)


def gb_per_s(problem: GemmProblem, time_us: float) -> float:
    """Achieved GB/s (10^9 bytes) of `bytes_moved` at `time_us` microseconds."""
    return bytes_moved(problem) / time_us * 1e-3


def refusal(problem: GemmProblem, arch: str = "") -> str:
    """Why `arch` cannot compute the problem, or "". If `arch` is "" or unknown: why no known architecture can."""
    op = get_op(problem.op)
    if arch in known_archs():
        return op.refuse(problem, arch)
    # "" has no capabilities, so what it computes every architecture does: most problems end here.
    if not (reason := op.refuse(problem, "")):
        return ""
    return "" if any(not op.refuse(problem, each) for each in known_archs()) else reason


def check_problem(problem: GemmProblem, arch: str) -> None:
    """Raise InputError when the problem's types do not fit its op on `arch`, or the op cannot make its inputs."""
    op = get_op(problem.op)
    reason = op.refuse(problem, arch)
    if not reason and op.exact_inputs is None and op.groups is None:
        names = [operand.name for operand in op.operands(problem) if op.encodes(operand)]
        reason = f"only the format can make values for {', '.join(names)}: give its Op exact_inputs" if names else ""
    if reason:
        raise InputError(f"{problem.size} {problem.op}: {reason}")
