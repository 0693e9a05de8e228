"""The product by PyTorch's own calls on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.ops.a8w8.library import library as of_plain
from genkern.ops.a8w8_bpreshuffle import layout, plain
from genkern.ops.shuffle import plain_weight


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Like the library function of a8w8, with the weights unshuffled first."""
    return of_plain(plain(problem), {**operands, "b": plain_weight(operands["b"], problem, layout(problem))})
