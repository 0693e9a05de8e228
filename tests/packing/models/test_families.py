"""Tests of genkern.packing.models.families: the table lists what transformers' classes compute."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from long_tests import pairs

from genkern.files.model_config import ModelConfig
from genkern.packing.models.families import families, layers_of
from genkern.packing.models.from_transformers import layers_from_transformers
from genkern.packing.models.layers import Gemm, Part

pytest.importorskip("transformers")

# A small model of every type: each takes the keys that it knows.
SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "pad_token_id": 0,
    "num_local_experts": 8,
    "num_experts": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 192,
    "decoder_sparse_step": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
}
BIASED = {"attention_bias": True, "mlp_bias": True, "use_bias": True, "attention_out_bias": True}
UNBIASED = dict.fromkeys(BIASED, False)
# Text models of multimodal ones, and how transformers names a type of the table.
OUTER = {f"{name}_text": name for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")}
NAMED = {"kimi_k2": "deepseek_v3"}


def config_of(family: str, change: dict[str, Any]) -> ModelConfig:
    values = {**SMALL, **change, "model_type": family}
    if family.startswith(("deepseek", "kimi")):
        # Heads of latent attention have no such size.
        del values["head_dim"]
    outer = OUTER.get(family, "")
    document = {"model_type": outer, "text_config": values} if outer else values
    return ModelConfig("config.json", values, {}, outer, {**document, "model_type": NAMED.get(family, outer or family)})


def facts(part: Part) -> tuple[object, ...]:
    """What both lists must agree in; texts may differ."""
    if isinstance(part, Gemm):
        numbers = part.n, part.k, part.parts, part.batch, part.count, part.layers
        return (*numbers, part.bias, part.rows, part.row_parallel, part.names)
    return part.count, part.top, part.width, part.hidden, part.layers, part.layer_count, part.names, bool(part.differs)


@pytest.mark.parametrize(("family", "changed"), pairs([*families()], [({}, 1), (BIASED, 8), (UNBIASED, 2)]))
def test_the_table_is_as_the_class(family: str, changed: tuple[dict[str, Any], int]) -> None:
    """N, K, counts, biases, merged parts and checkpoint's names of each product, on one GPU and on several."""
    change, tp = changed
    config = config_of(family, change)
    table = [facts(part) for part in layers_of(config, tp).parts]
    read = layers_from_transformers(config, tp, 64)
    assert sorted(table, key=repr) == sorted(map(facts, read.parts), key=repr)
    assert not any("not in the list" in note for note in read.notes)


def test_a_config_that_transformers_saved() -> None:
    """It has every key of the class, some under another name than in what authors publish; the list is the same."""
    for family in [family for family in families() if family not in OUTER and family not in NAMED]:
        from transformers import CONFIG_MAPPING

        config = config_of(family, {})
        saved = json.loads(json.dumps(CONFIG_MAPPING[family](**config.values).to_dict(), default=str))
        values = {**saved, "model_type": family}
        assert layers_of(ModelConfig("c", values, {}, "", values), 2).parts == layers_of(config, 2).parts


def test_latent_attention_without_a_rank_of_queries() -> None:
    """DeepSeek-V2-Lite computes q at once."""
    config = config_of("deepseek_v2", {"q_lora_rank": None})
    table = {facts(part) for part in layers_of(config, 2).parts}
    assert table == {*map(facts, layers_from_transformers(config, 2, 64).parts)}
    assert any(("model.layers.{}.self_attn.q_proj",) in each for each in table)


@pytest.mark.parametrize("outer", ["gemma3", "mistral3", "llava", "aya_vision"])
def test_numbers_that_a_multimodal_config_leaves_out(outer: str) -> None:
    """They are transformers' defaults of the text model's class; the names are those of published checkpoints."""
    from transformers import CONFIG_MAPPING

    text = CONFIG_MAPPING[CONFIG_MAPPING[outer]().text_config.model_type]()
    values = {"model_type": text.model_type, "num_hidden_layers": 2}
    found = layers_of(ModelConfig("c", values, {}, outer, {"model_type": outer, "text_config": values}), 1)
    up = next(part for part in found.parts if isinstance(part, Gemm) and "mlp" in part.layer)
    assert (up.n, up.k) == (2 * text.intermediate_size, text.hidden_size)
    assert up.names[0] == "language_model.model.layers.{}.mlp.gate_proj"
    assert up.layers == (0, 1)


def test_the_document_names_every_type() -> None:
    """docs/models.md lists the types of the table."""
    text = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("| genkern's table"))
    assert {*re.findall(r"[a-z]\w+", row.split("|")[2])} == {*families()}
