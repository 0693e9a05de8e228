"""Model types whose layers genkern lists from config.json alone, without transformers.

Layers are split as Megatron-LM, vLLM and SGLang split them (input_sizes/README.md): heads and intermediate sizes over
the GPUs; latent down-projections and routers are on every GPU. Dimensions are those of the models' classes in
transformers (tests/packing/models/test_families.py compares them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from genkern.errors import InputError
from genkern.files.model_config import MissingNumberError, ModelConfig
from genkern.packing.models.from_transformers import has_transformers, layers_from_transformers
from genkern.packing.models.layers import (
    MOST_LAYERS,
    VOCABULARY_STEP,
    Experts,
    ModelLayers,
    Part,
    Place,
    absorbed,
    gemm_at,
    head_of,
    prefix_of,
)


def layers_of(config: ModelConfig, tp: int, vocabulary_step: int = VOCABULARY_STEP) -> ModelLayers:
    """Return the products of one of `tp` GPUs: from the table, else from transformers' class if it is installed.

    Raises InputError if neither knows the model type, or if a dimension is missing or not split evenly.
    """
    if config.family in _FAMILIES:
        try:
            return ModelLayers(layers_of_family(config, tp, vocabulary_step))
        except MissingNumberError:
            # Configs of multimodal models leave out values that equal the defaults of transformers' class.
            if not (config.outer and has_transformers()):
                raise
    if has_transformers():
        return layers_from_transformers(config, tp, vocabulary_step)
    raise InputError(
        f"{config.where}: model_type = {config.family!r} is not one of {', '.join(families())}: install transformers, "
        "from whose class genkern reads the layers; or, if its layers are like those of one of these, add for example "
        "--like llama; or let `genkern model` run your program: --capture"
    )


def families() -> list[str]:
    """Return the model types of the table."""
    return sorted(_FAMILIES)


def layers_of_family(config: ModelConfig, tp: int, vocabulary_step: int) -> list[Part]:
    """Return the products of one of `tp` GPUs. Raises InputError if a dimension is missing or not split evenly."""
    layers, vocabulary = list(_FAMILIES[config.family](config, tp)), config.number("vocab_size")
    bias = config.family == "phi"
    return [*layers, head_of(config, vocabulary, config.number("hidden_size"), tp, vocabulary_step, bias=bias)]


def _split(config: ModelConfig, key: str, tp: int, value: int = 0) -> int:
    """Return one GPU's share of the number."""
    value = value or config.number(key)
    if value % tp:
        raise InputError(f"{config.where}: {key} = {value} is not split evenly over {tp} GPUs")
    return value // tp


def _experts(config: ModelConfig) -> int:
    """Return the number of routed experts. transformers 5 saves it under another key than authors publish it under."""
    keys = "num_experts", "num_local_experts", "n_routed_experts"
    return config.number(next((key for key in keys if config.values.get(key) is not None), keys[0]))


def _count(config: ModelConfig) -> int:
    count = config.number("num_hidden_layers")
    if count > MOST_LAYERS:
        raise InputError(f"{config.where}: num_hidden_layers = {count} is over {MOST_LAYERS}")
    return count


def _at(config: ModelConfig, module: str, layers: Iterable[int] | None = None) -> Place:
    """Return the place of `module` in these layers; in every layer by default."""
    indices = tuple(range(_count(config)) if layers is None else layers)
    return Place(f"{prefix_of(config)}layers.{{}}.{module}", indices)


@dataclass(frozen=True)
class _Dense:
    """How a dense model type differs from Llama. A bias is a key of config.json, or a fixed value."""

    qkv_bias: str | bool = "attention_bias"
    out_bias: str | bool = "attention_bias"
    mlp_bias: str | bool = False
    # Keys that are true if config.json leaves them out.
    true_by_default: tuple[str, ...] = ()
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    out: str = "o_proj"
    # A single name means gate and up in one tensor; a model without a gate has only the up-projection.
    up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    gated: bool = True

    def bias(self, config: ModelConfig, said: str | bool) -> bool:
        """Return True if the products have a bias."""
        return config.flag(said, said in self.true_by_default) if isinstance(said, str) else said


