"""Stock models of transformers with genkern.patch: their merged layers call winners, and say what they said."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from layers_sharing_x import Bench
from long_tests import drawn

from genkern.runtime.linear import Patch, patch_model
from genkern.runtime.merged_layers.linears import define_linears
from genkern.runtime.process.torch_ops import define

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": None,
}
# N of q, k and v together, of gate and up, of the head; K of all is 64.
SIZES = [(128, 64), (192, 64), (96, 64)]
ROUTED = {"num_local_experts": 4, "num_experts_per_tok": 2}
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    # The class's name, what its configuration has besides, and how many layers it has that share an input.
    "Llama": ("Llama", {}, 4),
    "Qwen3": ("Qwen3", {}, 4),
    "Mixtral": ("Mixtral", ROUTED, 2),
    "GptOss": ("GptOss", {**ROUTED, "attention_bias": False, "layer_types": ["full_attention"] * 2}, 2),
}


def model_of(name: str) -> Any:
    class_name, more, _ = MODELS[name]
    config = getattr(transformers, f"{class_name}Config")(**SMALL, **more)
    torch.manual_seed(0)
    return getattr(transformers, f"{class_name}ForCausalLM")(config).bfloat16().eval()


@pytest.fixture(scope="module")
def bench() -> Bench:
    made = Bench(SIZES, rows=(1, 3))
    made.gemm.operator = define(made.gemm, "test_stock_models")
    return made


@pytest.fixture(scope="module")
def linears(bench: Bench) -> Any:
    return define_linears(bench.gemm, "test_stock_linears")


def patched(model: Any, builder: Bench) -> Patch:
    return patch_model(model, builder.gemm, builder.context)


TOKENS = torch.tensor([[5, 7, 11]])


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_layers_that_share_an_input_are_one_product(name: str, bench: Bench) -> None:
    """In every layer of each model; logits are the same but for their last bit, and the state dictionary is too."""
    model, groups = model_of(name), MODELS[name][2]
    wanted, before = model(TOKENS).logits, {key: value.clone() for key, value in model.state_dict().items()}
    with patched(model, bench) as patch:
        assert len(patch.merged) == groups
        assert {each.rpartition(".")[2] for each in patch.merged} <= {"q_proj + k_proj + v_proj", "gate_proj + up_proj"}
        bench.launches()
        found = model(TOKENS).logits
        # The head has a winner for all rows.
        assert bench.launches() == groups + 1
        assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert model(TOKENS).logits.equal(wanted)
    assert bench.launches() == 0


@pytest.mark.parametrize("name", drawn(["Llama", "GptOss"], 1))
@torch.no_grad()
def test_a_compiled_model_calls_each_group_once(name: str, bench: Bench, linears: Any) -> None:
    """As an operator in its graph, the winner behind it; the head's too, of an nn.Linear."""
    model, groups = model_of(name), MODELS[name][2]
    wanted, graphs = model(TOKENS).logits, []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    torch.compiler.reset()
    with patch_model(model, bench.gemm, bench.context, lambda: linears):
        bench.launches()
        found = torch.compile(model, backend=backend)(TOKENS).logits
        assert bench.launches() == groups + 1
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert sum("test_stock_linears" in each for graph in graphs for each in graph) == groups


@torch.no_grad()
def test_generation_with_a_static_cache(bench: Bench) -> None:
    """Every step but the prompt's has one row; the same tokens come out."""
    model = model_of("Llama")
    options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    wanted = model.generate(TOKENS, **options)
    with patched(model, bench):
        bench.launches()
        assert model.generate(TOKENS, **options).equal(wanted)
        # The prompt's head is asked for its last row alone.
        assert bench.launches() == 4 * 5


@torch.no_grad()
def test_saved_and_loaded(bench: Bench, tmp_path: Path) -> None:
    """A patched model is saved as it would have been, and loads into one that is patched and one that is not."""
    model, other = model_of("Llama"), model_of("Llama")
    wanted = model(TOKENS).logits
    model.save_pretrained(tmp_path / "plain")
    with patched(model, bench):
        model.save_pretrained(tmp_path / "patched")
        # Refuses tensors that are parts of others' memory.
        safetensors_torch.save_model(model, str(tmp_path / "whole.safetensors"))
        sizes = [
            sum(file.stat().st_size for file in (tmp_path / name).glob("*.safetensors"))
            for name in ("plain", "patched")
        ]
        assert sizes[0] == sizes[1]
        model.load_state_dict({key: value * 2 for key, value in other.state_dict().items()})
        twice = model(TOKENS).logits
        torch.save(model.state_dict(), tmp_path / "state.pt")
    assert model(TOKENS).logits.allclose(twice, rtol=2e-2, atol=2e-2)
    loaded = type(model).from_pretrained(tmp_path / "patched", dtype=torch.bfloat16).eval()
    assert loaded(TOKENS).logits.equal(wanted)
    assert torch.load(tmp_path / "state.pt").keys() == other.state_dict().keys()


