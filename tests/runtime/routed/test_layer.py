"""Tests of genkern.runtime.routed.layer: the problems of a mixture of experts, and what is no such mixture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.runtime.routed.layer import Layer

F8 = torch.float8_e4m3fn


def layer(**changed: Any) -> Layer:
    """Of 3 tokens, 4 experts, top 2, with what is changed."""
    given: dict[str, Any] = {
        "x": torch.zeros(3, 256).bfloat16(),
        "gate_up": torch.zeros(4, 64, 256).bfloat16(),
        "down": torch.zeros(4, 256, 32).bfloat16(),
        "routing_weights": torch.zeros(3, 2),
        "ids": torch.zeros(3, 2, dtype=torch.int64),
        "gate_up_scale": None,
        "down_scale": None,
        "activation": "silu",
        "scales": None,
        "x_scale": None,
        "out_dtype": None,
        "own": {},
    }
    return Layer.of(get_op("fused_moe"), **{**given, **changed})


def narrow(**more: Any) -> dict[str, Any]:
    weights = {"gate_up": torch.zeros(4, 64, 256).to(F8), "down": torch.zeros(4, 256, 32).to(F8)}
    return {**weights, "gate_up_scale": torch.ones(4, 1, 64), "down_scale": torch.ones(4, 1, 256), **more}


def test_problems_of_both_products_of_a_layer() -> None:
    """Their sizes, and what belongs to which."""
    found, own = layer(own={"routing": "skewed"}), (("experts", 4), ("routing", "skewed"), ("top_k", 2))
    assert found.first == GemmProblem(3, 32, 256, "fused_moe", activation="silu", own=(*own, ("stage", "gate_up")))
    assert found.second == GemmProblem(3, 256, 32, "fused_moe", own=own)
    assert (found.rows, found.scales, found.quantizes) == (6, "", False)
    turned = torch.zeros(4, 256, 64).bfloat16().mT
    assert layer(gate_up=turned).first == GemmProblem(
        3, 32, 256, "fused_moe", row_major_b=True, activation="silu", own=(*own[::2], ("stage", "gate_up"))
    )
    nothing = layer(x=torch.zeros(0, 256).bfloat16(), ids=torch.zeros(0, 2).int(), routing_weights=torch.zeros(0, 2))
    assert (nothing.first, nothing.second) == (None, None)


def test_8_bits() -> None:
    """x is quantised where it is not, and its scales are those of the weights, unless something else is said."""
    found = layer(**narrow())
    assert (found.scales, found.quantizes, found.out) == ("per_token", True, "bf16")
    assert found.first is not None
    assert (found.first.dtype_a, found.first.dtype_c) == ("fp8e4m3fn", "bf16")
    given = layer(**narrow(x=torch.zeros(3, 256).to(F8), x_scale=torch.ones(3, 1), out_dtype=torch.float16))
    assert (given.scales, given.quantizes, given.out) == ("per_token", False, "fp16")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"down": torch.zeros(4, 32, 256).bfloat16()}, "down .experts, K, N"),
        ({"routing_weights": torch.zeros(3, 1)}, "both routing_weights and ids"),
        ({"ids": torch.zeros(3, 2)}, "give whole numbers below the number of experts"),
        ({"x": torch.zeros(3, 256).to(F8)}, "give x in 16 bits"),
        ({"gate_up": torch.zeros(4, 64, 256).to(F8)}, "both weights in 8 bits or none"),
        ({"x_scale": torch.ones(1)}, "have no scales"),
        ({"out_dtype": torch.float16}, "leave out_dtype out"),
        ({"own": {"capacity": 3}}, "fused_moe has no capacity"),
        ({"x": torch.zeros(3, 256).to(torch.complex64)}, "use one of"),
        (narrow(gate_up_scale=None), "need gate_up_scale and down_scale"),
        (narrow(x_scale=torch.ones(1)), "leave x_scale out"),
        (narrow(x=torch.zeros(3, 256).to(F8)), "give its x_scale"),
        (narrow(out_dtype=torch.int64), "out_dtype is torch.int64"),
    ],
)
def test_what_does_not_belong_together(changed: dict[str, Any], reason: str) -> None:
    """In one line."""
    with pytest.raises(InputError, match=reason) as raised:
        layer(**changed)
    assert "\n" not in str(raised.value)
