"""Tests of genkern.runtime.merged_layers.shared_inputs: which layers of a module are given one tensor, by trying it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from layers_sharing_x import Attention, Gated, made
from torch import nn

from genkern.runtime.merged_layers.shared_inputs import candidate_groups, groups_with_same_input

QKV = ("q_proj", "k_proj", "v_proj")


def found(module: nn.Module) -> list[tuple[str, ...]]:
    return [group for pool in candidate_groups(module) for group in groups_with_same_input(module, pool)]


class Strange(Attention):
    """Attention that may go wrong, and takes what nobody can know."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.does = forward

    def forward(self, x: torch.Tensor, turn: Any, *, mask: Any) -> torch.Tensor:  # type: ignore[override]
        out: torch.Tensor = self.does(self, x, turn, mask)
        return out


def fails_behind(module: Any, x: Any, turn: Any, mask: Any) -> Any:
    module.q_proj(x), module.k_proj(x), module.v_proj(x)
    return turn @ mask


def fails_before(module: Any, x: Any, turn: Any, mask: Any) -> Any:
    return turn[0] + fails_behind(module, x, turn, mask)


def adds_between(module: Any, x: Any, turn: Any, mask: Any) -> Any:
    module.q_proj(x)
    return module.k_proj(x.add_(1)) + module.v_proj(x)


def calls_twice(module: Any, x: Any, turn: Any, mask: Any) -> Any:
    return module.q_proj(x) + module.q_proj(x) + module.k_proj(x)


def views_flat(module: Any, x: Any, turn: Any, mask: Any) -> Any:
    module.q_proj(x).view(-1)
    return module.k_proj(x) + module.v_proj(x)


def test_layers_that_are_given_one_tensor_are_found() -> None:
    """In the order of their calls; whatever the classes are called, and whatever else they are given."""
    assert found(made(Attention())) == [QKV]
    assert found(made(Gated())) == [("gate", "up")]
    assert found(made(Strange(fails_behind))) == [QKV]


@pytest.mark.parametrize(
    ("forward", "groups"),
    [
        (fails_before, []),
        (adds_between, [("k_proj", "v_proj")]),
        (calls_twice, []),
        # It needs results that lie without gaps.
        (views_flat, []),
    ],
)
def test_what_a_module_does_decides(forward: Callable[..., Any], groups: list[tuple[str, ...]]) -> None:
    """A tensor that is changed between two calls is another one; who fails is left alone, with its own forwards."""
    module = made(Strange(forward))
    assert found(module) == groups
    assert not any("forward" in vars(layer) for layer in module.modules())


def hooked(module: Any) -> None:
    module.q_proj.register_forward_pre_hook(lambda layer, given: None)


def of_its_own(module: Any) -> None:
    module.q_proj.forward = lambda x: x


class Narrow(nn.Linear):
    """As quantised layers are."""


def narrow(module: Any) -> None:
    module.q_proj = made(Narrow(64, 64, bias=False))


def tied(module: Any) -> None:
    module.k_proj.weight = module.v_proj.weight


@pytest.mark.parametrize("change", [hooked, of_its_own, narrow, tied])
def test_others_stay_as_they_are(change: Callable[[Any], None]) -> None:
    """Layers with hooks or another forward, subclasses, tied weights: the rest are found."""
    module = made(Attention())
    change(module)
    assert QKV not in found(module)
    assert all("q_proj" not in group or change is tied for group in found(module))


def test_a_trial_draws_no_random_numbers() -> None:
    """Dropout of a module that is trained is as it would have been."""
    module = made(Attention()).train()
    module.mixes = lambda x: torch.rand(3)
    torch.manual_seed(1)
    wanted = torch.rand(1)
    torch.manual_seed(1)
    assert found(module) == [QKV]
    assert torch.rand(1).equal(wanted)