_LLAMA = _Dense(mlp_bias="mlp_bias")
_PLAIN = _Dense()
_UNBIASED = _Dense(qkv_bias=False, out_bias=False)
_ALL_BIASED = _Dense("use_bias", "use_bias", "use_bias")
_GLM = _Dense(out_bias=False, true_by_default=("attention_bias",), up=("gate_up_proj",))
_DENSE = {
    **dict.fromkeys(("llama", "granite", "smollm3"), _LLAMA),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "qwen3", "qwen3_vl_text"), _PLAIN),
    **dict.fromkeys(("olmo", "olmo2", "olmo3", "cohere", "cohere2", "hunyuan_v1_dense"), _PLAIN),
    **dict.fromkeys(("mistral", "ministral", "ministral3", "exaone4"), _UNBIASED),
    **dict.fromkeys(("qwen2", "qwen2_vl_text", "qwen2_5_vl_text"), _Dense(qkv_bias=True, out_bias=False)),
    **dict.fromkeys(("glm", "glm4"), _GLM),
    "phi3": _Dense(qkv_bias=False, out_bias=False, qkv=("qkv_proj",), up=("gate_up_proj",)),
    "phi": _Dense(True, True, True, out="dense", up=("fc1",), down="fc2", gated=False),
    "seed_oss": _Dense("attention_bias", "attention_out_bias", "mlp_bias", ("attention_bias",)),
    "ernie4_5": _ALL_BIASED,
    "starcoder2": _Dense("use_bias", "use_bias", "use_bias", ("use_bias",), up=("c_fc",), down="c_proj", gated=False),
    **dict.fromkeys(("nemotron", "arcee"), _Dense(mlp_bias="mlp_bias", up=("up_proj",), gated=False)),
}


