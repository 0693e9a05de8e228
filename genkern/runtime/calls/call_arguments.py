"""The arguments of a call as a problem and its operands; InputError if they do not fit together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from genkern.errors import InputError
from genkern.gemm.dtypes import BY_TORCH, CODES, DTYPES
from genkern.gemm.operand import Operand
from genkern.gemm.problem import ACTIVATIONS, GemmProblem, Own
from genkern.ops.accumulate import as_called
from genkern.ops.fields import fields_of, parse_own
from genkern.ops.op import Op

# The argument of a call that holds an operand other than A, B and C, by the operand's role and what it scales.
_NAMES = {("bias", ""): "bias", ("scale", "a"): "scale_a", ("scale", "b"): "scale_b"}
# The type of C if x has 8 bits and the call does not say a type. Otherwise it is the type of x.
_OUT_OF_BYTES = "bf16"


@dataclass(frozen=True)
class CallArguments:
    """A call's arguments.

    op: the number format.
    problem: the call's problem; None if a dimension is 0.
    lead: the dimensions of x before the last one.
    n: N, the number of rows of the weight.
    out: the torch.dtype of the result.
    device: PyTorch's index of the device; -1 for a CPU.
    extra: names of the operands besides x and weight in the format's order; in the call's order if `problem` is None.
    extra_operands: the operands with these names; empty if `problem` is None.
    activation: the activation's name, or "none".
    is_linear: True if there are no operands besides x and weight, except a bias [N].
    others: the same problem with A or B in the other layout, if x or weight has both: a single row is row-major and
        column-major.
    """

    op: Op
    problem: GemmProblem | None
    lead: tuple[int, ...]
    n: int
    out: Any
    device: int
    extra: tuple[str, ...]
    extra_operands: tuple[Operand, ...]
    activation: str
    is_linear: bool
    others: tuple[GemmProblem, ...] = ()

    @classmethod
    def of(
        cls,
        op: Op,
        x: Any,
        weight: Any,
        bias: Any,
        out_dtype: Any,
        scale_a: Any,
        scale_b: Any,
        activation: str | None,
        own: Mapping[str, object],
    ) -> CallArguments:
        """Check a call's arguments and return them. Raise InputError, which names an argument and its expected form."""
        import torch

        if x.dim() < 1 or weight.dim() != 2 + op.batched or (op.batched and x.shape[:-2] != weight.shape[:-2]):
            raise _apart(x, weight, op)
        devices = {each.get_device() for each in (x, weight, bias, scale_a, scale_b) if each is not None}
        if len(devices) > 1:
            raise InputError(
                f"operands are on several devices ({', '.join(map(str, sorted(devices)))}): move them to one"
            )
        if activation is not None and activation not in ACTIVATIONS:
            raise InputError(f"activation = {str(activation)[:40]!r} is not one of {', '.join(ACTIVATIONS)}")
        *lead, k = x.shape
        n, m = int(weight.shape[-2]), math.prod(lead)
        if op.batched:
            own = {**own, "batch_size": int(lead[0])}
            m = int(lead[1])
        a, b = (CODES.get(str(each.dtype)) or _name_of(each, name) for each, name in ((x, "x"), (weight, "weight")))
        c = (_OUT_OF_BYTES if DTYPES[a].size_bytes == 1 else a) if out_dtype is None else _name(out_dtype, "out_dtype")
        given = {"bias": bias, "scale_a": scale_a, "scale_b": scale_b}
        problem = None
        others: tuple[GemmProblem, ...] = ()
        extra = tuple(name for name, tensor in given.items() if tensor is not None)
        operands: tuple[Operand, ...] = ()
        # An empty dimension counts as 1 here, only so that a GemmProblem can be built.
        like = GemmProblem(max(m, 1), max(n, 1), max(int(k), 1), op.name, a, b, c, activation=activation or "none")
        k = _require_k(op, like, x, weight)
        if m and n and k and weight.shape[0]:
            # nn.Linear's weight is the transpose of B [K, N].
            like = replace(like, K=k, row_major_b=not row_majors(weight)[0], bias=bias is not None)
            problem, operands = _with_operands(op, like, given, own)
            extra = tuple(map(_named, operands))
            rows = as_matrix(x, op, m)
            layouts = itertools.product((True,) if rows is None else row_majors(rows), row_majors(weight))
            problem, *found = _in_layouts(op, problem, ((of_a, not of_b) for of_a, of_b in layouts))
            others = tuple(found)
        out = getattr(torch, DTYPES[c].torch)
        is_linear = scale_a is None and scale_b is None and (bias is None or bias.dim() == 1)
        known = extra, operands, activation or "none", is_linear, others
        return cls(op, problem, tuple(lead), n, out, devices.pop(), *known)


def _with_operands(
    op: Op, like: GemmProblem, given: Mapping[str, Any], own: Mapping[str, object]
) -> tuple[GemmProblem, tuple[Operand, ...]]:
    """Return the problem with the format's own fields, and all of its operands except x and the weight.

    `given` has the tensors by name. Raises InputError if the tensors do not fit the operands, or if a tensor is given
    that the format does not take.
    """
    operands: tuple[Operand, ...] = ()
    for values in _own_values(op, own):
        problem = replace(like, own=values)
        problem = as_called(problem, operands := op.extra_operands(problem))
        if all(_fits(operand, given[_named(operand)], op) for operand in operands):
            break
    else:
        raise InputError(_unfit(op, operands, given))
    names = set(map(_named, operands))
    if unused := [name for name, tensor in given.items() if tensor is not None and name not in names]:
        raise InputError(f"{op.name} takes no {' and no '.join(unused)}: leave it out, or use another format")
    return problem, operands


