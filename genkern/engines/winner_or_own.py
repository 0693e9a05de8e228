"""Choice between a winner and the engine's own kernel, by M at run time, in one operator that is opaque to tracing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from genkern.engines.hooks import served_or_own
from genkern.errors import GenkernError
from genkern.ops.op import get_op
from genkern.runtime.calls.call_arguments import CallArguments
from genkern.runtime.calls.implementation import as_tuned
from genkern.runtime.process.default_context import default_context
from genkern.runtime.process.torch_ops import define_plain, gemm_of

# Computes the result [M, N] of a product from its tensors. A hook returns None if no winner serves that M.
Product = Callable[..., Any]
# What traced code calls: computes the result from a list of tensors, the result's number of columns and its type.
Opaque = Callable[[list[Any], int, Any], Any]
_MOST_KEPT = 2**16
_known: dict[tuple[object, ...], bool] = {}
_calls: dict[str, Product] = {}
_made: list[Callable[..., Any]] = []


def served_product(name: str, hook: Product, own: Product) -> Opaque:
    """Returns one operator, opaque to tracing, that calls `hook` with the tensors, or else `own` (served_or_own).

    The result has as many rows as the first tensor. Layers with an equal `name` share the operator's call, so `name`
    must contain everything that `own` depends on besides its tensors. Compiled programs contain the name: an engine may
    load them in another process, which must have registered the same name for the same product.
    """
    _calls.setdefault(name, served_or_own(name, hook, own))
    if not _made:
        schema = "(Tensor[] tensors, int columns, ScalarType dtype, str call) -> Tensor"
        _made.append(define_plain("engine_call", schema, (), _run, _fake))
    product = _made[0]
    return lambda tensors, columns, dtype: product(tensors, columns, dtype, name)


def _run(tensors: Any, columns: int, dtype: Any, call: str) -> Any:
    return _calls[call](*tensors)


def _fake(tensors: Any, columns: int, dtype: Any, call: str) -> Any:
    return tensors[0].new_empty((*tensors[0].shape[:-1], columns), dtype=dtype)


def plain_product(op: str) -> Product:
    """Returns a hook that multiplies x by weight [N, K] and adds a bias [N], if there is one.

    If no winner serves M, the hook calls the library.
    """
    gemm = gemm_of(op)
    return lambda x, weight, bias=None: gemm.direct(x, weight, bias, None, None, None, None, {})


def scaled_product(op: str, out_dtype: Any, fields: Mapping[str, int | str]) -> Product:
    """Returns a hook that multiplies x [M, K] by weight [N, K], both in 8 bits with scales, and adds a bias if given.

    The hook returns None for an M without a winner: the engine's own kernel is then better than genkern's library call.
    cuBLASLt, for example, has no product with scales of blocks unless M is a multiple of 4.
    """
    gemm = gemm_of(op)

    def call(x: Any, weight: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> Any:
        given = x, weight, bias, out_dtype, scale_a, scale_b, None, fields
        return gemm.direct(*given) if has_winner(op, *given) else None

    return call


def quantised_product(op: str, quantise: Callable[..., Any], fields: Mapping[str, int | str]) -> Product:
    """Returns a hook that quantises x [M, K] from 16 bits and multiplies it by an 8-bit weight [N, K] with scales.

    The result has x's type; it is None for an M without a winner. `quantise` gets x and all arguments after the bias,
    and returns x in 8 bits and its scales.
    """
    gemm = gemm_of(op)
    known: dict[tuple[object, ...], bool] = {}

    def call(x: Any, weight: Any, scale_b: Any, bias: Any = None, *more: Any) -> Any:
        key = x.shape, weight.shape, x.dtype, bias is None, x.get_device()
        if known.get(key) is False:
            return None
        rows, scale = quantise(x, *more)
        given = rows, weight, bias, x.dtype, scale, scale_b, None, fields
        if key not in known:
            known[key] = has_winner(op, *given)
        return gemm.direct(*given) if known[key] else None

    return call


def has_winner(op: str, x: Any, weight: Any, bias: Any, out: Any, scale_a: Any, scale_b: Any, *more: Any) -> bool:
    """Returns True if a genkern kernel, or a library algorithm that won, serves a call with these arguments."""
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
        found = CallArguments.of(get_op(op), *given)
    except GenkernError:
        return False
    problem, gpu = as_tuned(context, found), context.gpu(found.device)
    if problem is None or gpu is None:
        return False
    choice = context.find(gpu, problem)
    return choice.call is not None or choice.algorithm != ""
