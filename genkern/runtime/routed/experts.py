"""Experts: a mixture of experts as a function of tensors: rows put in order, both products, and the sum."""

from __future__ import annotations

from typing import Any

from genkern.errors import InputError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import parse_own
from genkern.ops.op import get_op
from genkern.runtime.context import Context
from genkern.runtime.given import BY_TORCH
from genkern.runtime.routed.grouped import scales_of
from genkern.runtime.routed.named_call import NamedCalls, aligned
from genkern.runtime.routed.order import order_of, quantized


class Experts:
    """A format whose problems are the two stages of a mixture of experts, with what `context` has tuned."""

    def __init__(self, op: str, context: Context) -> None:
        """Raises InputError where there is no such format."""
        self.op = get_op(op)
        self._calls = NamedCalls(op, context)
        self.__name__ = f"gemm_{op}"

    def __call__(
        self,
        x: Any,
        gate_up: Any,
        down: Any,
        routing_weights: Any,
        ids: Any,
        gate_up_scale: Any = None,
        down_scale: Any = None,
        activation: str = "silu",
        scales: str | None = None,
        **own: int | str,
    ) -> Any:
        """For each row t of x the sum over k of routing_weights[t, k] * (activation(x @ gate.T) * (x @ up.T)) @ down.T,
        by the weights of expert ids[t, k].

        x is [tokens, K] in 16 bits, gate_up [experts, 2 N, K], the gate's N rows first, down [experts, K, N],
        routing_weights [tokens, top_k] of any float type, ids [tokens, top_k] integers below `experts`. The result is
        as x. Weights in 8 bits have scales as the format's operand scale_b, and x and what lies between the stages are
        quantised here, by the same `scales`: "per_tensor", "per_token" or "blocks" (told by gate_up_scale where nobody
        says).
        No value is looked at on the host, so that calls go into graphs. Raises InputError.
        """
        import torch

        tokens, k = _shape_of(x, gate_up, down, routing_weights, ids)
        experts, n, top_k = int(gate_up.shape[0]), int(down.shape[2]), int(ids.shape[1])
        if tokens == 0:
            return torch.zeros_like(x)
        ends, slots = order_of(ids, experts)
        narrow = gate_up.dtype.itemsize == 1
        scales = _named(gate_up_scale, n) if narrow and scales is None else scales
        routing = {"experts": experts, "top_k": top_k, **({"scales": scales} if narrow else {}), **own}
        weights = aligned(routing_weights.reshape(-1).float())
        common = {"ends": ends, "slots": slots}

        def stage(rows: Any, weight: Any, scale_b: Any, columns: int, more: dict[str, Any], **said: str) -> Any:
            scale_a = None
            if narrow:
                rows, scale_a = quantized(rows, weight.dtype, str(scales))
            gates = "stage" in said
            problem = GemmProblem(
                *(tokens, columns, int(weight.shape[2]), self.op.name, _name(rows), _name(weight), _name(x)),
                activation=activation if gates else "none",
                own=parse_own(self.op.fields, {**routing, **said}),
            )
            b = weight.mT if weight.stride(-1) == 1 else weight.contiguous().mT
            tensors = {"a": aligned(rows), "b": b, **common, **scales_of(problem, scale_a, scale_b), **more}
            return self._calls(problem, tensors)

        between = stage(x, gate_up, gate_up_scale, n, {}, stage="gate_up")
        return stage(between, down, down_scale, k, {"routing_weights": weights})


def _shape_of(x: Any, gate_up: Any, down: Any, routing_weights: Any, ids: Any) -> tuple[int, int]:
    """Tokens and K. Raises InputError where shapes do not belong together."""
    experts, columns, k = gate_up.shape if gate_up.dim() == 3 else (0, 0, 0)
    fits = x.dim() == ids.dim() == 2 and x.shape[1] == k and columns % 2 == 0
    fits = fits and tuple(down.shape) == (experts, k, columns // 2)
    if not fits or routing_weights.shape != ids.shape or ids.shape[0] != x.shape[0]:
        said = ", ".join(str(list(each.shape)) for each in (x, gate_up, down, routing_weights, ids))
        raise InputError(
            f"shapes {said}: give x [tokens, K], gate_up [experts, 2 N, K], down [experts, K, N], and both "
            "routing_weights and ids [tokens, top_k]"
        )
    if _name(x) not in DTYPES or DTYPES[_name(x)].size_bytes < 2:
        raise InputError(f"x is {x.dtype}: give it in 16 bits; it is quantised here where weights have 8")
    return int(x.shape[0]), int(k)


def _name(tensor: Any) -> str:
    name = BY_TORCH.get(str(tensor.dtype))
    if name is None:
        raise InputError(f"there are no operands of {tensor.dtype}: use one of {', '.join(sorted(BY_TORCH))}")
    return name


def _named(scale: Any, n: int) -> str:
    """What scales the weights' own say."""
    if scale is None:
        raise InputError("weights of 8 bits need gate_up_scale and down_scale")
    per_expert = scale.numel() // scale.shape[0]
    return "per_tensor" if per_expert == 1 else "per_token" if per_expert == 2 * n else "blocks"
