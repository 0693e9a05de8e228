"""Experts modules of transformers' models, by winners.

A module is replaced only if @use_experts_implementation has marked it and its weights are two 16-bit tensors with the
shapes that a Layer takes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from genkern.gemm.dtypes import BY_TORCH, DTYPES
from genkern.gemm.problem import ACTIVATIONS, GemmProblem
from genkern.ops.fields import fields_of, parse_own
from genkern.ops.op import get_op
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.plain_tensor import PLAIN, multiplies_itself
from genkern.runtime.linear import LayerReport, Patch
from genkern.runtime.merged_layers.own_forward import give_forward, has_own_forward
from genkern.runtime.routed.experts import Experts

# Attributes that must be true, and attributes that must be false (integrations/moe.py of transformers 5.23): the gate
# is stored before up, [N, K] as in nn.Linear.
_HAS = "has_gate", "is_concatenated"
_HAS_NOT = "has_bias", "is_transposed", "has_post_expert_norm", "_is_expert_parallel"


def patch_experts(model: torch.nn.Module, op: str, experts: Callable[[], Experts], context: Context) -> Patch:
    """Replace the forward of the model's experts modules by calls of `experts()`.

    A module is replaced if both products have winners for some M and some number of experts per token, if calls are
    recorded or logged, or while calls must be batch-invariant.
    """
    patched: dict[str, Callable[[], None]] = {}
    refused: list[str] = []
    activations = {name: activation for name, _, activation in _layers(model)}
    # A weak reference, so that a patch without layers does not keep the model alive.
    model_of = weakref.ref(model)

    def patch() -> None:
        live, is_invariant = model_of(), context.mode.is_on
        for name in () if is_invariant else refused:
            patched.pop(name)()
        refused[:] = refused if is_invariant else []
        for name, layer in () if live is None else live.named_modules():
            activation = activations.get(name)
            if activation is None or has_own_forward(layer):
                continue
            chosen = context.is_watched or _is_tuned(layer, op, activation, context)
            if chosen or is_invariant:
                patched[name] = give_forward(layer, _forward(experts(), activation, context))
                if not chosen:
                    refused.append(name)

    patch()
    forget = context.on_switch(patch)

    def undo() -> None:
        forget()
        for take_away in patched.values():
            take_away()

    return Patch(undo, tuple(patched))


def report_experts(model: torch.nn.Module, op: str, context: Context) -> list[LayerReport]:
    """Return what both products of each experts module would call, in the model's order."""
    found = []
    for name, layer, activation in _layers(model):
        for place, weight in enumerate((layer.gate_up_proj, layer.down_proj)):
            dtype = str(weight.dtype).removeprefix("torch.")
            winners = tuple(sorted(_winners(layer, op, activation, context)[place]))
            sums = _sums(layer, op, activation, context)[place]
            size = int(weight.shape[1]), int(weight.shape[2])
            product = f"{name}.{('gate_up_proj', 'down_proj')[place]}"
            found.append(LayerReport(product, *size, dtype, False, winners, sums=sums))
    return found


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, Any, str]]:
    for name, layer in model.named_modules():
        if _is_layer(layer) and (activation := _activation(layer)):
            yield name, layer, activation


def _is_layer(layer: Any) -> bool:
    first: Any = getattr(layer, "gate_up_proj", None)
    second: Any = getattr(layer, "down_proj", None)
    if type(first) not in PLAIN or type(second) not in PLAIN or first.dim() != 3:
        return False
    says = all(getattr(layer, name, False) for name in _HAS) and not any(
        getattr(layer, name, False) for name in _HAS_NOT
    )
    experts, columns, k = first.shape
    wide = DTYPES.get(BY_TORCH.get(str(first.dtype), ""))
    return says and second.shape == (experts, k, columns // 2) and wide is not None and wide.size_bytes == 2


def _activation(layer: Any) -> str:
    """Return the activation of the module's gate, found by trying it on numbers; "" if it is unknown."""
    gate, up = torch.linspace(-30, 30, 121), torch.linspace(40, -41, 121)
    try:
        with torch.no_grad():
            found = layer._apply_gate(torch.cat((gate, up))[None])[0]
    except Exception:
        # The module's gate cannot be tried here, perhaps since it is on another device; the module is left alone.
        return ""
    for name in ACTIVATIONS:
        function = getattr(torch.nn.functional, name, None)
        if function is not None and torch.allclose(found, function(gate) * up, rtol=1e-5, atol=1e-6):
            return name
    return ""


def _is_tuned(layer: Any, op: str, activation: str, context: Context) -> bool:
    return all(_winners(layer, op, activation, context))


def _winners(layer: Any, op: str, activation: str, context: Context) -> tuple[list[tuple[int, str]], ...]:
    """Return each M that the two products are tuned for, for any number of experts per token, with the winners."""
    first: list[tuple[int, str]] = []
    second: list[tuple[int, str]] = []
    gpu = context.gpu(layer.gate_up_proj.get_device())
    if gpu is not None:
        for of_first, of_second in _problems(layer, op, activation):
            first += context.tuned(gpu, of_first)
            second += context.tuned(gpu, of_second)
    return first, second


def _sums(layer: Any, op: str, activation: str, context: Context) -> tuple[str, str]:
    """Return the orders of sums of the two products, for all numbers of experts per token.

    Empty unless calls must be batch-invariant.
    """
    gpu = context.gpu(layer.gate_up_proj.get_device())
    if gpu is None:
        return "", ""
    pairs = [[context.sums(gpu, each) for each in problems] for problems in _problems(layer, op, activation)]
    first, second = (", ".join(dict.fromkeys(filter(None, orders))) for orders in zip(*pairs, strict=True))
    return first, second


def _problems(layer: Any, op: str, activation: str) -> Iterator[tuple[GemmProblem, GemmProblem]]:
    """Yield the problems of both products of one token for each possible number of experts per token."""
    experts, columns, k = map(int, layer.gate_up_proj.shape)
    dtype = BY_TORCH[str(layer.gate_up_proj.dtype)]
    fields = get_op(op).fields
    most = next(field.most for field in fields_of(fields) if field.name == "top_k")
    for top_k in range(1, min(most, experts) + 1):
        own = {"experts": experts, "top_k": top_k}
        of_first = parse_own(fields, {**own, "stage": "gate_up"})
        types = op, dtype, dtype, dtype
        yield (
            GemmProblem(1, columns // 2, k, *types, activation=activation, own=of_first),
            GemmProblem(1, k, columns // 2, *types, own=parse_own(fields, own)),
        )


def _forward(experts: Experts, activation: str, context: Context) -> Callable[..., Any]:
    # pickle looks the function up in the layer by its name, which must be "forward".
    def forward(layer: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        first, second = layer.gate_up_proj, layer.down_proj
        if (
            getattr(layer, "_is_expert_parallel", False)
            or hidden_states.dtype != first.dtype
            or hidden_states.dim() != 2
            or top_k_weights.shape != top_k_index.shape
            or any(map(multiplies_itself, (hidden_states, top_k_index, top_k_weights, first, second)))
            or torch.is_autocast_enabled(hidden_states.device.type)
        ):
            if context.mode.is_on:
                context.leave(f"experts {list(first.shape)}", "operands that genkern.patch leaves to the module")
            return type(layer).forward(layer, hidden_states, top_k_index, top_k_weights)
        return experts(hidden_states, first, second, top_k_weights, top_k_index, activation=activation)

    return forward
