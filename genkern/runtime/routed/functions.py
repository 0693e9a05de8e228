"""The functions of grouped formats with the bundles that the environment names, and their operators."""

from __future__ import annotations

from genkern.ops.fields import fields_of
from genkern.ops.op import get_op, op_names
from genkern.runtime.process.default_context import default_context
from genkern.runtime.process.torch_ops import create_once
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.grouped import Grouped
from genkern.runtime.routed.operators import define


def staged_op() -> str:
    """Return the format whose problems are the two products of a mixture of experts."""
    return next(name for name in op_names() if _is_staged(name))


def _is_staged(op: str) -> bool:
    return any(field.name == "stage" for field in fields_of(get_op(op).fields))


def routed_of(op: str) -> Grouped | Experts:
    """Return the function of a grouped format: the whole layer if it has stages, else the product.

    Raises InputError for an unknown format.
    """
    staged = _is_staged(op)

    def make() -> Grouped | Experts:
        calls = (Experts if staged else Grouped)(op, default_context())
        calls.operator = define(calls)
        return calls

    return create_once(op, make)
