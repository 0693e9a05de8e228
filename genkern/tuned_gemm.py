"""GEMMs of tensors by tuned kernels: a function `gemm_<format>(x, weight, ...)` for each format (dir() has them).

Each computes activation(scale_a * scale_b * (x @ weight.T) + bias) of x [..., K] and weight [N, K], those of batches of
x [batch, M, K] and weight [batch, N, K], by the winner that the bundles or results named by GENKERN_CONFIG have for it,
and by PyTorch where they have none. What the arguments are is said by genkern.runtime.dispatch.Gemm, of formats whose
rows go to one of many weights by genkern.runtime.routed's Grouped and Experts; docs/dispatch.md says which winner is
taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from genkern.ops.op import get_op, op_names

if TYPE_CHECKING:
    from genkern.runtime.dispatch import Gemm
    from genkern.runtime.routed.experts import Experts
    from genkern.runtime.routed.grouped import Grouped

_PREFIX = "gemm_"


def __dir__() -> list[str]:
    return ["renew", *(f"{_PREFIX}{name}" for name in op_names())]


def renew() -> None:
    """Look anew into the files that the environment names, and use from now on what has come since.

    Where several ranks tune online they then all have what the first one has: so every rank must call this at the same
    point of its program, as a collective of torch.distributed.
    """
    from genkern.runtime.default import renew

    renew()


def __getattr__(name: str) -> Callable[..., Any]:
    """The function of a format, which says what it takes. Raises AttributeError where there is no such format."""
    if not name.startswith(_PREFIX) or name.removeprefix(_PREFIX) not in op_names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    op = get_op(name.removeprefix(_PREFIX))
    made: Gemm | Grouped | Experts
    if op.groups is None:
        from genkern.runtime.torch_ops import gemm_of

        made = gemm_of(op.name)
    else:
        from genkern.runtime.routed.routed import routed_of

        made = routed_of(op.name)
    globals()[name] = made
    return made
