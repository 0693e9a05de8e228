"""Experts: a mixture of experts as a function of tensors: ordering of rows, both products, and the weighted sum."""

from __future__ import annotations

import functools
from typing import Any

import torch

from genkern.gemm.dtypes import DTYPES
from genkern.runtime.calls.dispatch import Calls, is_traced
from genkern.runtime.calls.implementation import CallImplementation, Function
from genkern.runtime.routed.layer import Layer
from genkern.runtime.routed.order import order_of, quantized
from genkern.runtime.routed.product import Product, by_library, product_of
from genkern.runtime.routed.row_calls import Order, Quantize, order_by, quantize_by


class Experts(Calls):
    """The function of a format whose problems are the two products of a mixture of experts."""

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
        """Compute a mixture of experts: for each token t the sum over k of
        routing_weights[t, k] * (activation(x @ gate.T) * (x @ up.T)) @ down.T by the weights of expert ids[t, k].

        A winner of the bundles that GENKERN_CONFIG names computes each product, otherwise PyTorch's own functions do.
        Winners read no value on the host: a call whose products winners compute can be captured into a CUDA graph, for
        any routing.

        Args:
            x (Tensor): shape [tokens, K], of 16 bits; or of 8 bits, quantised by the caller (then with `x_scale`).
            gate_up (Tensor): shape [experts, 2 N, K], the N rows of the gate first.
            down (Tensor): shape [experts, K, N].
            routing_weights (Tensor): shape [tokens, top_k], of any float type.
            ids (Tensor): shape [tokens, top_k], whole numbers below `experts`. If the routing weight is zero, any other
                number may stand for no expert.
            gate_up_scale, down_scale (Tensor, optional): scales of 8-bit weights, for each expert one, one for each row
                of its weight, or one for each block of 128 x 128.
            activation (str): "silu" (default), "gelu", "relu" or "none".
            scales (str, optional): how rows of 8 bits are scaled: "per_tensor", "per_token" or "blocks" (of 128).
                Default: as the shape of gate_up_scale says.
            x_scale (Tensor, optional): scales of an 8-bit x: [1], [tokens, 1] or [tokens, K / 128].
            out_dtype (torch.dtype, optional): type of the result of an 8-bit x. Default: bfloat16.
            **own: fields of the format by name, such as `routing="skewed"`.

        Returns:
            Tensor: shape [tokens, K], of the type of a 16-bit x. Layers without scales are differentiable once.

        Raises:
            InputError: a ValueError, in one line, if shapes, types or devices do not belong together.
            InvarianceError: a RuntimeError, if calls must be batch invariant and no kernels are.
            NotImplementedError: in the backward pass, if weights have scales, and in a second derivative.
        """
        given = (
            *(x, gate_up, down, routing_weights, ids, gate_up_scale, down_scale),
            *(activation, scales, x_scale, out_dtype, own),
        )
        if is_traced():
            return self.direct(*given) if self.operator is None else self.operator(*given[:-1], **own)
        return self._called(given)

    def _serve(self, given: tuple[Any, ...], tensors: tuple[Any, ...]) -> CallImplementation:
        layer = self._layer(given)
        if layer.first is None or layer.second is None:
            return CallImplementation(_nothing(layer))
        if self._context.mode.is_on and layer.scales == "per_tensor":
            why = "a scale per tensor depends on all tokens of a call: quantise per token or in blocks"
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
        into = None if second.into is None else _layer_call(layer, (first, second), order, narrow, into=second.into)
        return CallImplementation(call, differentiable=not (layer.scales or first.tuned or second.tuned), into=into)

    def _library(self, given: tuple[Any, ...]) -> Function:
        return library_call(self._layer(given))

    def _layer(self, given: tuple[Any, ...]) -> Layer:
        return Layer.of(self.op, *given)


def library_call(layer: Layer) -> Function:
    """Return the function that uses PyTorch's calls only. It is differentiable if the layer has no scales."""
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
    layer: Layer,
    products: tuple[Product, Product],
    order: Order,
    narrow: tuple[Quantize | None, Quantize | None],
    into: Function | None = None,
) -> Function:
    """Return the layer as a function of a call's tensors.

    If the second product's `into` is given, the function takes the result's tensor first, and writes the result there.
    """
    first, second = (product.call for product in products)
    narrow_first, narrow_second = narrow
    if into is not None:

        def written(out: Any, *tensors: Any) -> None:
            write = functools.partial(into, out)
            _layer_call(layer, (products[0], Product(write, True)), order, narrow)(*tensors)

        return written

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
    """Return the function of a layer without tokens, whose result has no rows."""
    dtype = getattr(torch, DTYPES[layer.out].torch)
    return lambda x, *tensors: x.new_zeros((0, layer.k), dtype=dtype)


def _present(**tensors: Any) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}
