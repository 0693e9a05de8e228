"""What PTX without memory computes, for tests/gluon_ptx.py: numbers of all threads at once."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np


def _signed(number: Any) -> Any:
    """Of 32 bits, which may have been cut off as if they had no sign."""
    return ((number + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add.u32": operator.add,
    "sub.u32": operator.sub,
    "mul.lo.u32": operator.mul,
    "mul.wide.s32": lambda a, b: _signed(a) * _signed(b),
    "div.u32": operator.floordiv,
    "min.u32": np.minimum,
    "xor.b32": operator.xor,
    "mad.wide.u32": lambda a, b, c: a * b + c,
    "setp.lt.and.u32": lambda a, b, c: (a < b) & c,
    "add.s64": operator.add,
    "sub.s64": operator.sub,
    "shl.b32": operator.lshift,
    "shl.b64": operator.lshift,
    "shr.u32": operator.rshift,
    "and.b32": operator.and_,
    "and.b64": operator.and_,
    "cvt.u32.u64": lambda a: a & 0xFFFFFFFF,
    "or.b32": operator.or_,
    "and.pred": operator.and_,
    "or.pred": operator.or_,
    "mad.lo.u32": lambda a, b, c: a * b + c,
    "mov.u32": lambda a: a,
    "mov.u16": lambda a: a,
    "setp.eq.u32": operator.eq,
    "setp.ne.u32": operator.ne,
    "setp.lt.u32": operator.lt,
    "setp.ne.and.u32": lambda a, b, c: (a != b) & c,
}


@functools.lru_cache
def has_32_bits(name: str) -> bool:
    """Whether what the instruction of this name makes is cut to 32 bits."""
    bits = re.search(r"\D(32|64)$", name)
    return bits is not None and bits[1] == "32" and ".wide" not in name
