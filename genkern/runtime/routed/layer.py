"""Layer: the arguments of a mixture of experts as the problems of its two products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from genkern.errors import InputError
from genkern.gemm.dtypes import BY_TORCH, DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_called
from genkern.ops.fields import fields_of, parse_own, words_in_calls
from genkern.ops.op import Op
from genkern.runtime.routed.product import is_row_major_b, name_of, require_one_device

# Type of the result if x has 8 bits and the call does not say a type.
_OUT_OF_BYTES = "bf16"


@dataclass(frozen=True)
class Layer:
    """The two products of a mixture of experts.

    first, second: their problems; None if there are no tokens.
    tokens: number of rows of x.
    k: K of the first product, which is also the length of a result row.
    experts: number of experts.
    top_k: experts per token.
    out: type of the result.
    scales: how 8-bit rows are scaled; "" if operands have 16 bits.
    quantizes: True if x has 16 bits and the weights have 8, so that x is quantised here.
    """

    first: GemmProblem | None
    second: GemmProblem | None
    tokens: int
    k: int
    experts: int
    top_k: int
    out: str
    scales: str
    quantizes: bool

    @property
    def rows(self) -> int:
        """The number of rows between the two products: one for each token and each of its experts."""
        return self.tokens * self.top_k

    @classmethod
    def of(
        cls,
        op: Op,
        x: Any,
        gate_up: Any,
        down: Any,
        routing_weights: Any,
        ids: Any,
        gate_up_scale: Any,
        down_scale: Any,
        activation: str,
        scales: str | None,
        x_scale: Any,
        out_dtype: Any,
        own: Mapping[str, object],
    ) -> Layer:
        """Return the checked layer. Raise InputError, whose one line says what was given and what is expected."""
        given = x, gate_up, down, routing_weights, ids, gate_up_scale, down_scale, x_scale
        require_one_device([each for each in given if each is not None])
        _require_shapes(x, gate_up, down, routing_weights, ids)
        if ids.dtype.is_floating_point or ids.dtype.is_complex or str(ids.dtype) == "torch.bool":
            raise InputError(f"ids are {ids.dtype}: give whole numbers below the number of experts")
        if unknown := set(own) - {field.name for field in fields_of(op.fields)}:
            raise InputError(f"{op.name} has no {', '.join(sorted(unknown))}")
        tokens, k = map(int, x.shape)
        experts, n, top_k = int(gate_up.shape[0]), int(down.shape[2]), int(ids.shape[1])
        of_x, of_first, of_second = name_of(x, "x"), name_of(gate_up, "gate_up"), name_of(down, "down")
        narrow, quantizes = (DTYPES[name].size_bytes == 1 for name in (of_first, of_x))
        quantizes = narrow and not quantizes
        if narrow != (DTYPES[of_second].size_bytes == 1) or (DTYPES[of_x].size_bytes == 1 and not narrow):
            raise InputError(
                f"x is {x.dtype}, gate_up {gate_up.dtype}, down {down.dtype}: give x in 16 bits "
                "unless weights have 8, and both weights in 8 bits or none"
            )
        if narrow and (gate_up_scale is None or down_scale is None):
            raise InputError("weights of 8 bits need gate_up_scale and down_scale")
        if not narrow and any(each is not None for each in (gate_up_scale, down_scale, x_scale)):
            raise InputError("16-bit operands have no scales: leave them out")
        if narrow and quantizes == (x_scale is not None):
            said = "16 bits and is quantised here: leave x_scale out" if quantizes else "8 bits: give its x_scale"
            raise InputError(f"x has {said}")
        out = of_x if quantizes or not narrow else _OUT_OF_BYTES
        if out_dtype is not None and (out := BY_TORCH.get(str(out_dtype), "")) == "":
            raise InputError(f"out_dtype is {out_dtype}: use one of {', '.join(sorted(BY_TORCH))}")
        if not narrow and out != of_x:
            raise InputError(f"x is {x.dtype}, and so is the result: leave out_dtype out")
        scales = (scales or named_scales(gate_up_scale, 2 * n)) if narrow else ""
        first = second = None
        if tokens:
            values = {**words_in_calls(op.fields), **own, "experts": experts, "top_k": top_k}
            values |= {"scales": scales} if narrow else {}
            first = GemmProblem(
                *(tokens, n, k, op.name, of_first if quantizes else of_x, of_first, out),
                row_major_b=is_row_major_b(gate_up),
                activation=activation,
                own=parse_own(op.fields, {**values, "stage": "gate_up"}),
            )
            second = GemmProblem(
                *(tokens, k, n, op.name, of_second if narrow else out, of_second, out),
                row_major_b=is_row_major_b(down),
                own=parse_own(op.fields, {**values, "stage": "down"}),
            )
            first, second = (as_called(each, op.operands(each)) for each in (first, second))
        return cls(first, second, tokens, k, experts, top_k, out, scales, quantizes)


def _require_shapes(x: Any, gate_up: Any, down: Any, routing_weights: Any, ids: Any) -> None:
    experts, columns, k = gate_up.shape if gate_up.dim() == 3 else (0, 0, 0)
    fits = x.dim() == ids.dim() == 2 and x.shape[1] == k and columns and columns % 2 == 0
    fits = fits and tuple(down.shape) == (experts, k, columns // 2)
    if not fits or routing_weights.shape != ids.shape or ids.shape[0] != x.shape[0]:
        said = ", ".join(str(list(each.shape)) for each in (x, gate_up, down, routing_weights, ids))
        raise InputError(
            f"shapes {said}: give x [tokens, K], gate_up [experts, 2 N, K], down [experts, K, N], and both "
            "routing_weights and ids [tokens, top_k]"
        )


def named_scales(scale: Any, columns: int) -> str:
    """Return the kind of a weight's scales from their shape: "per_tensor", "per_token" or "blocks".

    The weights have the shape [groups, columns, K].
    """
    per_group = scale.numel() // scale.shape[0]
    return "per_tensor" if per_group == 1 else "per_token" if per_group == columns else "blocks"
