"""`genkern shapes`: a model's config.json becomes the list of what one GPU computes, in the format of its weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import run_here
from model_configs import DEEPSEEK, FP8_BLOCKS, FP8_TOKENS, GPT_OSS, LLAMA, MIXTRAL, QWEN3

from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.gemm.problem import GemmProblem

SHIPPED = Path(__file__).resolve().parents[3] / "input_sizes"


def shapes(
    folder: Path, capsys: pytest.CaptureFixture[str], config: object, *argv: object
) -> tuple[list[GemmProblem], str, str]:
    """The sizes, the list's text, and what was said."""
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    ran = run_here(capsys, "shapes", "--model_dir", folder, "-o", folder / "sizes.yaml", "--overwrite", *argv)
    assert (ran.status, ran.err) == (0, ""), ran
    sizes = read_sizes(str(folder / "sizes.yaml"), GemmDefaults(), "sm_90")
    assert sizes.notes == ()
    return list(sizes.problems), (folder / "sizes.yaml").read_text(), ran.out


@pytest.mark.parametrize(
    ("name", "config", "tp"),
    [
        ("llama-3.1-70b_tp8", LLAMA, 8),
        ("qwen3-32b_tp4", QWEN3, 4),
        ("gpt-oss-120b_tp8", GPT_OSS, 8),
        ("deepseek-v3_tp8", DEEPSEEK, 8),
    ],
)
def test_the_shipped_lists_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, config: dict[str, Any], tp: int
) -> None:
    """What config.json of a model says gives the sizes of its file in input_sizes, made by hand."""
    found, _, _ = shapes(tmp_path, capsys, config, "--tp", tp)
    shipped = read_sizes(str(SHIPPED / f"{name}.yaml"), GemmDefaults(dtype_a="bf16"), "sm_90").problems
    # The file of gpt-oss is of rank 0, which alone adds the bias of the attention's output.
    other_ranks = {replace(each, bias=False) for each in shipped if each.bias and (each.N, each.K) == (2880, 512)}
    assert other_ranks <= set(found)
    made = [each for each in found if each.own == () and each not in other_ranks]
    assert set(made) == set(shipped)
    assert len(made) == len(shipped)
    # Latent attention while decoding, a product a head, which the files made by hand have not.
    batches = {(each.M, each.batch, each.N, each.K) for each in found if each.batch > 1}
    latent = {(m, 16, n, k) for m in (1, 16, 64, 256) for n, k in ((512, 128), (128, 512))}
    assert batches == (latent if config is DEEPSEEK else set())


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("deepseek-v3_a8w8_blockscale", {**DEEPSEEK, "quantization_config": FP8_BLOCKS}),
        ("llama-3.1-70b_a8w8", {**LLAMA, "quantization_config": FP8_TOKENS}),
        (
            "llama-3.1-70b_a16w4",
            {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
        ),
    ],
)
def test_the_shipped_lists_of_quantised_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, config: dict[str, Any]
) -> None:
    """They are the quantised products of a list made so for 8 GPUs, comments and all, without what stays in 16 bits."""
    found, text, _ = shapes(tmp_path, capsys, config, "--tp", 8)
    shipped = read_sizes(str(SHIPPED / f"{name}.yaml"), GemmDefaults(), "sm_90").problems
    assert shipped == tuple(each for each in found if each.op == name.partition("_")[2])
    lines = (SHIPPED / f"{name}.yaml").read_text().splitlines()
    assert {line for line in lines if line.startswith(("- ", "# model."))} <= set(text.splitlines())


def test_each_size_stands_under_its_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With N and K in the model's own terms; routed experts as the two stages of a mixture of them."""
    made, text, _ = shapes(tmp_path, capsys, {**DEEPSEEK, "quantization_config": FP8_BLOCKS}, "--nsets", "1,512")
    lines = text.splitlines()
    (place,) = (index for index, line in enumerate(lines) if "q up" in line)
    assert lines[place].startswith("# model.layers.0-60.self_attn: q up: N = heads 128 x (nope 128 + rope 64)")
    assert "'M': 1, 'N': 24576, 'K': 1536" in lines[place + 1]
    assert any(line.startswith("# model.layers.0-2.mlp: gate and up") for line in lines)
    assert any("3-60.mlp.experts: 256 experts, 8 a token" in line for line in lines)
    own = ("experts", 256), ("scales", "blocks")
    stages = {(each.M, each.N, each.K, each.activation) for each in made if set(own) <= set(each.own)}
    assert stages == {(m, *rest) for m in (1, 512) for rest in ((2048, 7168, "silu"), (7168, 2048, "none"))}


