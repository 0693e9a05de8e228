"""The functions of formats with rows in groups, with what this process's environment names."""

from __future__ import annotations

from functools import lru_cache

from genkern.ops.fields import fields_of
from genkern.ops.op import get_op
from genkern.runtime.default import default_context
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.grouped import Grouped


@lru_cache(maxsize=64)
def routed_of(op: str) -> Grouped | Experts:
    """Of formats with stages the whole of these, else the product. Raises InputError where there is no such format."""
    staged = any(field.name == "stage" for field in fields_of(get_op(op).fields))
    return (Experts if staged else Grouped)(op, default_context())
