"""Formats as PyTorch operators, torch.ops.genkern.gemm_*: for torch.compile, export and autograd.

By Library.define and impl: a custom_op costs 7 us a call (pytorch issue 177109). Eager calls that need none of it go
past the operator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from genkern.ops.fields import Field, fields_of
from genkern.runtime.dispatch import Calls, Gemm
from genkern.runtime.gradients import Gradients

_LIBRARY = torch.library.Library("genkern", "FRAGMENT")
_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias=None, ScalarType? out_dtype=None, Tensor? scale_a=None, "
    "Tensor? scale_b=None, str? activation=None{own}) -> Tensor"
)

_made: dict[str, Any] = {}
_making = threading.Lock()
C = TypeVar("C", bound=Calls)


def gemm_of(op: str) -> Gemm:
    """The function of a format, with what this process's environment names, and its operator. Raises InputError."""
    from genkern.runtime.default import default_context

    def make() -> Gemm:
        gemm = Gemm(op, default_context())
        gemm.operator = define(gemm)
        return gemm

    return made_once(op, make)


def made_once(op: str, make: Callable[[], C]) -> C:
    """The function of a format, which is made, and its operator defined, once, whoever asks at the same time."""
    with _making:
        if op not in _made:
            _made[op] = make()
        made: C = _made[op]
        return made


def define(gemm: Gemm, name: str = "") -> Any:
    """The operator of a format: torch.ops.genkern.gemm_OP, or another name."""
    gradients, fields = Gradients(gemm), fields_of(gemm.op.fields)
    return define_calls(gemm, name or gemm.__name__, _SCHEMA, fields, _fake, gradients.backward, gradients.setup)


def define_calls(
    calls: Calls,
    name: str,
    schema: str,
    fields: Sequence[Field],
    fake: Callable[..., Any],
    backward: Callable[..., Any],
    setup: Callable[..., None],
) -> Any:
    """The operator `name` of calls; `schema` has {own} where the fields of the format come that calls are given."""
    names = [field.name for field in fields]

    def run(*given: Any) -> Any:
        common = len(given) - len(names)
        own = zip(names, given[common:], strict=True)
        # Of words the tensors tell which one is meant, where nobody says.
        return calls.direct(*given[:common], {name: value for name, value in own if value is not None})

    return define_plain(name, schema, fields, run, fake, backward, setup)


def define_plain(
    name: str,
    schema: str,
    fields: Sequence[Field],
    run: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup: Callable[..., None] | None = None,
) -> Any:
    """An operator that does what `run` does, which is given all its arguments in their order."""
    own = "".join(f", str? {f.name}=None" if f.words else f", int {f.name}={f.default}" for f in fields)
    _LIBRARY.define(name + schema.format(own=own), tags=[torch.Tag.pt2_compliant_tag])
    operator = getattr(torch.ops.genkern, name).default
    defaults = [argument.default_value for argument in operator._schema.arguments]
    for key in ("CUDA", "CPU"):
        # PyTorch leaves out last arguments that are the defaults.
        _LIBRARY.impl(name, lambda *given: run(*given, *defaults[len(given) :]), key)
    qualified = f"genkern::{name}"
    torch.library.register_fake(qualified, fake, lib=_LIBRARY)
    if backward is not None:
        torch.library.register_autograd(qualified, backward, setup_context=setup, lib=_LIBRARY)
    return operator


def _fake(x: Any, weight: Any, bias: Any = None, out_dtype: Any = None, *more: Any, **own: Any) -> Any:
    if out_dtype is None:
        out_dtype = torch.bfloat16 if x.dtype.itemsize == 1 else x.dtype
    return x.new_empty((*x.shape[:-1], weight.shape[-2]), dtype=out_dtype)