def test_experts_that_genkern_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those with biases, and those in a format without experts, are told and not listed."""
    made, text, said = shapes(tmp_path, capsys, GPT_OSS, "--nsets", "1")
    assert "experts: not in the list: experts have biases, and another gate than silu" in said
    assert "; not in this list" in text
    assert not any(dict(each.own) for each in made)
    four_bits = {**MIXTRAL, "quantization_config": {"quant_method": "gptq", **FOUR_BITS}}
    _, _, said = shapes(tmp_path, capsys, four_bits, "--nsets", "1")
    assert "genkern has no experts with weights as a16w4 stores them" in said


def test_experts_in_16_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mixtral's, split over GPUs by their width."""
    made, _, _ = shapes(tmp_path, capsys, MIXTRAL, "--nsets", "64", "--tp", "2")
    gate, down = (each for each in made if dict(each.own).get("experts") == 8)
    assert (gate.N, gate.K, gate.dtype_a, dict(gate.own)) == (
        *(14336, 8192, "bf16"),
        {"experts": 8, "stage": "gate_up", "top_k": 2},
    )
    assert (down.N, down.K) == (8192, 14336)


COMPRESSED = {"num_bits": 8, "type": "float", "strategy": "channel"}
TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FOUR_BITS = {"bits": 4, "group_size": 128}
ROWS = ("a8w8", "fp8e4m3fn", {"scales": "per_token"})


