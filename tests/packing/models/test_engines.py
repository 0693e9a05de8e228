"""Tests of genkern.packing.models.engines: layers and numbers of rows as each engine has them."""

from __future__ import annotations

import pytest
from model_configs import DEEPSEEK, LLAMA

from genkern.files.model_config import ModelConfig
from genkern.packing.models.engines import ENGINES, SERVERS, Engine
from genkern.packing.models.layers import Gemm
from genkern.packing.models.products import products_of

ODD = {**LLAMA, "vocab_size": 128257}


def gemms(engine: Engine, values: dict[str, object], tp: int = 1) -> dict[tuple[int, int], Gemm]:
    parts = engine.layers(ModelConfig("config.json", values, {}), tp).parts
    return {(part.n, part.k): part for part in parts if isinstance(part, Gemm)}


def test_rows_are_those_of_captured_graphs() -> None:
    """As vLLM 0.33.0 and SGLang 0.5.23 list them; what is tuned of them are the powers of two."""
    vllm, sglang = ENGINES["vllm"].rows, ENGINES["sglang"].rows
    assert vllm[:6] == (1, 2, 4, 8, 16, 24)
    assert sglang[:7] == (1, 2, 4, 8, 12, 16, 24)
    assert {240, 248, 256, 272, 496, 512, 8192} < {*vllm}
    assert {240, 248, 256, 272, 496, 512, 8192} < {*sglang}
    assert not {264, 504} & {*vllm, *sglang}
    assert len(vllm) == 3 + 31 + 17 + 5
    assert ENGINES["vllm"].tuned == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_servers_merge_and_pad(name: str) -> None:
    """q, k and v as one, gate and up as one, a vocabulary of whole blocks of 64; for every number of GPUs."""
    found = gemms(ENGINES[name], ODD, 8)
    assert found.keys() == gemms(SERVERS, ODD, 8).keys()
    assert (1280, 8192) in found
    assert (128320 // 8, 8192) in found


def test_transformers_pads_nothing() -> None:
    """genkern.patch merges on one GPU; layers of several have hooks, and are called apart."""
    engine = ENGINES["transformers"]
    assert gemms(engine, ODD).keys() == {(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (128257, 8192)}
    apart = gemms(engine, LLAMA, 8)
    assert {(1024, 8192), (128, 8192), (3584, 8192)} < apart.keys()
    assert (1280, 8192) not in apart
    assert apart[3584, 8192].count == 2 * 80
    assert apart[128, 8192].count == 2 * 80


def test_transformers_does_not_absorb() -> None:
    """Its latent attention computes keys and values of every token, while decoding too."""
    plain, served = gemms(ENGINES["transformers"], DEEPSEEK), gemms(ENGINES["vllm"], DEEPSEEK)
    assert plain[32768, 512].rows == "all"
    assert served[32768, 512].rows == "prefill"
    assert {key for key, gemm in served.items() if gemm.batch} == {(512, 128), (128, 512)}
    assert not any(gemm.batch for gemm in plain.values())


def test_layers_are_counted() -> None:
    """Each product says how many layers have it."""
    found = gemms(SERVERS, DEEPSEEK)
    dense = [gemm.count for gemm in found.values() if gemm.layer == "model.layers.0-2.mlp"]
    assert dense == [3, 3]
    assert {gemm.count for gemm in found.values() if "self_attn" in gemm.layer} == {61}
    assert {gemm.count for gemm in found.values() if "shared_experts" in gemm.layer} == {58}


FP8: dict[str, object] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
QWEN3_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


@pytest.mark.parametrize("name", ["vllm", "sglang", "transformers", ""])
def test_fp8_is_added_up_as_the_engine_does(name: str) -> None:
    """In transformers as calls that say nothing ask for: in full, linear layers and experts; scales of blocks, and
    other types, have one way.
    """
    engine = ENGINES.get(name, SERVERS)

    def sums(values: dict[str, object], quantization: dict[str, object]) -> set[tuple[str, str]]:
        products, _ = products_of(ModelConfig("config.json", values, quantization), engine, 1, (16,))
        problems = [problem for product in products for problem in product.problems]
        return {(problem.op, str(dict(problem.own).get("accumulate", "fast"))) for problem in problems}

    said = "full" if name == "transformers" else "fast"
    assert sums(LLAMA, FP8) == {("a8w8", said), ("a16w16", "fast")}
    assert sums(QWEN3_MOE, FP8) == {("a8w8", said), ("fused_moe", said), ("a16w16", "fast")}
    blocks = {**FP8, "weight_block_size": [128, 128]}
    assert sums(QWEN3_MOE, blocks) == {("a8w8_blockscale", "fast"), ("fused_moe", "fast"), ("a16w16", "fast")}
