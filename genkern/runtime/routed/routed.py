"""The functions of formats with rows in groups, with what this process's environment names, and their operators."""

from __future__ import annotations

from genkern.ops.fields import fields_of
from genkern.ops.op import get_op
from genkern.runtime.default import default_context
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.grouped import Grouped
from genkern.runtime.routed.operators import define
from genkern.runtime.torch_ops import made_once


def routed_of(op: str) -> Grouped | Experts:
    """Of formats with stages the whole of these, else the product. Raises InputError where there is no such format."""
    staged = any(field.name == "stage" for field in fields_of(get_op(op).fields))

    def make() -> Grouped | Experts:
        calls = (Experts if staged else Grouped)(op, default_context())
        calls.operator = define(calls)
        return calls

    return made_once(op, make)