def quark(
    dtype: str = "fp8_e4m3", qscheme: str = "per_tensor", others: dict[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """What Quark writes: `others` are layers that differ, from what all have."""
    whole = {
        "weight": {"dtype": dtype, "qscheme": qscheme, "is_dynamic": False, "symmetric": True},
        "input_tensors": {"dtype": dtype, "qscheme": qscheme, "is_dynamic": qscheme != "per_tensor"},
        "output_tensors": None,
    }
    layers = {name: {**whole, **more} for name, more in (others or {}).items()}
    return {"quant_method": "quark", "global_quant_config": whole, "layer_quant_config": layers}


def quark_mxfp4(**tokens: object) -> dict[str, Any]:
    """What it writes of MXFP4 weights; `tokens` is what activations have in another way."""
    said = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "symmetric": None}
    whole = {"weight": {**said, "is_dynamic": False}, "input_tensors": {**said, "is_dynamic": True, **tokens}}
    return {"quant_method": "quark", "global_quant_config": whole, "layer_quant_config": {}}


def compressed(weights: dict[str, Any], activations: dict[str, Any] | None = None) -> dict[str, Any]:
    """One group of compressed-tensors for all layers."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


# The list of modules that keep plain weights, as each library calls it, with an entry for attention.
KEPT = {
    "compressed-tensors": ("ignore", "re:.*self_attn.*"),
    "quark": ("exclude", "*self_attn*"),
    "modelopt": ("exclude_modules", "model.layers.*.self_attn*"),
    "fp8": ("modules_to_not_convert", "model.layers.*.self_attn"),
    "fbgemm_fp8": ("modules_to_not_convert", "model.layers.*.self_attn"),
    "awq": ("modules_to_not_convert", "self_attn"),
    "bitsandbytes": ("llm_int8_skip_modules", "model.layers.*.self_attn"),
}
MXFP4_WEIGHTS = quark_mxfp4()
MXFP4_WEIGHTS["global_quant_config"]["input_tensors"] = None
STORED = {
    "blocks": (FP8_BLOCKS, ("a8w8_blockscale", "fp8e4m3fn", {})),
    "other blocks": ({**FP8_BLOCKS, "weight_block_size": [64, 128]}, ("a8w8_blockscale", "fp8e4m3fn", {"block_n": 64})),
    "a tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, ("a8w8", "fp8e4m3fn", {})),
    "tokens as they come": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, ROWS),
    "FBGEMM": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, ROWS),
    "Quark, a tensor": (quark(), ("a8w8", "fp8e4m3fn", {})),
    "Quark, tokens": (quark(qscheme="per_channel"), ROWS),
    "Quark, bytes": (quark(dtype="int8"), ("a8w8", "int8", {})),
    "Quark, caches": (quark(others={"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}}), ("a8w8", "fp8e4m3fn", {})),
    "Quark, four bits": (quark(dtype="fp4", qscheme="per_group"), ("a16w16", "bf16", {})),
    "Quark, MXFP4": (quark_mxfp4(), ("a4w4_blockscale", "int8", {})),
    "Quark, MXFP4 weights": (MXFP4_WEIGHTS, ("a16w4", "int8", {"weights": "mxfp4"})),
    "Quark, MXFP4 weights and fp8": (quark_mxfp4(dtype="fp8_e4m3", qscheme="per_tensor"), ("a16w16", "bf16", {})),
    "Quark, broken": ({"quant_method": "quark", "global_quant_config": [1]}, ("a16w16", "bf16", {})),
    "ModelOpt, a tensor": ({"quant_method": "modelopt", "quant_algo": "FP8"}, ("a8w8", "fp8e4m3fn", {})),
    "ModelOpt, tokens": ({"quant_method": "modelopt", "quant_algo": "fp8_per_channel_per_token"}, ROWS),
    "ModelOpt, as it was": (
        {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}},
        ("a8w8", "fp8e4m3fn", {}),
    ),
    "ModelOpt, four bits": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("a16w16", "bf16", {})),
    "channels": (compressed(COMPRESSED, TOKENS), ("a8w8", "fp8e4m3fn", {"scales": "per_token"})),
    "a tensor, and tokens": (compressed({**COMPRESSED, "strategy": "tensor"}, TOKENS), ROWS),
    "weights alone": (compressed({**COMPRESSED, "type": "int"}), ("a16w8", "int8", {})),
    "four bits": ({**FOUR_BITS, "quant_method": "gptq"}, ("a16w4", "int8", {"group": 128, "scale_type": "bf16"})),
    "four bits, AWQ": (
        {**FOUR_BITS, "quant_method": "awq", "zero_point": False},
        ("a16w4", "int8", {"group": 128, "scale_type": "bf16"}),
    ),
    "zero points, AWQ": ({**FOUR_BITS, "quant_method": "awq"}, ("a16w16", "bf16", {})),
    "zero points": ({**FOUR_BITS, "quant_method": "gptq", "sym": False}, ("a16w16", "bf16", {})),
    "rows in another order": ({**FOUR_BITS, "quant_method": "gptq", "desc_act": True}, ("a16w16", "bf16", {})),
    "zero points, compressed": (
        compressed({**COMPRESSED, "type": "int", "symmetric": False}),
        ("a16w16", "bf16", {}),
    ),
    "zero points of activations": (
        compressed({**COMPRESSED, "type": "int"}, {**TOKENS, "type": "int", "symmetric": False}),
        ("a16w16", "bf16", {}),
    ),
    "no whole number": ({**FOUR_BITS, "quant_method": "gptq", "group_size": 128.0}, ("a16w16", "bf16", {})),
    "another": ({"quant_method": "bitsandbytes"}, ("a16w16", "bf16", {})),
    "broken": ({**FP8_BLOCKS, "weight_block_size": ["x", None]}, ("a16w16", "bf16", {})),
}


@pytest.mark.parametrize("kind", STORED)
def test_the_format_is_that_of_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """By quantization_config; attention and the head are plain if the config leaves them out."""
    said, (op, dtype_b, own) = STORED[kind]
    key, entry = KEPT.get(said["quant_method"], ("dynamic", "-:.*self_attn"))
    for kept in ([], [entry]):
        # ModelOpt's older files have all of it one level below.
        where = said.get("quantization", said)
        more = {key: {name: {} for name in kept} if key == "dynamic" else ["lm_head", *kept]}
        merged = {"quantization": {**where, **more}} if "quantization" in said else more
        config = {**LLAMA, "quantization_config": {**said, **merged}}
        made, _, told = shapes(tmp_path, capsys, config, "--tp", 2, "--nsets", "16")
        qkv, out, up, down, head = made
        assert (head.op, head.N) == ("a16w16", 128256 // 2)
        assert {(each.op, each.dtype_b, each.dtype_c) for each in (up, down)} == {(op, dtype_b, "bf16")}
        assert dict(down.own) == own
        assert {each.op for each in (qkv, out)} == ({"a16w16"} if kept else {op})
        assert ("taken as bf16" in told) == (op == "a16w16")


MODELS = {
    # Each with the (N, K) of some of its products, and how many of them have a bias.
    "qwen2": ({**LLAMA, "model_type": "qwen2"}, {(10240, 8192), (8192, 8192)}, 1),
    "phi3": ({**LLAMA, "model_type": "phi3", "vocab_size": 32064}, {(32064, 8192)}, 0),
    "phi": (
        {**LLAMA, "model_type": "phi", "num_key_value_heads": None, "hidden_size": 2560, "num_attention_heads": 32},
        {(7680, 2560), (28672, 2560), (2560, 28672)},
        5,
    ),
    "gemma": ({**LLAMA, "model_type": "gemma2", "head_dim": 256}, {(80 * 256, 8192), (8192, 64 * 256)}, 0),
    "gemma3": (
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
            },
        },
        {(4096, 2560), (2560, 2048), (262208, 2560)},
        0,
    ),
    "mixtral": ({**LLAMA, "model_type": "mixtral", "num_local_experts": 8}, {(8, 8192), (10240, 8192)}, 0),
    "qwen3_moe": (
        {
            **QWEN3,
            "model_type": "qwen3_moe",
            "num_experts": 128,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "mlp_only_layers": [0],
        },
        {(128, 5120), (51200, 5120)},
        0,
    ),
    "qwen2_moe": (
        {
            **LLAMA,
            "model_type": "qwen2_moe",
            "num_experts": 60,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
        {(60, 8192), (11264, 8192), (8192, 5632), (1, 8192)},
        1,
    ),
    "deepseek_v2_lite": (
        {**DEEPSEEK, "model_type": "deepseek_v2", "q_lora_rank": None, "n_shared_experts": 2},
        {(576, 7168), (24576, 7168), (8192, 7168)},
        0,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Products that tell each kind of model from the others, on one GPU."""
    config, some, biases = MODELS[name]
    made, _, _ = shapes(tmp_path, capsys, config, "--nsets", "16,1024")
    assert some <= {(each.N, each.K) for each in made}
    assert sum(each.bias for each in made if each.M == 16) == biases


@pytest.mark.parametrize(
    "config",
    [
        {**DEEPSEEK, "first_k_dense_replace": 61},
        {**DEEPSEEK, "first_k_dense_replace": 99},
        {**MODELS["qwen2_moe"][0], "mlp_only_layers": [*range(80)]},
        {**MODELS["qwen3_moe"][0], "decoder_sparse_step": 100},
    ],
    ids=["as many", "more", "listed", "every hundredth"],
)
def test_nothing_is_routed_where_all_is_dense(
    config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model whose layers are all dense has no router, no experts and no shared ones."""
    config = {key: value for key, value in config.items() if "n_routed" not in key and key != "num_experts"}
    made, text, told = shapes(tmp_path, capsys, config, "--nsets", "16")
    assert "router" not in text
    assert "expert" not in text + told
    wide = 18432 if "first_k_dense_replace" in config else config["intermediate_size"]
    assert (2 * wide, config["hidden_size"]) in {(each.N, each.K) for each in made}


BIASED = {
    # N and K of one GPU of 8 for the products whose K is split and that have a bias.
    "gpt_oss": (GPT_OSS, {(2880, 512)}),
    "llama": ({**LLAMA, "attention_bias": True, "mlp_bias": True}, {(8192, 1024), (8192, 3584)}),
    "starcoder2": ({**LLAMA, "model_type": "starcoder2", "use_bias": True}, {(8192, 1024), (8192, 3584)}),
}


@pytest.mark.parametrize("name", BIASED)
def test_rank_0_alone_adds_a_split_bias(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """On several GPUs products whose K is split are listed with the bias and without; on one GPU with it alone."""
    config, split = BIASED[name]
    made, text, _ = shapes(tmp_path, capsys, config, "--tp", 8, "--nsets", "16")
    biased = {(each.N, each.K) for each in made if each.bias}
    assert split == biased & {(each.N, each.K) for each in made if not each.bias}
    assert text.count("rank 0") == len(split)
    alone, text, _ = shapes(tmp_path, capsys, config, "--nsets", "16")
    sizes = [(each.N, each.K) for each in alone]
    assert len(sizes) == len(set(sizes))
    assert "rank" not in text


def test_more_gpus_than_kv_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several have the same one, as vLLM and SGLang do."""
    made, _, _ = shapes(tmp_path, capsys, LLAMA, "--tp", 16, "--nsets", "1")
    assert (made[0].N, made[0].K) == ((4 + 2) * 128, 8192)


@pytest.mark.parametrize(
    ("config", "argv", "reason"),
    [
        ("{", (), "is not JSON"),
        ("[1]", (), "is not a model's configuration"),
        ("{}", (), "model_type = ''"),
        ({"model_type": "newest"}, (), "model_type = 'newest'"),
        ({"model_type": "llama"}, (), "has no hidden_size"),
        ({**LLAMA, "hidden_size": "8k"}, (), "hidden_size = '8k' is not a whole number"),
        ({**LLAMA, "hidden_size": True}, (), "hidden_size = 'True' is not a whole number"),
        ({**LLAMA, "attention_bias": 1}, (), "attention_bias = '1' is neither true nor false"),
        ({**LLAMA, "torch_dtype": "int4"}, (), "weights are 'int4'"),
        ({**LLAMA, "quantization_config": 3}, (), "quantization_config is not an object"),
        ({**LLAMA, "num_hidden_layers": 10**6}, (), "num_hidden_layers = 1000000 is over 10000"),
        ({**LLAMA, "model_type": "qwen3_moe", "mlp_only_layers": 3}, (), "mlp_only_layers is no list"),
        ({**LLAMA, "num_key_value_heads": 3}, ("--tp", "4"), "num_key_value_heads = 3 does not divide 4 GPUs"),
        (LLAMA, ("--tp", "3"), "num_attention_heads = 64 is not split evenly over 3 GPUs"),
        (LLAMA, ("--tp", "0"), "not a number of GPUs"),
        (LLAMA, ("--nsets", "1,,2"), "not a list of numbers"),
        (LLAMA, ("--nsets", "0"), "not from 1"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: object, argv: tuple[str, ...], reason: str
) -> None:
    """In one line, with the key; nothing is written."""
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    out = () if "-o" in argv else ("-o", tmp_path / "sizes.yaml")
    ran = run_here(capsys, "shapes", "--model_dir", tmp_path, *out, *argv)
    assert reason in ran.refusal
    assert not (tmp_path / "sizes.yaml").exists()


def test_a_list_in_aiters_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name in .csv is AITER's untuned list, of the same sizes; of several formats, or a name without one, it is
    refused."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    lists = []
    for name in ("sizes.yaml", "bf16_untuned_gemm.csv"):
        argv = ["shapes", "--model_dir", tmp_path, "--nsets", "1,512", "-o", tmp_path / name]
        assert run_here(capsys, *argv).status == 0
        lists.append(read_sizes(str(tmp_path / name), GemmDefaults(), "gfx942"))
    assert set(lists[0].problems) == set(lists[1].problems)
    head = (tmp_path / "bf16_untuned_gemm.csv").read_text().splitlines()[0]
    assert head == "M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle"
    two = ["shapes", "--model_dir", tmp_path, "--quantization", "fp8", "-o", tmp_path / "two.csv"]
    assert "a16w16, a8w8" in run_here(capsys, *two).refusal
    assert not (tmp_path / "two.csv").exists()


def test_the_configuration_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list is not written over what it is made of; and a file that cannot be read is told for what it is."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    for argv in (("--model_dir", tmp_path), ("--model_dir", path)):
        link = tmp_path / "sizes.yaml"
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        assert "is the model's configuration" in run_here(capsys, "shapes", *argv, "-o", link, "--overwrite").refusal
        assert "--overwrite replaces it" in run_here(capsys, "shapes", *argv, "-o", link).refusal
    assert json.loads(path.read_text()) == LLAMA
    ran = run_here(capsys, "shapes", "--model_dir", tmp_path / "none", "-o", tmp_path / "s.yaml")
    assert "JSON" not in ran.refusal