def as_matrix(x: Any, op: Op, rows: int) -> Any:
    """Return x [..., K] as a matrix with `rows` rows, or as a batch of matrices; None if no view is possible."""
    if x.dim() == 2 + op.batched:
        return x
    try:
        return x.view((rows, x.shape[-1]))
    except RuntimeError:
        return None


def row_majors(matrix: Any) -> tuple[bool, ...]:
    """Return the layouts of a matrix (the last two dimensions): True for row-major, False for column-major.

    A matrix with one row or one column may have both, since its strides say nothing. A matrix with neither counts as
    row-major.
    """
    (rows, columns), (pitch, along) = matrix.shape[-2:], matrix.stride()[-2:]
    found = (*[True] * (columns <= 1 or along == 1), *[False] * (rows <= 1 or pitch == 1))
    return found or (True,)


def _in_layouts(op: Op, problem: GemmProblem, layouts: Iterable[tuple[bool, bool]]) -> list[GemmProblem]:
    """Return the problem in each of the layouts (A row-major, B row-major) that its format supports.

    Returns the problem itself if the format refuses all of them, and all of them if the format refuses the problem
    anyway.
    """
    others = [replace(problem, row_major_a=of_a, row_major_b=of_b) for of_a, of_b in layouts]
    refused = op.refuse(problem, "") != ""
    return [each for each in others if refused or each == problem or not op.refuse(each, "")] or [problem]


def _own_values(op: Op, own: Mapping[str, object]) -> Iterator[Own]:
    """Yield values of the format's own fields to try. Raises InputError for an unknown field.

    A field with words that the call leaves out has its default for calls, if it has one (`in_calls`); else it takes
    each of its words in turn, the default first.
    """
    fields = fields_of(op.fields)
    if unknown := set(own) - {field.name for field in fields}:
        raise InputError(f"{op.name} has no {', '.join(sorted(unknown))}")
    open_words = [field for field in fields if field.words and field.name not in own]
    for words in itertools.product(*((field.in_calls,) if field.in_calls else field.words for field in open_words)):
        chosen = {field.name: word for field, word in zip(open_words, words, strict=True)}
        yield parse_own(op.fields, {**chosen, **own})


def _named(operand: Operand) -> str:
    name = _NAMES.get((operand.role, operand.scales))
    if name is None:
        raise InputError(f"a call has no argument for operand {operand.name}, a {operand.role}")
    return name


def _require_k(op: Op, problem: GemmProblem, x: Any, weight: Any) -> int:
    """Return K, with packed elements counted one by one. Raise InputError if x and weight have different K."""
    a, b, *_ = op.operands(problem)
    for name, tensor, operand in (("x", x, a), ("weight", weight, b)):
        if str(tensor.dtype) in CODES and not _has_type(tensor, operand, op):
            raise InputError(f"{name} is {tensor.dtype}: use one of {', '.join(sorted(BY_TORCH))}")
    k = int(x.shape[-1]) * a.packed
    if -(-k // b.packed) != weight.shape[-1]:
        raise _apart(x, weight, op, a.packed, b.packed)
    return k


def _apart(x: Any, weight: Any, op: Op, packed_a: int = 1, packed_b: int = 1) -> InputError:
    of_a, of_b = (f"K / {packed}" if packed > 1 else "K" for packed in (packed_a, packed_b))
    wanted = f"[..., {of_a}] and [N, {of_b}]"
    if op.batched:
        wanted = "[batch, M, K] and [batch, N, K]"
    return InputError(f"x {_shape(x)} and weight {_shape(weight)}: they must be {wanted}")


def _has_type(tensor: Any, operand: Operand, op: Op) -> bool:
    if str(tensor.dtype) in CODES:
        return op.encodes(operand) and CODES[str(tensor.dtype)] == operand.dtype
    return _name_of(tensor, operand.name) == operand.dtype


def _fits(operand: Operand, tensor: Any, op: Op) -> bool:
    return tensor is not None and _has_type(tensor, operand, op) and _same(tensor, operand)


def _same(tensor: Any, operand: Operand) -> bool:
    """Return True if the shapes agree, apart from dimensions of 1."""
    return [size for size in tensor.shape if size > 1] == [size for size in operand.shape if size > 1]


def _unfit(op: Op, operands: tuple[Operand, ...], given: Mapping[str, Any]) -> str:
    wanted = ", ".join(f"{_named(each)} {list(each.shape)} {each.dtype}" for each in operands)
    found = ", ".join(f"{name} {_shape(tensor)} {tensor.dtype}" for name, tensor in given.items() if tensor is not None)
    return f"{op.name} is given {found or 'nothing'} besides x and weight, but takes {wanted or 'nothing'}"


def _shape(tensor: Any) -> str:
    return str(list(tensor.shape))


def _name_of(tensor: Any, what: str) -> str:
    return _name(tensor.dtype, what)


def _name(dtype: Any, what: str) -> str:
    name = BY_TORCH.get(str(dtype))
    if name is None:
        raise InputError(f"{what} is {dtype}: use one of {', '.join(sorted(BY_TORCH))}")
    return name
