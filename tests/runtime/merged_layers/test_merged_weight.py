"""Tests of genkern.runtime.merged_layers.merged_weight: parameters that are parts of one tensor, and are so nowhere
else.
"""

from __future__ import annotations

import gc
import io

import torch
from layers_sharing_x import Attention, made
from torch import nn

from genkern.runtime.merged_layers.merged_weight import MergedWeight, as_one, can_merge


def merged(module: Attention) -> MergedWeight:
    return MergedWeight([module.q_proj, module.k_proj, module.v_proj])


def saved(module: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    return file.getvalue()


def test_parameters_keep_what_they_are() -> None:
    """The same objects with the same values; the state dictionary, its file, and what is loaded from it too."""
    module = made(Attention(bias=True))
    before, parameters, size = dict(module.state_dict()), dict(module.named_parameters()), len(saved(module))
    before = {name: value.clone() for name, value in before.items()}
    whole = merged(module)
    assert whole.holds()
    assert all(each is parameters[name] for name, each in module.named_parameters())
    assert {name: value.equal(before[name]) for name, value in module.state_dict().items()} == dict.fromkeys(
        before, True
    )
    assert abs(len(saved(module)) - size) < 2048
    loaded = torch.load(io.BytesIO(saved(module)))
    assert all(value.equal(before[name]) for name, value in loaded.items())
    assert whole.weight.equal(torch.cat([before[f"{name}_proj.weight"] for name in "qkv"]))
    assert whole.bias.equal(torch.cat([before[f"{name}_proj.bias"] for name in "qkv"]))


def test_no_memory_is_held_besides() -> None:
    """Each parameter is a part of one memory, and shows no more than itself: who saves it takes no other's along."""
    module = made(Attention())
    whole = merged(module)
    weights = [layer.weight for layer in (module.q_proj, module.k_proj, module.v_proj)]
    assert [each.data_ptr() - whole.weight.data_ptr() for each in weights] == [0, 64 * 64 * 2, 96 * 64 * 2]
    assert all(each.untyped_storage().nbytes() == each.numel() * 2 for each in weights)
    assert all(each.storage_offset() == 0 for each in weights)
    assert len({each.untyped_storage().data_ptr() for each in weights}) == 3
    assert whole.bytes == 128 * 64 * 2


def test_memory_stays_while_a_parameter_has_it() -> None:
    """Whoever else is gone: what the others had is not given back before."""
    module = made(Attention())
    wanted, kept = module.v_proj.weight.detach().clone(), module.v_proj.weight
    merged(module)
    del module
    gc.collect()
    others = [torch.zeros(128, 64).bfloat16() for _ in range(50)]
    assert kept.equal(wanted)
    assert not any(each.any() for each in others)


@torch.no_grad()
def test_what_is_written_into_parameters_is_in_it() -> None:
    """By loading, by an optimiser, through .data."""
    module, other = made(Attention()), made(Attention())
    whole = merged(module)
    module.load_state_dict(other.state_dict())
    module.v_proj.weight.add_(1)
    module.k_proj.weight.data += 2
    wanted = torch.cat([other.q_proj.weight, other.k_proj.weight + 2, other.v_proj.weight + 1])
    assert whole.holds()
    assert whole.weight.equal(wanted)


def test_a_weight_that_got_other_memory_is_noticed() -> None:
    """By .data, by a conversion, or as another parameter: then nothing keeps the memory that nobody has."""
    for change in (
        lambda module: setattr(module.k_proj.weight, "data", module.k_proj.weight.data.clone()),
        lambda module: module.half(),
        lambda module: module.load_state_dict(made(Attention()).state_dict(), assign=True),
        lambda module: setattr(module.k_proj, "weight", nn.Parameter(module.k_proj.weight.data)),
    ):
        module = made(Attention())
        whole = merged(module)
        change(module)
        assert not whole.holds()
        assert whole.weight is None


def test_weights_that_lie_together_are_not_moved() -> None:
    """Nor is a part of a larger memory, which is somebody's."""
    module = made(Attention(bias=True))
    layers = [module.q_proj, module.k_proj, module.v_proj]
    assert can_merge(layers)
    first = merged(module)
    assert first.moved
    assert can_merge(layers)
    again = merged(module)
    assert not again.moved
    assert again.weight.data_ptr() == first.weight.data_ptr()
    flat = torch.zeros(100 * 64).bfloat16()
    module.v_proj.weight.data = flat[: 32 * 64].view(32, 64)
    assert not can_merge(layers)


def test_tensors_behind_each_other_are_one() -> None:
    """Those with a gap, in another order, or of two memories are none."""
    whole = torch.arange(24.0).view(6, 4)
    assert as_one([whole[:2], whole[2:3], whole[3:]]).equal(whole)
    assert as_one([whole[:2], whole[2:3]]).equal(whole[:3])
    assert as_one([whole[:2], whole[3:]]) is None
    assert as_one([whole[2:], whole[:2]]) is None
    assert as_one([whole[:2], whole[2:].clone()]) is None
    assert as_one([whole[:, :2], whole[:, 2:]]) is None
