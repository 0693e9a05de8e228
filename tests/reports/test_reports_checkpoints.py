"""Public reports of 2026 about which layers of a quantised checkpoint are quantised: README.md beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_configs import LLAMA, MIXTRAL

from genkern.files.checkpoint_format import CheckpointFormats, Stored
from genkern.files.model_config import read_model
from genkern.packing.models.engines import SERVERS
from genkern.packing.models.products import products_of

PLAIN = Stored("a16w16", "bf16", "bf16", "bf16")
LAYER = "model.layers.0."
BLOCKS: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
ROWWISE: dict[str, Any] = {
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
}
INT4 = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}


def formats(quantization: dict[str, Any], *names: str) -> list[str]:
    """The format of each module."""
    found = CheckpointFormats(quantization, PLAIN)
    stored = [found.of(name) for name in names]
    assert found.unread == ""
    assert [each.lacking for each in stored] == [""] * len(names)
    return [each.stored.op for each in stored]


def kept(modules: list[str], *names: str, key: str = "modules_to_not_convert") -> list[bool]:
    """Whether each module of an fp8 checkpoint with this list is in 16 bits."""
    return [op == "a16w16" for op in formats({**BLOCKS, key: modules}, *(LAYER + name for name in names))]


def compressed(*groups: tuple[list[str], dict[str, Any]], ignore: tuple[str, ...] = ()) -> dict[str, Any]:
    """A configuration of compressed-tensors with these targets and schemes."""
    found = {f"group_{n}": {**scheme, "targets": targets} for n, (targets, scheme) in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": found, "ignore": list(ignore)}


def test_targets_that_name_a_merged_layer() -> None:
    """vllm#31623: qkv_proj stands for q, k and v. A pattern for one of two merged layers is not one for both."""
    attention = [f"{LAYER}self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    fused = compressed(([r"re:.*self_attn\.qkv_proj$"], ROWWISE))
    assert formats(fused, *attention) == ["a8w8"] * 3 + ["a16w16"]
    one_of_two = compressed(([r"re:.*up_proj$"], ROWWISE))
    assert formats(one_of_two, f"{LAYER}mlp.gate_proj", f"{LAYER}mlp.up_proj") == ["a16w16", "a8w8"]


def test_targets_by_name_come_before_the_class() -> None:
    """vllm#49483: q, k and v by name in the first group, Linear in the second."""
    names = [f"{LAYER}self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj")]
    both = compressed((names, ROWWISE), (["Linear"], INT4))
    assert formats(both, *names, f"{LAYER}self_attn.o_proj") == ["a8w8"] * 3 + ["a16w4"]


def test_ignored_parts_and_ignored_merged_layers() -> None:
    """eugr/spark-vllm-docker#403: q_proj, k_proj and v_proj by themselves, gate and up by the merged layer's name."""
    ignore = [*(f"{LAYER}self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj")), f"{LAYER}mlp.gate_up_proj"]
    names = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    found = formats(compressed((["Linear"], ROWWISE), ignore=tuple(ignore)), *(LAYER + name for name in names))
    assert found == ["a16w16", "a8w8", "a16w16", "a16w16", "a8w8"]


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
def test_merged_layers_in_an_fp8_list(key: str) -> None:
    """vllm#43981: the list has qkv_proj, the checkpoint q_proj, k_proj and v_proj."""
    names = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj")
    assert kept([f"{LAYER}self_attn.qkv_proj"], *names, key=key) == [True, True, False, False]
    assert kept(["gate_up_proj"], *names, key=key) == [False, False, False, True]
    assert kept(["up_proj"], "mlp.gate_proj", "mlp.up_proj", key=key) == [False, True]


@pytest.mark.parametrize("base", ["model.layers.", "model.language_model.layers.", "language_model.model.layers."])
def test_a_text_model_with_a_multimodal_models_list(base: str) -> None:
    """transformers#48349: entries begin with model.language_model., names in the text model do not."""
    listed = {**BLOCKS, "modules_to_not_convert": ["model.language_model.layers.1.ple.key_proj"]}
    assert formats(listed, f"{base}1.ple.key_proj", f"{base}2.ple.key_proj") == ["a16w16", "a8w8_blockscale"]


@pytest.mark.parametrize("entry", ["mlp.gate", "mlp.gate.", f"{LAYER}mlp.gate", f"{LAYER}mlp.gate."])
def test_a_router_is_no_part_of_a_name(entry: str) -> None:
    """sglang#23467, prime-rl#2442: mlp.gate is not mlp.gate_proj, whether or not a dot is behind it."""
    names = ("mlp.gate", "mlp.gate_up_proj", "mlp.gate_proj", "mlp.experts.0.gate_proj")
    assert kept([entry], *names) == [True, False, False, False]


def test_one_of_the_projections_of_a_merged_one() -> None:
    """sglang#23467, vllm#44628: short entries are ends of full names; in_proj_a says nothing of in_proj_qkvz."""
    entries = ["linear_attn.in_proj_a", "linear_attn.in_proj_qkv"]
    names = [f"linear_attn.in_proj_{end}" for end in ("a", "qkv", "qkvz", "z")]
    assert kept(entries, *names) == [True, True, False, False]


