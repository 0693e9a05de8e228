"""GEMMs of PyTorch tensors by tuned kernels: a function `gemm_<format>(x, weight, ...)` for each format (see dir()).

    from genkern import tuned_gemm
    y = tuned_gemm.gemm_a16w16(x, weight, bias)  # as torch.nn.functional.linear

Each computes activation(scale_a * scale_b * (x @ weight.T) + bias) of x [..., K] and weight [N, K] (batched formats: of
x [batch, M, K] and weight [batch, N, K]), by the winner that the bundles or results files named by GENKERN_CONFIG have
for the call, otherwise by PyTorch. Formats of rows in groups, and of a mixture of experts, take other arguments: the
`__doc__` of each function has its own. docs/dispatch.md says which winner is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from genkern.ops.op import get_op, op_names

if TYPE_CHECKING:
    from genkern.runtime.calls.dispatch import Gemm
    from genkern.runtime.routed.experts import Experts
    from genkern.runtime.routed.grouped import Grouped

_PREFIX = "gemm_"


def __dir__() -> list[str]:
    return ["renew", *(f"{_PREFIX}{name}" for name in op_names())]


def renew() -> None:
    """Read the files that the environment names again if they have changed; later calls use their winners.

    A collective operation if several ranks of torch.distributed tune online (GENKERN_ONLINE_TUNING=1): every rank must
    call it at the same point of the program, and has the winners of the first rank afterwards.
    """
    from genkern.runtime.process.default_context import renew

    renew()


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the function of a format, which is created on first access. Raise AttributeError for an unknown format."""
    if not name.startswith(_PREFIX) or name.removeprefix(_PREFIX) not in op_names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    op = get_op(name.removeprefix(_PREFIX))
    made: Gemm | Grouped | Experts
    if op.groups is None:
        from genkern.runtime.process.torch_ops import gemm_of

        made = gemm_of(op.name)
    else:
        from genkern.runtime.routed.functions import routed_of

        made = routed_of(op.name)
    globals()[name] = made
    return made