def _attention(config: ModelConfig, tp: int, kind: _Dense) -> Iterator[Part]:
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    kv_heads = config.number("num_key_value_heads", heads)
    head_dim = config.optional("head_dim") or config.number("head_dim", hidden // heads)
    mine = _split(config, "num_attention_heads", tp)
    # With more GPUs than kv heads, several GPUs hold the same head.
    if kv_heads >= tp:
        mine_kv, shared = _split(config, "num_key_value_heads", tp, kv_heads), f"kv heads {kv_heads}) x "
    else:
        if tp % kv_heads:
            raise InputError(f"{config.where}: num_key_value_heads = {kv_heads} does not divide {tp} GPUs")
        mine_kv, shared = 1, f"kv heads {kv_heads}, one on a GPU) x "
    place = _at(config, "self_attn")
    said = f"qkv in one: N = (heads {heads} + 2 x {shared}head_dim {head_dim} / tp {tp}, K = hidden {hidden}"
    parts = mine * head_dim, mine_kv * head_dim, mine_kv * head_dim
    bias = kind.bias(config, kind.qkv_bias)
    yield gemm_at(place, said, sum(parts), hidden, kind.qkv, bias=bias, parts=parts)
    said = f"output: N = hidden {hidden}, K = heads {heads} x head_dim {head_dim} / tp {tp}"
    bias = kind.bias(config, kind.out_bias)
    yield gemm_at(place, said, hidden, mine * head_dim, (kind.out,), bias=bias, row_parallel=True)


def _mlp(
    config: ModelConfig, tp: int, place: Place, width: int, key: str, kind: _Dense = _PLAIN, bias: bool = False
) -> Iterator[Part]:
    hidden, mine = config.number("hidden_size"), _split(config, key, tp, width)
    parts = (mine, mine) if kind.gated else ()
    said = f"gate and up in one: N = 2 x {key}" if kind.gated else f"up: N = {key}"
    said += f" {width} / tp {tp}, K = hidden {hidden}"
    yield gemm_at(place, said, sum(parts) or mine, hidden, kind.up, bias=bias, parts=parts)
    said = f"down: N = hidden {hidden}, K = {key} {width} / tp {tp}"
    yield gemm_at(place, said, hidden, mine, (kind.down,), bias=bias, row_parallel=True)


# Names of the router and of the experts' weights below an mlp: in most checkpoints, in Mixtral's, and in gpt-oss's.
_ROUTED = "gate", "experts.0.gate_proj", "experts.0.up_proj", "experts.0.down_proj"
_BLOCK_SPARSE = "gate", "experts.0.w1", "experts.0.w3", "experts.0.w2"
_STACKED = "experts.gate_up_proj", "experts.down_proj"


def _routed(
    config: ModelConfig, tp: int, place: Place, experts: int, width: int, modules: tuple[str, ...], bias: bool = False
) -> Iterator[Part]:
    """Yield the router and the experts; `modules` are the router below `place`, and the experts' weights."""
    hidden = config.number("hidden_size")
    said = f"router: N = experts {experts}, K = hidden {hidden}, on every GPU"
    yield gemm_at(place, said, experts, hidden, modules[:1], kinds=("router",), bias=bias)
    mine, top = _split(config, "the experts' width", tp, width), config.number("num_experts_per_tok", 1)
    said = f"{experts} experts, {top} a token: gate and up [{2 * mine}, {hidden}], down [{hidden}, {mine}] each"
    differs = "experts have biases, and another gate than silu" if bias else ""
    label, names, count = f"{place.label}.experts", place.names(*modules[1:]), len(place.layers)
    yield Experts(label, said, experts, top, mine, hidden, ("mlp", "experts"), differs, count, names, place.layers)


def _dense(config: ModelConfig, tp: int) -> Iterator[Part]:
    kind = _DENSE[config.family]
    yield from _attention(config, tp, kind)
    width, bias = config.number("intermediate_size"), kind.bias(config, kind.mlp_bias)
    yield from _mlp(config, tp, _at(config, "mlp"), width, "intermediate_size", kind, bias)


def _mixtral(config: ModelConfig, tp: int) -> Iterator[Part]:
    """Mixtral and MiniMax-M2: experts in every layer."""
    yield from _attention(config, tp, _UNBIASED)
    experts, width = _experts(config), config.number("intermediate_size")
    yield from _routed(config, tp, _at(config, "block_sparse_moe"), experts, width, _BLOCK_SPARSE)


def _gpt_oss(config: ModelConfig, tp: int) -> Iterator[Part]:
    yield from _attention(config, tp, _Dense(true_by_default=("attention_bias",)))
    experts, width = _experts(config), config.number("intermediate_size")
    yield from _routed(config, tp, _at(config, "mlp"), experts, width, ("router", *_STACKED), bias=True)


def _qwen_experts(config: ModelConfig, tp: int) -> Iterator[Part]:
    """Qwen2-MoE and Qwen3-MoE: some layers may be dense; Qwen2-MoE has a shared expert in the other layers."""
    of_2 = config.family == "qwen2_moe"
    yield from _attention(config, tp, _Dense("qkv_bias", False, true_by_default=("qkv_bias",)) if of_2 else _PLAIN)
    every, only = config.number("decoder_sparse_step", 1), config.values.get("mlp_only_layers") or []
    if not isinstance(only, list):
        raise InputError(f"{config.where}: mlp_only_layers is no list")
    layers = range(_count(config))
    dense = [layer for layer in layers if (layer + 1) % every or layer in only]
    if dense:
        width = config.number("intermediate_size")
        yield from _mlp(config, tp, _at(config, "mlp", dense), width, "intermediate_size")
    sparse = [layer for layer in layers if layer not in dense]
    if not sparse:
        return
    place = _at(config, "mlp", sparse)
    if of_2:
        width, shared = config.number("shared_expert_intermediate_size"), _at(config, "mlp.shared_expert", sparse)
        yield from _mlp(config, tp, shared, width, "shared_expert_intermediate_size")
        hidden = config.number("hidden_size")
        said = f"gate of the shared expert: N = 1, K = hidden {hidden}, on every GPU"
        yield gemm_at(place, said, 1, hidden, ("shared_expert_gate",), kinds=("router",))
    width = config.number("moe_intermediate_size")
    modules = ("gate", *_STACKED) if config.family == "qwen3_vl_moe_text" else _ROUTED
    yield from _routed(config, tp, place, _experts(config), width, modules)


def _latent_attention(config: ModelConfig, tp: int) -> Iterator[Part]:
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    nope, rope, v = (config.number(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    q_rank, kv_rank = config.optional("q_lora_rank"), config.number("kv_lora_rank")
    mine, place = _split(config, "num_attention_heads", tp), _at(config, "self_attn")
    bias = config.flag("attention_bias")
    latent = f"kv_lora_rank {kv_rank} + rope {rope}, K = hidden {hidden}, on every GPU"
    up = f"q up: N = heads {heads} x (nope {nope} + rope {rope}) / tp {tp}, K = "
    if q_rank:
        said, parts = f"q and kv down in one: N = q_lora_rank {q_rank} + {latent}", (q_rank, kv_rank + rope)
        modules = "q_a_proj", "kv_a_proj_with_mqa"
        yield gemm_at(place, said, sum(parts), hidden, modules, bias=bias, parts=parts)
        yield gemm_at(place, f"{up}q_lora_rank {q_rank}", mine * (nope + rope), q_rank, ("q_b_proj",))
    else:
        yield gemm_at(place, f"kv down: N = {latent}", kv_rank + rope, hidden, ("kv_a_proj_with_mqa",), bias=bias)
        yield gemm_at(place, f"{up}hidden {hidden}", mine * (nope + rope), hidden, ("q_proj",))
    yield from absorbed(place, tp, heads, nope, v, kv_rank)
    said = f"output: N = hidden {hidden}, K = heads {heads} x v {v} / tp {tp}"
    yield gemm_at(place, said, hidden, mine * v, ("o_proj",), bias=bias, row_parallel=True)


def _experts_after_dense(config: ModelConfig, tp: int) -> Iterator[Part]:
    """Yield the MLPs of DeepSeek-V2 and later, and of GLM-4.5: dense layers first, then experts with shared ones."""
    layers, bias = range(_count(config)), config.family == "deepseek_v2" and config.flag("mlp_bias")
    first = min(config.optional("first_k_dense_replace"), len(layers))
    if first:
        dense = _at(config, "mlp", layers[:first])
        yield from _mlp(config, tp, dense, config.number("intermediate_size"), "intermediate_size", bias=bias)
    if first == len(layers):
        return
    sparse, width = layers[first:], config.number("moe_intermediate_size")
    if shared := config.optional("n_shared_experts"):
        place = _at(config, "mlp.shared_experts", sparse)
        yield from _mlp(config, tp, place, shared * width, "moe_intermediate_size", bias=bias)
    yield from _routed(config, tp, _at(config, "mlp", sparse), _experts(config), width, _ROUTED)


def _deepseek(config: ModelConfig, tp: int) -> Iterator[Part]:
    yield from _latent_attention(config, tp)
    yield from _experts_after_dense(config, tp)


def _glm_experts(config: ModelConfig, tp: int) -> Iterator[Part]:
    yield from _attention(config, tp, _Dense(out_bias=False))
    yield from _experts_after_dense(config, tp)


_FAMILIES: dict[str, Callable[[ModelConfig, int], Iterator[Part]]] = {
    **dict.fromkeys(_DENSE, _dense),
    **dict.fromkeys(("mixtral", "minimax_m2"), _mixtral),
    "gpt_oss": _gpt_oss,
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text"), _qwen_experts),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), _deepseek),
    "glm4_moe": _glm_experts,
}
