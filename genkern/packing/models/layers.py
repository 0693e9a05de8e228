"""The products that one of several GPUs computes for a model, with the layer that each comes from.

Layers are split as Megatron-LM, vLLM and SGLang split them (input_sizes/README.md): heads and intermediate sizes over
the GPUs, latent down-projections and routers on every one. Dimensions are those of the models' classes in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from genkern.errors import InputError
from genkern.formats.model_config import ModelConfig

# vLLM and SGLang pad the vocabulary to a multiple of this.
VOCABULARY_STEP = 64
_MOST_LAYERS = 10_000
# Runs of layer numbers that a label lists one by one.
_MOST_RUNS = 6
# How checkpoints of these multimodal types name the text model's modules; of the others model.language_model. (as
# transformers 5 names and saves them).
_PREFIXES = dict.fromkeys(("llama4", "kimi_k25"), "language_model.model.")


@dataclass(frozen=True)
class Gemm:
    """One product: N, K, `said` as text with where they come from, and the `modules` that it is of.

    `rows`: with one row a token of any batch; for decoding only (one a sequence); for prefill only. `batch` products of
    this size, where that is not 0, are computed in one call. There are `count` such layers. `parts` are N of those
    that are given the same tensor and make up N as one, behind each other; () where there is one.
    """

    layer: str
    said: str
    n: int
    k: int
    modules: tuple[str, ...]
    bias: bool = False
    rows: Literal["all", "decode", "prefill"] = "all"
    batch: int = 0
    count: int = 1
    parts: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Experts:
    """Products of routed experts, each with its own tokens: `count` of them, `top` for a token, of this `width` on the
    GPU, in `layer_count` layers. `differs`: why they are none that genkern has, or "".

    `names` and `layers`: as of Gemm; of the experts of a layer the names are those of expert 0, or of the tensor that
    holds the weights of all.
    """

    layer: str
    said: str
    count: int
    top: int
    width: int
    hidden: int
    modules: tuple[str, ...]
    differs: str = ""
    layer_count: int = 1
    names: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()


Part = Gemm | Experts


def layers_of(config: ModelConfig, tp: int, vocabulary_step: int = VOCABULARY_STEP) -> list[Part]:
    """What one of `tp` GPUs computes. Raises InputError for a model that is not known, or that is not split so."""
    made = _FAMILIES.get(config.family)
    if made is None:
        raise InputError(
            f"{config.where}: model_type = {config.family!r} is not one of {', '.join(families())}; if its layers are "
            "built as one of these, say --like llama (say), else let `genkern model` run your program: --capture"
        )
    return [*made(config, tp), _head(config, tp, vocabulary_step)]


def families() -> list[str]:
    """Types of models that are known."""
    return sorted(_FAMILIES)


def _split(config: ModelConfig, key: str, tp: int, value: int = 0) -> int:
    """The number's share of one GPU."""
    value = value or config.number(key)
    if value % tp:
        raise InputError(f"{config.where}: {key} = {value} is not split evenly over {tp} GPUs")
    return value // tp


def _count(config: ModelConfig) -> int:
    """How many layers there are."""
    count = config.number("num_hidden_layers")
    if count > _MOST_LAYERS:
        raise InputError(f"{config.where}: num_hidden_layers = {count} is over {_MOST_LAYERS}")
    return count


def span(layers: Sequence[int]) -> str:
    """Layer numbers in short, such as 0-2,5; many runs as the first and the last, with the count."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], layer]
        else:
            runs.append([layer])
    if len(runs) > _MOST_RUNS:
        return f"{layers[0]}-{layers[-1]} ({len(layers)} of them)"
    return ",".join("-".join(map(str, run)) for run in runs)


@dataclass(frozen=True)
class _Place:
    """A module of the layers `layers`, by its name in the checkpoint, with `{}` in place of the layer's index."""

    name: str
    layers: tuple[int, ...]

    @property
    def label(self) -> str:
        """The name with the layers' numbers in place of the index."""
        return self.name.format(span(self.layers))

    def names(self, *modules: str) -> tuple[str, ...]:
        """The full names of modules below this one."""
        return tuple(f"{self.name}.{module}" for module in modules)


