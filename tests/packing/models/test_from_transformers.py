"""Tests of genkern.packing.models.from_transformers: layers of model types that genkern's table lacks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from command import run_here
from long_tests import drawn

from genkern.errors import InputError
from genkern.files.model_config import ModelConfig, read_model
from genkern.packing.models.families import families, layers_of
from genkern.packing.models.layers import Experts, Gemm, ModelLayers

transformers = pytest.importorskip("transformers")

# As their authors publish them, shortened to what sizes depend on.
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "vocab_size": 151936,
}
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "interleave_moe_layer_step": 2,
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "vocab_size": 202048,
    },
}
DEEPSEEK_V32 = {
    "model_type": "deepseek_v32",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "q_lora_rank": 1536,
}
GRANITE4 = {
    "model_type": "granitemoehybrid",
    "hidden_size": 4096,
    "num_hidden_layers": 40,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "vocab_size": 100352,
}


def require(family: str) -> None:
    """Skip a test of a type that the installed transformers does not have yet."""
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")


def listed(values: dict[str, Any], tp: int = 1) -> ModelLayers:
    outer = values["model_type"] if "text_config" in values else ""
    return layers_of(ModelConfig("config.json", values.get("text_config", values), {}, outer, values), tp)


def gemms(values: dict[str, Any], tp: int = 1) -> dict[tuple[str, ...], Gemm]:
    """By the last word of each weight's name."""
    parts = [part for part in listed(values, tp).parts if isinstance(part, Gemm)]
    return {tuple(name.rpartition(".")[2] for name in part.names): part for part in parts}


