"""Engines' mixtures of experts, computed by winners if both products of a layer have winners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch

import genkern
from genkern.engines.layers import NO_WINNER, size_of, weight_bytes
from genkern.engines.layers import Layer as EngineLayer
from genkern.engines.products import tuned_of
from genkern.errors import GenkernError
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.runtime.process.default_context import default_context
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.functions import routed_of, staged_op
from genkern.runtime.routed.layer import Layer

_MOST_KEPT = 4096
# Winners serve up to this multiple of the largest tuned number of tokens (of the two products' largest numbers, the
# smaller one).
_BEYOND = 2
_found: dict[tuple[object, ...], bool] = {}


def by_winners(
    x: Any,
    gate_up: Any,
    down: Any,
    routing_weights: Any,
    ids: Any,
    gate_up_scale: Any = None,
    down_scale: Any = None,
    x_scale: Any = None,
    activation: str = "silu",
    out_dtype: Any = None,
    *,
    invariant: bool = False,
    out: Any = None,
) -> Any:
    """Returns a layer's result [tokens, K]; genkern.runtime.routed.experts describes the arguments.

    If `out` is given, a tensor [tokens, K] of the result's type, the result is written there, and `out` is returned.

    Returns None, so that the engine's own kernel computes the layer, if genkern cannot compute such a layer or one of
    the products has no winner for this number of tokens; with `invariant`, if no kernels serve all numbers of tokens
    with equal bits. With `invariant`, an error after a served call is raised. Engines run a layer as one operator,
    which tracing does not look into: a choice at each call is safe.
    """
    calls = cast(Experts, routed_of(staged_op()))
    tensors = x, gate_up, down, routing_weights, ids, gate_up_scale, down_scale
    given: tuple[Any, ...] = (*tensors, activation, None, x_scale, out_dtype, {})
    forms = (None if each is None else (tuple(each.shape), each.dtype) for each in (gate_up, down, gate_up_scale))
    rows = 0 if invariant else x.shape[0]
    key = rows, x.dtype, ids.shape[-1], x.get_device(), activation, out_dtype, invariant, *forms
    known = _found.get(key)
    if known is False:
        return None
    if known is None and not invariant and not _is_tuned(given):
        return _remember(key, False)
    try:
        if not invariant:
            return _remember(key, True, _called(calls, given, out))
        with genkern.batch_invariant():
            return _remember(key, True, _called(calls, given, out))
    except GenkernError as error:
        # The layer was served before; the engine's kernel would give other bits.
        if invariant and known:
            raise
        default_context().say(key, f"experts {tuple(gate_up.shape)}: {error}: they are the engine's own")
        return _remember(key, False)


def _called(calls: Experts, given: tuple[Any, ...], out: Any) -> Any:
    if out is None:
        return calls(*given[:-1])
    calls.direct_into(out, *given)
    return out


def _remember(key: tuple[object, ...], is_served: bool, result: Any = None) -> Any:
    if len(_found) >= _MOST_KEPT:
        _found.clear()
    _found[key] = is_served
    return result


def _is_tuned(given: tuple[Any, ...]) -> bool:
    context = default_context()
    gpu = context.gpu(given[0].get_device())
    try:
        layer = Layer.of(get_op(staged_op()), *given)
    except GenkernError:
        # genkern cannot compute the layer, so the engine does.
        return False
    stages: list[GemmProblem | None] = [layer.first, layer.second]
    if gpu is None or None in stages:
        return False
    found = [set(tuned_of(context, gpu, each)) for each in stages if each is not None]
    # Far beyond the tuned numbers of tokens, the engine's own kernel is assumed to be as good as a winner.
    reaches = all(found) and layer.tokens <= _BEYOND * min(map(max, found))
    return reaches and all(context.find(gpu, each).call is not None for each in stages if each is not None)


def stages(
    gate_up: Any, down: Any, dtype_x: Any, top_k: int, scales: tuple[Any, Any] = (None, None)
) -> tuple[GemmProblem, ...]:
    """Returns the problems of both products of a layer with these weights and one token of type `dtype_x`.

    () if genkern cannot compute such a layer.
    """
    x = gate_up.new_empty((1, gate_up.shape[-1]), dtype=dtype_x)
    ids = gate_up.new_zeros((1, top_k), dtype=torch.int32)
    weights = gate_up.new_zeros((1, top_k), dtype=dtype_x)
    try:
        layer = Layer.of(get_op(staged_op()), x, gate_up, down, weights, ids, *scales, "silu", None, None, None, {})
    except GenkernError:
        return ()
    return () if layer.first is None or layer.second is None else (layer.first, layer.second)


def tuned_for(
    gate_up: Any, down: Any, dtype_x: Any, top_k: int, scales: tuple[Any, Any] = (None, None)
) -> tuple[int, ...]:
    """Returns the numbers of tokens for which bundles have rows of both products of a layer with these weights."""
    context = default_context()
    gpu = context.gpu(gate_up.get_device())
    found = () if gpu is None else stages(gate_up, down, dtype_x, top_k, scales)
    if gpu is None or not found:
        return ()
    first, second = (set(tuned_of(context, gpu, each)) for each in found)
    return tuple(sorted(first & second))


def layer_in(module: Any, target: Any, why: str = "") -> EngineLayer:
    """Returns the Layer of a module of experts with the weights w13_weight and w2_weight, as in vLLM and SGLang.

    `target` is the object that gets the MARK. A `why` that is not empty is the reason why the engine's own code serves
    the layer.
    """
    first, second = module.w13_weight, module.w2_weight
    found = EngineLayer(target, weight_bytes(module), size=size_of(first), why=why)
    known = None if why else _known_of(module, first, second)
    if known is None:
        return found if why else replace(found, why="genkern has no experts with such weights or scales")
    served = tuned_for(*known)
    return replace(found, served=served, why="" if served else NO_WINNER, problems=stages(*known))


def _known_of(module: Any, first: Any, second: Any) -> Any:
    """Returns tuned_for()'s arguments for a module; None if genkern has no experts with such weights."""
    top_k = int(getattr(module, "top_k", 0) or 0)
    if top_k < 1 or first.dim() != 3 or second.dim() != 3:
        return None
    if first.dtype.itemsize == 2:
        return first, second, first.dtype, top_k
    names = ("w13_weight_scale_inv", "w2_weight_scale_inv"), ("w13_weight_scale", "w2_weight_scale")
    scales = ((getattr(module, one, None), getattr(module, other, None)) for one, other in names)
    of_first, of_second = next((each for each in scales if None not in each), (None, None))
    if of_first is None or not first.dtype.is_floating_point:
        return None
    return first, second, torch.bfloat16, top_k, (of_first, of_second)
