"""Batch-invariant products for engines that have a switch for them: `matmul_persistent` and `bmm_batch_invariant`.

These are the names of thinking-machines-lab's batch_invariant_ops, which vLLM and SGLang have adopted.

    from batch_invariant_ops import batch_invariant_ops
    from genkern.engines.invariant import take_over

    take_over(batch_invariant_ops)

If genkern has no kernels that serve every M of a weight with equal bits, the engine's own kernel computes its products
for all M.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import genkern
from genkern.engines.hooks import reason_text, require, wrap_attribute
from genkern.engines.products import BATCHED, WIDE, log_once
from genkern.gemm.dtypes import BY_TORCH
from genkern.runtime.process.torch_ops import define_plain, gemm_of

_MATMUL, _BMM = "matmul_persistent", "bmm_batch_invariant"
# The engine's own functions, which compute what genkern cannot.
_engines: dict[str, Callable[..., Any]] = {}
# Whether genkern serves a weight, by the key of `_form`. The first call decides for all M and all later calls; after a
# failure the engine's own function serves them.
_serves: dict[tuple[object, ...], bool] = {}


class _Inside(threading.local):
    """Counts the products of this module that are running in this thread."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *raised: object) -> None:
        self.depth -= 1


_inside = _Inside()


def matmul_persistent(a: Any, b: Any, bias: Any = None, out_dtype: Any = None) -> Any:
    """Return a [M, K] @ b [K, N] + bias [N], in a's type or `out_dtype`. A row has the same bits for every M.

    Raises InvarianceError if genkern has no such kernel and no engine's function was taken over.
    """
    return _operators()[_MATMUL](a, b, bias, out_dtype)


def bmm_batch_invariant(a: Any, b: Any, *, out: Any = None) -> Any:
    """Return a [batch, M, K] @ b [batch, K, N], written to `out` if it is given."""
    found = _operators()[_BMM](a, b)
    return found if out is None else out.copy_(found)


def take_over(module: ModuleType) -> None:
    """Replaces the module's matmul_persistent, and its bmm_batch_invariant if it has one.

    The originals compute products for which genkern has no kernel.

    `module` is the module that defines the functions: batch_invariant_ops.batch_invariant_ops, for example. Idempotent.
    Raises Misfit, and replaces nothing, if matmul_persistent is missing or a function has other parameters.
    """
    functions: dict[str, Callable[..., Any]] = {_MATMUL: matmul_persistent}
    require(getattr(module, _MATMUL, None), f"{module.__name__}.{_MATMUL}", ("a", "b", "bias"))
    if hasattr(module, _BMM):
        require(getattr(module, _BMM), f"{module.__name__}.{_BMM}", ("a", "b"))
        functions[_BMM] = bmm_batch_invariant

    def in_place_of(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(before: Callable[..., Any]) -> Callable[..., Any]:
            _engines[name] = before
            _serves.clear()
            function = functions[name]

            # A new function for each module: put_around() stores the original as an attribute of it.
            def replaced(*given: Any, **named: Any) -> Any:
                return function(*given, **named)

            return replaced

        return make

    _operators()
    for name in functions:
        wrap_attribute(module, name, in_place_of(name))


def _matmul(a: Any, b: Any, bias: Any = None, out_dtype: Any = None) -> Any:
    given = (a, b, bias) if out_dtype is None else (a, b, bias, out_dtype)
    return _served(_MATMUL, WIDE, (a, b.mT, bias, out_dtype), given)


def _bmm(a: Any, b: Any) -> Any:
    return _served(_BMM, BATCHED, (a, b.mT, None, None), (a, b))


def _served(name: str, op: str, of_genkern: tuple[Any, ...], of_engine: tuple[Any, ...]) -> Any:
    """Returns the product: by genkern if it serves the weight for every M, else by the engine's own function."""
    x, weight, bias, out_dtype = of_genkern
    engine, form = _engines.get(name), _form(op, x, weight, bias, out_dtype)
    if engine is not None and x.numel() == 0:
        # An empty x has no rows, so it must not decide for later calls.
        return engine(*of_engine)
    serves = _serves.get(form)
    if serves is None and engine is not None and not _is_known(x.dtype, weight.dtype, out_dtype):
        serves = _serves[form] = False
    # If a launch fails, genkern calls PyTorch's product, which the engine may have routed back to this function.
    if engine is not None and (serves is False or _inside.depth):
        return engine(*of_engine)
    try:
        with genkern.batch_invariant(), _inside:
            found = gemm_of(op).direct(x, weight, bias, out_dtype, None, None, None, {})
    except Exception as reason:
        if engine is None:
            raise
        _serves[form] = False
        line = f"{reason_text(reason)}: the engine's own kernel computes products by this weight, for every M"
        if serves:
            # The engine continues. Its rows have equal bits from here on, but not the bits of genkern's kernels.
            line += "; rows that genkern computed before may have other bits"
        log_once(form, line, logging.WARNING if serves else logging.INFO)
        return engine(*of_engine)
    _serves[form] = True
    return found


def _form(op: str, x: Any, weight: Any, bias: Any, out_dtype: Any) -> tuple[object, ...]:
    """Return the key on which the choice of kernels for a weight depends."""
    lies = weight.shape, weight.stride(-1) == 1, x.stride(-1) == 1
    return op, *lies, x.dtype, weight.dtype, bias is None, out_dtype, x.get_device()


def _is_known(*dtypes: Any) -> bool:
    return all(str(each) in BY_TORCH for each in dtypes if each is not None)


def _fake_matmul(a: Any, b: Any, bias: Any = None, out_dtype: Any = None) -> Any:
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype or a.dtype)


def _fake_bmm(a: Any, b: Any) -> Any:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


_made: dict[str, Callable[..., Any]] = {}


def _operators() -> dict[str, Callable[..., Any]]:
    """Return one operator per product. Tracing does not enter it, so M is read when it runs."""
    if not _made:
        schema = "(Tensor a, Tensor b, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor"
        _made[_BMM] = define_plain(_BMM, "(Tensor a, Tensor b) -> Tensor", (), _bmm, _fake_bmm)
        _made[_MATMUL] = define_plain(_MATMUL, schema, (), _matmul, _fake_matmul)
    return _made