def test_gated_delta_net_and_full_attention() -> None:
    """Each kind of layer with the layers that have it; the two kv heads are shared by pairs of four GPUs."""
    found = gemms(QWEN3_NEXT, 4)
    qkvz, qkv = found[("in_proj_qkvz",)], found["q_proj", "k_proj", "v_proj"]
    assert (qkvz.n, qkvz.k, qkvz.count) == ((2 * 16 * 128 + 2 * 32 * 128) // 4, 2048, 36)
    # Queries are as wide again, for their gate.
    assert (qkv.parts, qkv.k, qkv.layers) == ((2 * 16 * 256 // 4, 256, 256), 2048, (*range(3, 48, 4),))
    assert (found[("o_proj",)].n, found[("o_proj",)].k) == (2048, 16 * 256 // 4)
    assert (found[("shared_expert_gate",)].n, found[("gate",)].n) == (1, 512)
    (experts,) = (part for part in listed(QWEN3_NEXT, 4).parts if isinstance(part, Experts))
    assert (experts.count, experts.top, experts.width, experts.hidden) == (512, 10, 128, 2048)
    assert experts.names[0] == "model.layers.{}.mlp.experts.0.gate_proj"


def test_the_text_model_of_a_multimodal_one() -> None:
    """Llama 4 Maverick: dense and sparse layers take turns; names are those of the checkpoint."""
    found = listed(LLAMA4)
    parts = {part.names[0]: part for part in found.parts}
    base = "language_model.model.layers.{}"
    dense = parts[f"{base}.feed_forward.gate_proj"]
    assert isinstance(dense, Gemm)
    assert (dense.n, dense.layers) == (2 * 16384, (*range(0, 48, 2),))
    experts = parts[f"{base}.feed_forward.experts.gate_up_proj"]
    assert isinstance(experts, Experts)
    assert (experts.count, experts.top, experts.width, experts.layers) == (128, 1, 8192, (*range(1, 48, 2),))
    assert not any("vision" in name for name in parts)
    assert "language_model.lm_head" in parts
    assert any("Llama4ForCausalLM" in note and "vision" in note for note in found.notes)


@pytest.mark.parametrize(
    ("values", "base"),
    [
        # As published in 2024: the text model's numbers beside the vision model's.
        ({"model_type": "qwen2_5_vl", "hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 640}, "model."),
        (
            {"model_type": "qwen3_5", "text_config": {"hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 640}},
            "model.language_model.",
        ),
        # The type of the whole is unknown.
        (
            {
                "model_type": "newest",
                "llm_config": {
                    "model_type": "qwen3_next",
                    "hidden_size": 512,
                    "num_hidden_layers": 3,
                    "vocab_size": 640,
                },
            },
            "model.language_model.",
        ),
    ],
    ids=["flat", "nested", "unknown"],
)
def test_names_in_a_multimodal_checkpoint(tmp_path: Path, values: dict[str, Any], base: str) -> None:
    """Wherever config.json has the text model's numbers, its layers and its head are listed under the same names."""
    require("qwen3_5")
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = layers_of(read_model(str(tmp_path)), 1)
    *layers, head = found.parts
    assert isinstance(head, Gemm)
    assert (head.names, head.n, head.k, head.rows) == (("lm_head",), 640, 512, "decode")
    assert {name[: len(base) + 7] for part in layers for name in part.names} == {f"{base}layers."}
    assert {layer for part in layers for layer in part.layers} == {0, 1, 2}
    assert "vision" in found.notes[0]


def test_the_indexer_is_on_every_gpu() -> None:
    """Sparse attention's; latent attention is as in the table of DeepSeek-V3."""
    require("deepseek_v32")
    found = gemms(DEEPSEEK_V32, 8)
    assert (found[("wq_b",)].n, found[("wq_b",)].k) == (64 * 128, 1536)
    assert (found[("wk",)].n, found[("weights_proj",)].n) == (128, 64)
    assert (found["q_a_proj", "kv_a_proj_with_mqa"].n, found[("q_b_proj",)].n) == (2112, 24576 // 8)
    batches = {
        (part.n, part.k, part.batch, part.rows) for part in listed(DEEPSEEK_V32, 8).parts if isinstance(part, Gemm)
    }
    assert {(512, 128, 16, "decode"), (128, 512, 16, "decode"), (4096, 512, 0, "prefill")} <= batches


@pytest.mark.parametrize(("groups", "tp"), [(1, 1), (1, 8), (8, 4), (8, 8), (2, 4)])
def test_mamba_layers_of_a_hybrid(groups: int, tp: int) -> None:
    """Heads are split; B and C of a group are on as many GPUs as share it."""
    found = gemms({**GRANITE4, "mamba_n_groups": groups}, tp)
    inner, mine = 8192 // tp, max(1, groups // tp)
    assert (found[("in_proj",)].n, found[("in_proj",)].k) == (2 * inner + 2 * mine * 128 + 128 // tp, 4096)
    assert (found[("out_proj",)].n, found[("out_proj",)].k) == (4096, inner)
    assert (found[("in_proj",)].count, found[("o_proj",)].count) == (36, 4)


@pytest.mark.parametrize(
    "family", ["qwen3_5", "qwen3_5_moe", "gemma3n_text", "gemma4_text", "ernie4_5_moe", "glm_moe_dsa"]
)
def test_newer_types_have_products(family: str) -> None:
    """With transformers' own numbers: attention, an MLP and a head; the note names the class."""
    require(family)
    found = listed({"model_type": family})
    words = {word for part in found.parts for name in part.names for word in name.split(".")}
    assert {"o_proj", "q_proj", "down_proj", "lm_head"} <= words or {"q_b_proj", "o_proj", "lm_head"} <= words
    assert "ForCausalLM" in found.notes[0] or "ForConditionalGeneration" in found.notes[0]


@pytest.mark.parametrize(
    ("family", "packed", "tp", "columns"),
    [
        # 12 heads of 64; 71 heads of 64 with one kv head; 64 heads of 96.
        ("gpt2", "c_attn", 4, 3 * 768 // 4),
        ("falcon", "query_key_value", 1, (71 + 2) * 64),
        ("gpt_neox", "query_key_value", 8, 3 * 6144 // 8),
    ],
)
def test_q_k_and_v_in_one_tensor(family: str, packed: str, tp: int, columns: int) -> None:
    """Older types' weights are split by heads too, whichever way they lie."""
    assert gemms({"model_type": family}, tp)[(packed,)].n == columns


WHOLE = (
    *(
        "apertus",
        "bamba",
        "bert",
        "bloom",
        "deepseek_v32",
        "ernie4_5_moe",
        "exaone_moe",
        "falcon_h1",
        "flex_olmo",
    ),
    *("gemma3n_text", "gemma4_text", "glm_moe_dsa", "gpt_bigcode", "granitemoehybrid", "jamba", "kimi_linear", "lfm2"),
    *(
        "longcat_flash",
        "llama4_text",
        "minimax",
        "nemotron_h",
        "opt",
        "phimoe",
        "qwen3_5_moe_text",
        "qwen3_next",
        "zamba2",
    ),
)


@pytest.mark.parametrize("family", drawn(WHOLE, 10))
def test_every_weight_is_in_the_list(family: str) -> None:
    """On one GPU the products have as many weights as the class has matrices outside embeddings and convolutions."""
    import torch

    require(family)
    with torch.device("meta"):
        made = transformers.CONFIG_MAPPING[family]()
        model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager")
    weights = 0
    for module in model.modules():
        if "Embedding" in type(module).__name__:
            continue
        # Of LongCat's first tensor the rows of experts that compute nothing are no weights.
        parameters = dict(module.named_parameters(recurse=False))
        for name, value in parameters.items():
            count = (
                parameters["down_proj"].shape[0] / value.shape[0] if name == "gate_up_proj" and value.ndim == 3 else 1
            )
            weights += int(value.numel() * count) if value.ndim >= 2 else 0
    found = listed({"model_type": family})
    assert not any("not in the list" in note for note in found.notes)
    held = 0
    for part in found.parts:
        if isinstance(part, Experts):
            held += (
                (2 if "without a gate" in part.differs else 3)
                * part.count
                * part.width
                * part.hidden
                * part.layer_count
            )
        elif "absorbed" not in part.modules:
            vocabulary = model.get_output_embeddings().out_features if part.layer == "lm_head" else part.n
            held += vocabulary * part.k * part.count * max(1, part.batch)
    assert held == pytest.approx(weights, rel=0.006)


def test_weights_in_an_unknown_layout_are_named() -> None:
    """DBRX's experts lie in matrices behind each other, JetMoE's in classes of its own."""
    notes = listed({"model_type": "dbrx", "attn_config": {"rope_theta": 5e5, "kv_n_heads": 8}}).notes
    assert [note for note in notes if "experts.mlp.w1" in note and "not in the list" in note]
    assert [note for note in listed({"model_type": "jetmoe"}).notes if "mlp.input_linear" in note]


def test_a_list_says_what_it_is_read_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`genkern shapes` names the class, and how layers are split; a type of the table has no such line."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_NEXT))
    command = ["shapes", "--model_dir", tmp_path, "-o", tmp_path / "s.yaml", "--overwrite", "--tp", 2, "--nsets", "16"]
    ran = run_here(capsys, *command)
    assert (ran.status, ran.err) == (0, "")
    assert "Qwen3NextForCausalLM" in ran.out
    assert "o_proj" in ran.out
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3_NEXT, "model_type": "qwen3"}))
    ran = run_here(capsys, *command[:-2], "--nsets", "16", "--like", "llama")
    assert "transformers" not in ran.out


CODE = "raise SystemExit('executed')\n"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "jamba", "num_attention_heads": "many"}, "num_attention_heads"),
        ({"model_type": "granitemoehybrid", "num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"model_type": "olmoe", "num_attention_heads": 0}, "olmoe"),
        ({"model_type": "bert", "num_hidden_layers": -1, "vocab_size": -5}, "bert"),
        ({"model_type": "newest", "auto_map": {"AutoModelForCausalLM": "modeling.Newest"}}, "not executed"),
        ({"model_type": "newest", "auto_map": {"AutoConfig": "who/what--modeling.Newest"}}, "newest"),
    ],
)
def test_a_config_that_no_model_is_built_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: dict[str, Any], said: str
) -> None:
    """One line names the file and the reason; the checkpoint's own code does not run."""
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "modeling.py").write_text(CODE)
    ran = run_here(capsys, "shapes", "--model_dir", tmp_path, "-o", tmp_path / "s.yaml")
    assert said in ran.refusal
    assert "config.json" in ran.refusal
    assert not (tmp_path / "s.yaml").exists()


def test_code_of_a_checkpoint_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that transformers has is built from its class, whatever auto_map names; no name is looked up online."""
    (tmp_path / "modeling.py").write_text(CODE)
    named = {"auto_map": {"AutoModelForCausalLM": "modeling.Own"}, "attn_implementation": "who/what"}
    (tmp_path / "config.json").write_text(json.dumps({**GRANITE4, **named, "_attn_implementation": "who/what"}))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert layers_of(read_model(str(tmp_path)), 1).parts == listed(GRANITE4).parts
    assert "HF_HUB_OFFLINE" not in os.environ


@pytest.mark.parametrize("family", ["jamba", "qwen3_next", "newest"])
def test_without_transformers(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """The refusal says to install it; types of the table need nothing."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=f"{family}.*install transformers"):
        listed({"model_type": family})
    assert len(families()) > 30


@pytest.mark.parametrize(
    ("values", "tp", "said"),
    [
        (QWEN3_NEXT, 3, "linear_attn|self_attn"),
        (LLAMA4, 16, "self_attn.q_proj: 40 heads"),
        (GRANITE4, 7, "not split evenly over 7 GPUs"),
    ],
)
def test_layers_that_are_not_split_evenly(values: dict[str, Any], tp: int, said: str) -> None:
    """The refusal names the layer and the number of GPUs."""
    with pytest.raises(InputError, match=said):
        listed(values, tp)


def test_unreadable_names_of_checkpoints_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' table of names is internal and may change: the layers are listed all the same, with a line."""

    def changed(model_type: str) -> None:
        raise TypeError("another signature")

    mapping = pytest.importorskip("transformers.conversion_mapping")
    usual = listed(GRANITE4)
    monkeypatch.setattr(mapping, "get_checkpoint_conversion_mapping", changed)
    found = listed(GRANITE4)
    assert len(found.parts) == len(usual.parts)
    assert any("another signature" in note for note in found.notes)
    assert not any("another signature" in note for note in usual.notes)