def test_a_layer_by_its_number() -> None:
    """sglang#18742: model.layers.1. is layer 1, and neither 10 nor 11."""
    listed = {**BLOCKS, "modules_to_not_convert": ["model.layers.1."]}
    names = [f"model.layers.{number}.mlp.down_proj" for number in (1, 10, 11)]
    assert formats(listed, *names) == ["a16w16", "a8w8_blockscale", "a8w8_blockscale"]


def test_experts_in_an_ignored_list() -> None:
    """TensorRT-LLM#17551: the module that holds a layer's experts stands for all of them, and not for shared ones."""
    names = ("mlp.experts.0.gate_proj", "mlp.experts.7.down_proj", "mlp.shared_experts.gate_proj")
    assert kept([f"{LAYER}mlp.experts"], *names, key="ignored_layers") == [True, True, False]


def test_experts_of_some_layers_excluded_by_modelopt() -> None:
    """lightseekorg/tokenspeed#527: globs for a layer's experts, and for a whole layer."""
    excluded = ["lm_head", f"{LAYER}mlp.experts*", "model.layers.61*"]
    said = {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "exclude_modules": excluded}}
    names = ["0.mlp.experts.3.up_proj", "0.self_attn.o_proj", "1.mlp.experts.3.up_proj", "61.mlp.up_proj", "6.mlp.up"]
    found = formats(said, *(f"model.layers.{name}" for name in names))
    assert found == ["a16w16", "a8w8", "a8w8", "a16w16", "a8w8"]


def test_mixed_precision_without_a_list_of_exclusions() -> None:
    """NVIDIA/Model-Optimizer#1363: a layer that no list names is in 16 bits."""
    layers = {f"{LAYER}self_attn.q_proj": {"quant_algo": "FP8"}}
    said = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    found = formats(said, f"{LAYER}self_attn.q_proj", f"{LAYER}mlp.gate_proj", "lm_head")
    assert found == ["a8w8", "a16w16", "a16w16"]


@pytest.mark.parametrize("algorithm", ["FP8_PB_WO", "FP8_BLOCK_SCALES"])
def test_blocks_in_mixed_precision(algorithm: str) -> None:
    """sglang#38726: both names are fp8 with a scale a block; group_size is its side."""
    layers = {
        f"{LAYER}mlp.experts": {"quant_algo": algorithm, "group_size": 64},
        f"{LAYER}o": {"quant_algo": algorithm},
    }
    said = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    found = CheckpointFormats(said, PLAIN)
    experts, other = (found.of(LAYER + name).stored for name in ("mlp.experts.0.up_proj", "o"))
    assert experts.op == other.op == "a8w8_blockscale"
    assert dict(experts.own) == {"block_n": 64, "block_k": 64}
    assert dict(other.own).get("block_k", 128) == 128


def test_globs_of_quark() -> None:
    """vllm#48606: exclude has fnmatch's globs; [12] is one character."""
    weight = {"dtype": "fp8_e4m3", "qscheme": "per_channel", "is_dynamic": False, "symmetric": True}
    scheme = {"weight": weight, "input_tensors": {**weight, "is_dynamic": True}}
    exclude = ["lm_head", "*self_attn*", "model.layers.[12].mlp.*"]
    said = {"quant_method": "quark", "global_quant_config": scheme, "exclude": exclude}
    names = ["0.self_attn.q_proj", "0.mlp.gate_proj", "1.mlp.gate_proj", "12.mlp.gate_proj"]
    found = formats(said, *(f"model.layers.{name}" for name in names))
    assert found == ["a16w16", "a8w8", "a16w16", "a8w8"]


def test_patterns_in_a_list_of_transformers() -> None:
    """transformers' FineGrainedFP8Config takes regular expressions that match from the start of a name."""
    entries = [r"model\.layers\.\d+\.mlp\.gate", r".*\.self_attn\.(q|k|v)_proj"]
    names = ("mlp.gate", "mlp.gate_proj", "self_attn.q_proj", "self_attn.o_proj")
    assert kept(entries, *names) == [True, False, True, False]


@pytest.mark.parametrize("key", ["use_fp8_experts", "moe_int4", "nvfp4"])
def test_a_flag_in_place_of_a_quantization_config(key: str, tmp_path: Path) -> None:
    """sglang-omni#1451: a key of its own says that experts are fp8. It is named; all weights are taken as 16 bits."""
    for value, is_named in ((True, True), (False, False)):
        (tmp_path / "config.json").write_text(json.dumps({**MIXTRAL, key: value}))
        products, notes = products_of(read_model(str(tmp_path)), SERVERS, 1, (16,))
        assert any(key in note for note in notes) == is_named
        assert {problem.dtype_b for each in products for problem in each.problems} == {"bf16"}
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, key: True, "quantization_config": BLOCKS}))
    assert not any(key in note for note in products_of(read_model(str(tmp_path)), SERVERS, 1, (16,))[1])