def _prefix(config: ModelConfig) -> str:
    """What the names of the text model's modules begin with in the checkpoint."""
    return _PREFIXES.get(config.outer, "model.language_model.") if config.outer else "model."


def _named(config: ModelConfig, part: str, layers: Iterable[int] | None = None) -> _Place:
    """The module `part` of these layers; of every layer by default."""
    indices = tuple(range(_count(config)) if layers is None else layers)
    return _Place(f"{_prefix(config)}layers.{{}}.{part}", indices)


def _attention(config: ModelConfig, tp: int, *, bias: bool, out_bias: bool) -> Iterator[Part]:
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    kv_heads = config.number("num_key_value_heads", heads)
    head_dim = config.optional("head_dim") or config.number("head_dim", hidden // heads)
    mine = _split(config, "num_attention_heads", tp)
    # With more GPUs than such heads, several have the same one.
    if kv_heads >= tp:
        mine_kv, shared = _split(config, "num_key_value_heads", tp, kv_heads), f"kv heads {kv_heads}) x "
    else:
        if tp % kv_heads:
            raise InputError(f"{config.where}: num_key_value_heads = {kv_heads} does not divide {tp} GPUs")
        mine_kv, shared = 1, f"kv heads {kv_heads}, one on a GPU) x "
    place = _named(config, "self_attn")
    said = f"qkv in one: N = (heads {heads} + 2 x {shared}head_dim {head_dim} / tp {tp}, K = hidden {hidden}"
    parts = mine * head_dim, mine_kv * head_dim, mine_kv * head_dim
    modules = ("qkv_proj",) if config.family == "phi3" else ("q_proj", "k_proj", "v_proj")
    yield _gemm(place, said, sum(parts), hidden, ("self_attn", "q_proj"), modules, bias=bias, parts=parts)
    said = f"output: N = hidden {hidden}, K = heads {heads} x head_dim {head_dim} / tp {tp}"
    out = "dense" if config.family == "phi" else "o_proj"
    yield _gemm(place, said, hidden, mine * head_dim, ("self_attn", "o_proj"), (out,), bias=out_bias)


def _gemm(
    place: _Place,
    said: str,
    n: int,
    k: int,
    kinds: tuple[str, ...],
    modules: tuple[str, ...],
    *,
    bias: bool = False,
    rows: Literal["all", "decode", "prefill"] = "all",
    batch: int = 0,
    parts: tuple[int, ...] = (),
) -> Gemm:
    """The product by the weights of `modules` below `place`; one name stands for a tensor that holds all parts."""
    names, layers = place.names(*modules), place.layers
    parts = parts if len(parts) == len(names) else ()
    return Gemm(place.label, said, n, k, kinds, bias, rows, batch, len(layers), parts, names, layers)


def _gated(config: ModelConfig, tp: int, place: _Place, width: int, key: str, bias: bool = False) -> Iterator[Part]:
    hidden, mine = config.number("hidden_size"), _split(config, key, tp, width)
    said = f"gate and up in one: N = 2 x {key} {width} / tp {tp}, K = hidden {hidden}"
    parts = mine, mine
    modules = ("gate_up_proj",) if config.family == "phi3" else ("gate_proj", "up_proj")
    yield _gemm(place, said, 2 * mine, hidden, ("mlp", "gate_proj"), modules, bias=bias, parts=parts)
    said = f"down: N = hidden {hidden}, K = {key} {width} / tp {tp}"
    yield _gemm(place, said, hidden, mine, ("mlp", "down_proj"), ("down_proj",), bias=bias)


def _head(config: ModelConfig, tp: int, step: int) -> Part:
    vocabulary, hidden = config.number("vocab_size"), config.number("hidden_size")
    padded = -(-vocabulary // step) * step
    said = f"N = vocabulary {vocabulary}" + (f", padded to {padded}" if padded != vocabulary else "")
    said += f" / tp {tp}, K = hidden {hidden}; one row a sequence"
    bias = config.family == "phi"
    name = "language_model.lm_head" if _prefix(config) == "language_model.model." else "lm_head"
    n = _split(config, "vocab_size", tp, padded)
    return Gemm("lm_head", said, n, hidden, ("lm_head",), bias, "decode", names=(name,))


def _routed(
    config: ModelConfig, tp: int, place: _Place, experts: int, width: int, modules: tuple[str, ...], bias: bool = False
) -> Iterator[Part]:
    """The router, and the experts; `modules` are the router's name below `place` and those of the experts' weights."""
    hidden = config.number("hidden_size")
    said = f"router: N = experts {experts}, K = hidden {hidden}, on every GPU"
    yield _gemm(place, said, experts, hidden, ("mlp", "gate", "router"), modules[:1], bias=bias)
    mine, top = _split(config, "the experts' width", tp, width), config.number("num_experts_per_tok", 1)
    said = f"{experts} experts, {top} a token: gate and up [{2 * mine}, {hidden}], down [{hidden}, {mine}] each"
    differs = "experts have biases, and another gate than silu" if bias else ""
    label, names, count = f"{place.label}.experts", place.names(*modules[1:]), len(place.layers)
    kinds = "mlp", "experts"
    yield Experts(label, said, experts, top, mine, hidden, kinds, differs, count, names, place.layers)


def _dense(config: ModelConfig, tp: int) -> Iterator[Part]:
    """Llama and those built as it is."""
    bias = config.flag("attention_bias")
    yield from _attention(config, tp, bias=bias or config.family == "qwen2", out_bias=bias)
    width = config.number("intermediate_size")
    yield from _gated(config, tp, _named(config, "mlp"), width, "intermediate_size", config.flag("mlp_bias"))


def _phi(config: ModelConfig, tp: int) -> Iterator[Part]:
    """Phi-1 to Phi-2: every product has a bias, and nothing gates."""
    yield from _attention(config, tp, bias=True, out_bias=True)
    hidden, width = config.number("hidden_size"), config.number("intermediate_size")
    mine, place = _split(config, "intermediate_size", tp), _named(config, "mlp")
    said = f"fc1: N = intermediate_size {width} / tp {tp}, K = hidden {hidden}"
    yield _gemm(place, said, mine, hidden, ("mlp", "fc1"), ("fc1",), bias=True)
    said = f"fc2: N = hidden {hidden}, K = intermediate_size {width} / tp {tp}"
    yield _gemm(place, said, hidden, mine, ("mlp", "fc2"), ("fc2",), bias=True)


def _mixtral(config: ModelConfig, tp: int) -> Iterator[Part]:
    """Mixtral, and gpt-oss, whose products have biases."""
    bias = config.flag("attention_bias", config.family == "gpt_oss")
    yield from _attention(config, tp, bias=bias, out_bias=bias)
    experts, width = config.number("num_local_experts"), config.number("intermediate_size")
    if config.family == "gpt_oss":
        modules = "router", "experts.gate_up_proj", "experts.down_proj"
        yield from _routed(config, tp, _named(config, "mlp"), experts, width, modules, bias=True)
    else:
        modules = "gate", "experts.0.w1", "experts.0.w3", "experts.0.w2"
        yield from _routed(config, tp, _named(config, "block_sparse_moe"), experts, width, modules)


def _qwen_experts(config: ModelConfig, tp: int) -> Iterator[Part]:
    """Qwen2-MoE and Qwen3-MoE: some layers may be dense; the older one has a shared expert in all others."""
    of_2 = config.family == "qwen2_moe"
    bias = config.flag("attention_bias")
    yield from _attention(config, tp, bias=bias or of_2, out_bias=bias)
    every, only = config.number("decoder_sparse_step", 1), config.values.get("mlp_only_layers") or []
    if not isinstance(only, list):
        raise InputError(f"{config.where}: mlp_only_layers is no list")
    layers = range(_count(config))
    dense = [layer for layer in layers if (layer + 1) % every or layer in only]
    if dense:
        width = config.number("intermediate_size")
        yield from _gated(config, tp, _named(config, "mlp", dense), width, "intermediate_size")
    sparse = [layer for layer in layers if layer not in dense]
    if not sparse:
        return
    place = _named(config, "mlp", sparse)
    if of_2:
        width, shared = config.number("shared_expert_intermediate_size"), _named(config, "mlp.shared_expert", sparse)
        yield from _gated(config, tp, shared, width, "shared_expert_intermediate_size")
        hidden = config.number("hidden_size")
        said = f"gate of the shared expert: N = 1, K = hidden {hidden}, on every GPU"
        yield _gemm(place, said, 1, hidden, ("mlp", "shared_expert_gate", "router"), ("shared_expert_gate",))
    width = config.number("moe_intermediate_size")
    yield from _routed(config, tp, place, config.number("num_experts"), width, _ROUTED)


def _deepseek(config: ModelConfig, tp: int) -> Iterator[Part]:
    """DeepSeek-V2 and V3, and Kimi-K2: latent attention, dense layers first, then experts with shared ones."""
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    nope, rope, v = (config.number(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    q_rank, kv_rank = config.optional("q_lora_rank"), config.number("kv_lora_rank")
    mine, place = _split(config, "num_attention_heads", tp), _named(config, "self_attn")
    latent = f"kv_lora_rank {kv_rank} + rope {rope}, K = hidden {hidden}, on every GPU"
    up = f"q up: N = heads {heads} x (nope {nope} + rope {rope}) / tp {tp}, K = "
    if q_rank:
        said = f"q and kv down in one: N = q_lora_rank {q_rank} + {latent}"
        modules, parts = ("q_a_proj", "kv_a_proj_with_mqa"), (q_rank, kv_rank + rope)
        yield _gemm(place, said, sum(parts), hidden, ("self_attn", *modules), modules, parts=parts)
        said = f"{up}q_lora_rank {q_rank}"
        yield _gemm(place, said, mine * (nope + rope), q_rank, ("self_attn", "q_b_proj"), ("q_b_proj",))
    else:
        said, down = f"kv down: N = {latent}", "kv_a_proj_with_mqa"
        yield _gemm(place, said, kv_rank + rope, hidden, ("self_attn", down), (down,))
        said = f"{up}hidden {hidden}"
        yield _gemm(place, said, mine * (nope + rope), hidden, ("self_attn", "q_proj"), ("q_proj",))
    said = f"kv up: N = heads {heads} x (nope {nope} + v {v}) / tp {tp}, K = kv_lora_rank {kv_rank}; decode absorbs it"
    modules = ("kv_b_proj",)
    yield _gemm(place, said, mine * (nope + v), kv_rank, ("self_attn", "kv_b_proj"), modules, rows="prefill")
    for name, n, k, sizes in (
        ("queries to the latent", kv_rank, nope, f"kv_lora_rank {kv_rank}, K = nope {nope}"),
        ("values from the latent", v, kv_rank, f"v {v}, K = kv_lora_rank {kv_rank}"),
    ):
        said = f"kv up absorbed, {name}: heads {heads} / tp {tp} products of N = {sizes}"
        yield _gemm(place, said, n, k, ("self_attn", "absorbed"), modules, rows="decode", batch=mine)
    said = f"output: N = hidden {hidden}, K = heads {heads} x v {v} / tp {tp}"
    yield _gemm(place, said, hidden, mine * v, ("self_attn", "o_proj"), ("o_proj",))
    layers = range(_count(config))
    first = min(config.optional("first_k_dense_replace"), len(layers))
    if first:
        dense = _named(config, "mlp", layers[:first])
        yield from _gated(config, tp, dense, config.number("intermediate_size"), "intermediate_size")
    if first == len(layers):
        return
    sparse, width = layers[first:], config.number("moe_intermediate_size")
    if shared := config.optional("n_shared_experts"):
        place = _named(config, "mlp.shared_experts", sparse)
        yield from _gated(config, tp, place, shared * width, "moe_intermediate_size")
    place = _named(config, "mlp", sparse)
    yield from _routed(config, tp, place, config.number("n_routed_experts"), width, _ROUTED)


# The router and the experts' weights below an mlp, as checkpoints of most models have them.
_ROUTED = "gate", "experts.0.gate_proj", "experts.0.up_proj", "experts.0.down_proj"
_FAMILIES: dict[str, Callable[[ModelConfig, int], Iterator[Part]]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"), _dense),
    "phi": _phi,
    **dict.fromkeys(("mixtral", "gpt_oss"), _mixtral),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), _qwen_experts),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), _deepseek),
}