@torch.no_grad()
def test_copied_and_converted(bench: Bench) -> None:
    """A copy has its own weights; a model in another type is the library's."""
    model = model_of("Llama")
    wanted = model(TOKENS).logits
    with patched(model, bench):
        assert copy.deepcopy(model)(TOKENS).logits.allclose(wanted, rtol=2e-2, atol=2e-2)
        bench.launches()
        model.float()(TOKENS)
        assert bench.launches() == 0


@pytest.mark.parametrize("wrap", [torch.inference_mode, torch.no_grad])
def test_modes_without_gradients(bench: Bench, wrap: Callable[[], Any]) -> None:
    """Both are served; with gradients each layer is called for itself, and gets one."""
    model = model_of("Llama")
    bench.launches()
    with patched(model, bench):
        with wrap():
            model(TOKENS)
        assert bench.launches() == 5
        model(TOKENS).logits.float().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def adapted(model: Any) -> Any:
    """With peft's LoRA on some layers, which does something."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    own = {"r": 4, "target_modules": ["q_proj", "v_proj", "gate_proj"], "init_lora_weights": False}
    return peft.get_peft_model(model, peft.LoraConfig(**own)).bfloat16().eval()


@torch.no_grad()
def test_adapters_that_come_later(bench: Bench) -> None:
    """Layers under them are served; merged into weights they count; taken off, before the patch or after, all is as it
    was.
    """
    with_adapters = adapted(model_of("Llama"))
    near = {"rtol": 3e-2, "atol": 3e-2}
    wanted, plain = with_adapters(TOKENS).logits, model_of("Llama")(TOKENS).logits
    for undone_first in (False, True):
        base = model_of("Llama")
        patch = patched(base, bench)
        model = adapted(base)
        bench.launches()
        torch.testing.assert_close(model(TOKENS).logits, wanted, **near)
        assert bench.launches() == 5
        model.merge_adapter()
        torch.testing.assert_close(model(TOKENS).logits, wanted, **near)
        assert bench.launches() == 5
        model.unmerge_adapter()
        if undone_first:
            patch.undo()
        base = model.unload()
        patch.undo()
        torch.testing.assert_close(base(TOKENS).logits, plain, **near)
        assert bench.launches() == 0
        assert not any("forward" in vars(each) for each in base.modules())


def test_adapters_that_were_there_before(bench: Bench) -> None:
    """Layers under them are called one by one, and adapters are trained as without a patch."""
    patched_one, other = adapted(model_of("Llama")), adapted(model_of("Llama"))
    with patched(patched_one, bench) as patch:
        assert patch.merged == ()
        assert "base_model.model.model.layers.0.mlp.gate_proj.base_layer" in patch.layers
        for each in (patched_one, other):
            each(TOKENS).logits.float().square().sum().backward()
    grads = [[p.grad for p in each.parameters() if p.requires_grad] for each in (patched_one, other)]
    assert len(grads[0]) == 2 * 3 * 2
    for found, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(found, wanted, rtol=5e-2, atol=5e-2)


@pytest.fixture(scope="module")
def gated() -> Bench:
    """The same winners, and the kernel of gated rows."""
    made = Bench(SIZES, rows=(1, 3), gate=True)
    made.gemm.operator = define(made.gemm, "test_stock_gated")
    return made


def gates(builder: Bench) -> int:
    """How often gated rows were launched since this was asked last."""
    count = sum(each.symbol == "gate_rows" for each in builder.gpu.driver.launched)
    builder.launches()
    return count


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
@torch.no_grad()
def test_gated_layers_are_one_product_and_a_kernel(name: str, bench: Bench, gated: Bench) -> None:
    """In every layer, with the logits of merged layers to the bit, and the tokens of generate()."""
    model = model_of(name)
    options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    with patched(model, bench):
        wanted, tokens = model(TOKENS).logits, model.generate(TOKENS, **options)
    with patched(model, gated) as patch:
        assert patch.gated == ("model.layers.0.mlp", "model.layers.1.mlp")
        gates(gated)
        assert model(TOKENS).logits.equal(wanted)
        assert gates(gated) == 2
        assert model.generate(TOKENS, **options).equal(tokens)
        assert gates(gated) == 2 * 4


@torch.no_grad()
def test_gated_layers_with_adapters(gated: Bench) -> None:
    """On gate or up they are the module's own, whether they came before or later, and gated again without them; on the
    layer below they change nothing.
    """
    near = {"rtol": 3e-2, "atol": 3e-2}
    wanted = adapted(model_of("Llama"))(TOKENS).logits
    model = model_of("Llama")
    with patched(model, gated):
        later = adapted(model)
        gates(gated)
        torch.testing.assert_close(later(TOKENS).logits, wanted, **near)
        assert gates(gated) == 0
        model = later.unload()
        model(TOKENS)
        assert gates(gated) == 2
    peft = pytest.importorskip("peft")
    own = {"r": 4, "target_modules": ["down_proj"], "init_lora_weights": False}
    below = peft.get_peft_model(model, peft.LoraConfig(**own)).bfloat16().eval()
    wanted = below(TOKENS).logits
    with patched(below, gated) as patch:
        assert len(patch.gated) == 2
        gates(gated)
        torch.testing.assert_close(below(TOKENS).logits, wanted, **near)
        assert gates(gated) == 2
