"""Experts: a mixture of experts as a function of tensors: rows put in order, both products, and the sum."""

from __future__ import annotations

from typing import Any

import torch

from genkern.gemm.dtypes import DTYPES
from genkern.runtime.dispatch import Calls, is_traced
from genkern.runtime.routed.layer import Layer
from genkern.runtime.routed.order import order_of, quantized
from genkern.runtime.routed.product import Product, by_library, product_of
from genkern.runtime.routed.row_calls import Order, Quantize, order_by, quantize_by
from genkern.runtime.served import Function, Served


class Experts(Calls):
    """A format whose problems are the two stages of a mixture of experts, with what `context` has tuned."""

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
        x_scale: Any = None,
        out_dtype: Any = None,
        **own: int | str,
    ) -> Any:
        """For each row t of x the sum over k of routing_weights[t, k] * (activation(x @ gate.T) * (x @ up.T)) @ down.T,
        by the weights of expert ids[t, k].

        x is [tokens, K], gate_up [experts, 2 N, K], the gate's N rows first, down [experts, K, N], routing_weights
        [tokens, top_k] of any float type, ids [tokens, top_k] integers below `experts` (any other says that there is no
        expert where the weight is zero: the row is computed, and adds nothing). The result is [tokens, K], as x in 16
        bits. Weights in 8 bits have scales as the format's operand scale_b; x and what lies between the products are
        scaled in the same way, which `scales` names: "per_tensor", "per_token" or "blocks" (told by gate_up_scale where
        nobody says). Both are quantised here, once for each token and once for each of its rows; an x that is
        quantised already, for other layers that read it too, comes with its x_scale: [1], [tokens, 1] or
        [tokens, K / 128], and the result is out_dtype, bfloat16 unless given.

        No value is looked at on the host, so that calls go into graphs. Raises InputError.
        """
        given = (
            *(x, gate_up, down, routing_weights, ids, gate_up_scale, down_scale),
            *(activation, scales, x_scale, out_dtype, own),
        )
        if is_traced():
            return self.direct(*given) if self.operator is None else self.operator(*given[:-1], **own)
        return self._called(given)

    def _serve(self, given: tuple[Any, ...], tensors: tuple[Any, ...]) -> Served:
        layer = self._layer(given)
        if layer.first is None or layer.second is None:
            return Served(_nothing(layer))
        if self._context.mode.is_on and layer.scales == "per_tensor":
            why = "scales per tensor are made of all tokens of a call: quantise per token or in blocks"
            self._context.leave(self.__name__, why)
        _, gate_up, down, _, ids, gate_up_scale, down_scale, *_, x_scale, _, _ = given
        weights = {"b": gate_up, **_present(scale_b=gate_up_scale, scale_a=x_scale)}
        first = product_of(self._context, layer.first, weights)
        second = product_of(self._context, layer.second, {"b": down, **_present(scale_b=down_scale)})
        order = order_by(self._context, self.op.name, ids, layer.experts)
        narrow: tuple[Quantize | None, Quantize | None] = (None, None)
        if layer.scales:
            rows = layer.tokens if layer.quantizes else 0, layer.rows
            narrow_first, narrow_second = (
                quantize_by(
                    *(self._context, self.op.name, ids.get_device(), count, problem.K),
                    *((layer.out, problem.dtype_a), layer.scales),
                )
                if count
                else None
                for count, problem in zip(rows, (layer.first, layer.second), strict=True)
            )
            narrow = narrow_first, narrow_second
        call = _layer_call(layer, (first, second), order, narrow)
        return Served(call, differentiable=not (layer.scales or first.tuned or second.tuned))

    def _library(self, given: tuple[Any, ...]) -> Function:
        return library_call(self._layer(given))

    def _layer(self, given: tuple[Any, ...]) -> Layer:
        return Layer.of(self.op, *given)


def library_call(layer: Layer) -> Function:
    """The layer by PyTorch's calls alone; without scales they are differentiable."""
    if layer.first is None or layer.second is None:
        return _nothing(layer)
    products = Product(by_library(layer.first), False), Product(by_library(layer.second), False)

    def order(ids: Any) -> tuple[Any, Any]:
        return order_of(ids, layer.experts)

    def narrow(x: Any) -> tuple[Any, Any]:
        assert layer.first is not None
        return quantized(x, getattr(torch, DTYPES[layer.first.dtype_b].torch), layer.scales)

    quantizers = (narrow if layer.quantizes else None, narrow) if layer.scales else (None, None)
    return _layer_call(layer, products, order, quantizers)


def _layer_call(
    layer: Layer, products: tuple[Product, Product], order: Order, narrow: tuple[Quantize | None, Quantize | None]
) -> Function:
    """The layer of a call's tensors."""
    first, second = (product.call for product in products)
    narrow_first, narrow_second = narrow

    def wide(x: Any, gate_up: Any, down: Any, routing_weights: Any, ids: Any) -> Any:
        ends, slots = order(ids)
        between = first(x.contiguous(), gate_up, ends, slots)
        return second(between, down, ends, slots, routing_weights.float().contiguous())

    def scaled(
        x: Any, gate_up: Any, down: Any, routing_weights: Any, ids: Any, of_first: Any, of_second: Any, of_x: Any = None
    ) -> Any:
        ends, slots = order(ids)
        x = x.contiguous()
        if narrow_first is not None:
            x, of_x = narrow_first(x)
        between = first(x, gate_up, ends, slots, of_x, of_first)
        assert narrow_second is not None
        between, scale = narrow_second(between)
        return second(between, down, ends, slots, scale, of_second, routing_weights.float().contiguous())

    return scaled if layer.scales else wide


def _nothing(layer: Layer) -> Function:
    """No tokens give no rows."""
    dtype = getattr(torch, DTYPES[layer.out].torch)
    return lambda x, *tensors: x.new_zeros((0, layer.k), dtype=dtype)


def _present(**tensors: Any) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}
