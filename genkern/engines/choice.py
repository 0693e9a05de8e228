"""Choice: of a product with scales, a winner or the engine's own kernel, by M, when the call runs.

At an M without a winner an engine's own kernels are better than genkern's library: cuBLASLt has no product with scales
of blocks where M is no multiple of 4, for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from genkern.errors import GenkernError
from genkern.ops.op import get_op
from genkern.runtime.default import default_context
from genkern.runtime.given import Given
from genkern.runtime.served import as_tuned
from genkern.runtime.torch_ops import define_plain, gemm_of

# x [M, K], weight [N, K], both scales, and a bias [N] where there is one, to [M, N].
Product = Callable[..., Any]
_MOST_KEPT = 2**16
_known: dict[tuple[object, ...], bool] = {}
_calls: list[Product] = []
_made: list[Callable[..., Any]] = []


def opaque(call: Product) -> Callable[..., Any]:
    """`call` of tensors as one operator, into which tracing does not look: given these in a list, and the columns and
    type of the result, whose other dimensions are those of the first.
    """
    if not _made:
        schema = "(Tensor[] tensors, int columns, ScalarType dtype, int call) -> Tensor"
        _made.append(define_plain("engine_call", schema, (), _run, _fake))
    product, number = _made[0], len(_calls)
    _calls.append(call)
    return lambda tensors, columns, dtype: product(tensors, columns, dtype, number)


def _run(tensors: Any, columns: int, dtype: Any, call: int) -> Any:
    return _calls[call](*tensors)


def _fake(tensors: Any, columns: int, dtype: Any, call: int) -> Any:
    return tensors[0].new_empty((*tensors[0].shape[:-1], columns), dtype=dtype)


def winner_or(own: Product | None, op: str, out_dtype: Any, fields: Mapping[str, int | str]) -> Product:
    """A product by a winner where there is one for its M, else by `own`; without one by genkern's library."""
    gemm = gemm_of(op)

    def call(x: Any, weight: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> Any:
        given = x, weight, bias, out_dtype, scale_a, scale_b, None, fields
        if own is not None and not has_winner(op, *given):
            return own(x, weight, scale_a, scale_b, *(() if bias is None else (bias,)))
        return gemm.direct(*given)

    return call


def quantised_or(own: Product, op: str, quantised: Callable[..., Any], fields: Mapping[str, int | str]) -> Product:
    """The same of an x in 16 bits, in whose type the result is: `quantised` gives x in 8 bits and its scale, of x and
    what else the call is given behind a bias (None where there is none); `own` is given all of it.
    """
    gemm = gemm_of(op)
    known: dict[tuple[object, ...], bool] = {}

    def call(x: Any, weight: Any, scale_b: Any, bias: Any, *more: Any) -> Any:
        key = x.shape, weight.shape, x.dtype, bias is None, x.get_device()
        if known.get(key) is not False:
            rows, scale = quantised(x, *more)
            given = rows, weight, bias, x.dtype, scale, scale_b, None, fields
            if key not in known:
                known[key] = has_winner(op, *given)
            if known[key]:
                return gemm.direct(*given)
        return own(x, weight, scale_b, bias, *more)

    return call


def has_winner(op: str, x: Any, weight: Any, bias: Any, out: Any, scale_a: Any, scale_b: Any, *more: Any) -> bool:
    """Whether a kernel of genkern's, or an algorithm of the library's that was raced, serves such a call."""
    given = x, weight, bias, out, scale_a, scale_b, *more
    lies = weight.stride(-1) == 1, scale_a.numel() == 1, scale_b.numel() == 1
    sizes, types = (x.shape, weight.shape), (x.dtype, weight.dtype, out)
    key = id(default_context()), op, *sizes, *types, bias is None, x.get_device(), *lies
    if key not in _known:
        if len(_known) >= _MOST_KEPT:
            _known.clear()
        _known[key] = _finds(op, given)
    return _known[key]


def _finds(op: str, given: tuple[Any, ...]) -> bool:
    context = default_context()
    try:
        found = Given.of(get_op(op), *given)
    except GenkernError:
        return False
    problem, gpu = as_tuned(context, found), context.gpu(found.device)
    if problem is None or gpu is None:
        return False
    choice = context.find(gpu, problem)
    return choice.call is not None or choice.algorithm != ""
