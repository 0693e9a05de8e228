"""Tests of genkern.runtime.merged_layers.shared_product: one product for layers that share x, and the same values
whatever happens between their calls.
"""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from layers_sharing_x import Attention, Bench, made, x_of
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from genkern.runtime.linear import Patch, patch_model


def patched(module: nn.Module, builder: Bench) -> Patch:
    return patch_model(module, builder.gemm, builder.context)


class LowRank(nn.Module):
    """A layer with an adapter, as peft wraps it."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_A, self.lora_B = (made(nn.Linear(*size, bias=False)) for size in ((64, 4), (4, 32)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x))
        return out


@torch.no_grad()
def test_one_launch_for_layers_that_share_x(bench: Bench) -> None:
    """Call after call; another x of the same shape is computed anew, and after undo the library serves."""
    module = made(Attention())
    wanted = [module(x_of(1, 2, seed=seed)) for seed in range(2)]
    with patched(module, bench) as patch:
        assert patch.merged == ("q_proj + k_proj + v_proj",)
        assert patch.merged_bytes == 128 * 64 * 2
        for seed in (0, 1, 0):
            assert module(x_of(1, 2, seed=seed)).equal(wanted[seed])
            assert bench.launches() == 1
        # Alone, a layer is called for itself.
        assert module.k_proj(x_of(1, 2)).shape == (1, 2, 32)
    assert module(x_of(1, 2)).equal(wanted[0])
    assert bench.launches() == 0
    assert not any("forward" in vars(each) for each in module.modules())


@torch.no_grad()
def test_an_x_that_is_changed_between_calls_is_computed_anew(bench: Bench) -> None:
    """In place, by the model, by a hook, in inference mode too."""
    module, x = made(Attention()), x_of(1, 2)
    with patched(module, bench):
        module(x)
        assert bench.launches() == 1
        module.mixes = lambda x: x.mul_(2)
        with_patch = module(x.clone())
    assert with_patch.equal(module(x.clone()))
    module.mixes = lambda x: None
    with patched(module, bench):
        module.k_proj.register_forward_pre_hook(lambda layer, given: (given[0].mul_(2), None)[1])
        with torch.inference_mode():
            in_inference = module(x.clone())
        again = module(x.clone())
    assert in_inference.equal(again)
    assert again.equal(module(x.clone()))


@torch.no_grad()
def test_layers_that_are_given_several_tensors_are_called_apart(bench: Bench) -> None:
    """Once it has been seen; the values are right from the first call on."""
    module, x, memory = made(Attention()), x_of(1, 2), x_of(1, 2, seed=1)
    wanted = module(x, memory)
    with patched(module, bench):
        assert module(x, memory).equal(wanted)
        bench.launches()
        assert module(x, memory).equal(wanted)
        module(x)
        assert bench.launches() == 0


@torch.no_grad()
def test_an_exception_leaves_nothing_behind(bench: Bench) -> None:
    """What was computed for a call that failed serves no other; a weight that changed meanwhile counts."""
    module, x = made(Attention()), x_of(1, 2)
    with patched(module, bench):
        module.mixes = lambda x: pytest.fail("here", pytrace=False)
        with pytest.raises(pytest.fail.Exception):
            module(x)
        module.mixes = lambda x: None
        module.k_proj.weight.mul_(2)
        found = module(x)
        assert bench.launches() == 2
    assert found.equal(module(x))


@torch.no_grad()
def test_threads_have_calls_of_their_own(bench: Bench) -> None:
    """Two that run the module at once get what each would get alone."""
    module, xs = made(Attention()), [x_of(1, 2, seed=seed) for seed in range(2)]
    wanted, found = [module(x) for x in xs], [None, None]
    meets = threading.Barrier(2, timeout=60)

    def run(number: int) -> None:
        with torch.no_grad():
            found[number] = module(xs[number])

    with patched(module, bench):
        module.mixes = lambda x: meets.wait()
        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bench.launches() == 2
    assert all(one.equal(other) for one, other in zip(found, wanted, strict=True))  # type: ignore[union-attr]


def test_gradients_and_casts_are_the_librarys(bench: Bench) -> None:
    """Where a gradient may be asked for, and under autocast, each layer is called for itself."""
    module, x = made(Attention()), x_of(1, 2)
    wanted = module(x)
    with patched(module, bench):
        assert module(x).equal(wanted)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            module(x.float())
        module.requires_grad_(True)(x).float().sum().backward()
        assert bench.launches() == 0
    assert all(layer.weight.grad.any() for layer in (module.q_proj, module.k_proj, module.v_proj))


@torch.no_grad()
def test_what_is_not_tuned_or_of_many_rows_is_called_apart() -> None:
    """As it would have been without a patch."""
    builder = Bench([(128, 64)], rows=(2, 2000))
    module = made(Attention())
    with patched(module, builder):
        for rows, launches in ((2, 1), (3000, 0), (2000, 0)):
            module(x_of(1, rows))
            assert builder.launches() == launches


@torch.no_grad()
def test_adapters_around_layers_and_into_them(bench: Bench) -> None:
    """An adapter that comes later gets its part; one that is merged into the weight counts; one that was there before
    is left alone.
    """
    module, x = made(Attention()), x_of(1, 2)
    with patched(module, bench) as patch:
        for name in ("k_proj", "v_proj"):
            setattr(module, name, LowRank(getattr(module, name)))
        found = module(x)
        assert bench.launches() == 1
        patch.undo()
        assert found.equal(module(x))
    with patched(module, bench) as patch:
        assert patch.merged == ()
        assert module(x).equal(found)
    for name in ("k_proj", "v_proj"):
        setattr(module, name, getattr(module, name).base_layer)
    with patched(module, bench):
        module.k_proj.weight.data += 1
        merged_in = module(x)
        # As peft's safe merge does.
        module.v_proj.weight.data = module.v_proj.weight.data + 1
        replaced = module(x)
        assert bench.launches() == 1
    assert replaced.equal(module(x))
    assert not merged_in.equal(replaced)


@torch.no_grad()
def test_layers_that_are_quantised_later_are_the_librarys(bench: Bench) -> None:
    """Their weight is a subclass of tensors, or their layer another."""
    module, x = made(Attention()), x_of(1, 2)
    wanted = module(x)
    with patched(module, bench):
        weight = module.q_proj.weight.data
        module.q_proj.weight = nn.Parameter(TwoTensor(weight, weight), requires_grad=False)
        found: Any = module.q_proj(x)
        assert found.a.equal(nn.functional.linear(x, weight))
        module.q_proj = made(nn.Linear(64, 64, bias=False))
        module.q_proj.weight.copy_(weight)
        assert module(x).equal(wanted)
        assert bench.launches() == 0


@torch.no_grad()
def test_copies_are_called_apart_with_their_own_weights(bench: Bench) -> None:
    """Of a module that is copied or pickled while it is patched."""
    module, x = made(Attention()), x_of(1, 2)
    with patched(module, bench):
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            other.k_proj.weight.zero_()
            other.v_proj.weight.zero_()
            assert not other(x).any()
        assert module(x).any()


@torch.no_grad()
def test_transforms_and_modes_are_the_librarys(bench: Bench) -> None:
    """torch.func maps over x, and fake tensors have no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    module, x = made(Attention()), x_of(3, 1, 2)
    wanted = torch.stack([module(each) for each in x])
    with patched(module, bench):
        assert torch.func.vmap(module)(x).allclose(wanted, rtol=2e-2, atol=2e-2)
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert module(torch.empty(1, 2, 64, dtype=torch.bfloat16)).shape == (1, 2, 64)
        assert bench.launches() == 0
