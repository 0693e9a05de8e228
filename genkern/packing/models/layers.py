"""The record of one product of a model, and of one layer of routed experts, with the layers that compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from genkern.errors import InputError
from genkern.files.model_config import ModelConfig

# vLLM and SGLang pad the vocabulary to a multiple of this.
VOCABULARY_STEP = 64
MOST_LAYERS = 10_000
# Most runs of layer numbers that a label lists.
_MOST_RUNS = 6
_PREFIX = "model.language_model."
# Prefixes of the text model's modules in published checkpoints of these multimodal types; other types have _PREFIX.
_PREFIXES = dict.fromkeys(
    (
        *("llama4", "kimi_k25", "gemma3", "mistral3", "internvl", "internvl_chat", "paligemma", "aya_vision", "aria"),
        *("llava", "llava_next", "llava_next_video", "llava_onevision", "vipllava", "video_llava"),
    ),
    "language_model.model.",
)

Rows = Literal["all", "decode", "prefill"]


@dataclass(frozen=True)
class Gemm:
    """One matrix product of a model on one GPU.

    layer: the module, with the range of the layers that have it.
    said: where N and K come from, as text.
    n: N, columns of the output.
    k: K.
    modules: names by which quantization_config may exclude the product.
    bias: True if a bias is added.
    rows: "all": one row per token of any batch; "decode": only in decoding batches (one row per sequence); "prefill":
        only in prefill.
    batch: number of products of this size that one call computes; 0 for a plain product.
    count: how often the model computes it.
    parts: N of each of the merged weights, in their order; () for a weight that is not merged.
    names: modules of the checkpoint that hold the weights, in the order of `parts`, with `{}` in place of the layer's
        index. A module outside the layers (lm_head) has no `{}`.
    layers: indices of the layers; () for a module outside the layers.
    row_parallel: True if tensor parallelism splits K over the GPUs, so that only rank 0 adds the bias.
    """

    layer: str
    said: str
    n: int
    k: int
    modules: tuple[str, ...]
    bias: bool = False
    rows: Rows = "all"
    batch: int = 0
    count: int = 1
    parts: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    row_parallel: bool = False


@dataclass(frozen=True)
class Experts:
    """Both products of one layer's routed experts on one GPU.

    layer, said, modules, layers: as in Gemm.
    count: number of experts.
    top: experts per token.
    width: an expert's intermediate size on the GPU.
    hidden: length of a token's vector.
    differs: why genkern has no kernels for these experts; "" if it has.
    layer_count: number of layers that have these experts.
    names: as in Gemm, for expert 0 if the checkpoint has one module per expert.
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


@dataclass(frozen=True)
class ModelLayers:
    """The products of a model in its order, and `notes` on the list for the user."""

    parts: list[Part]
    notes: list[str] = field(default_factory=list)


def span(layers: Sequence[int]) -> str:
    """Return layer numbers as short text, such as 0-2,5; many runs as the first and the last number with the count."""
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
class Place:
    """A module of the layers `layers`, by its name in the checkpoint, with `{}` in place of the layer's index."""

    name: str
    layers: tuple[int, ...]

    @property
    def label(self) -> str:
        """The name with the layers' numbers in place of the index."""
        return self.name.replace("{}", span(self.layers), 1)

    def names(self, *modules: str) -> tuple[str, ...]:
        """Return the full names of modules below this one."""
        return tuple(f"{self.name}.{module}" for module in modules)


def gemm_at(
    place: Place,
    said: str,
    n: int,
    k: int,
    modules: tuple[str, ...],
    *,
    kinds: tuple[str, ...] = (),
    bias: bool = False,
    rows: Rows = "all",
    batch: int = 0,
    parts: tuple[int, ...] = (),
    row_parallel: bool = False,
) -> Gemm:
    """Return the product by the weights of `modules` below `place`; a single name may stand for a merged weight."""
    names, layers = place.names(*modules), place.layers
    parts = parts if len(parts) == len(names) else ()
    own = tuple(word for word in place.name.partition("{}.")[2].split(".") if word)
    known_as = (*own, *(module.rpartition(".")[2] for module in modules), *kinds)
    count = max(1, len(layers))
    return Gemm(place.label, said, n, k, known_as, bias, rows, batch, count, parts, names, layers, row_parallel)


def prefix_of(config: ModelConfig) -> str:
    """Return the prefix of the text model's modules in the checkpoint, with a dot at its end."""
    return _PREFIXES.get(config.outer, _PREFIX) if config.outer else "model."


def head_of(config: ModelConfig, vocabulary: int, hidden: int, tp: int, step: int, *, bias: bool = False) -> Gemm:
    """Return the language-model head of one of `tp` GPUs, its vocabulary padded to a multiple of `step`.

    Raises InputError if the vocabulary is not split evenly.
    """
    padded = -(-vocabulary // step) * step
    said = f"N = vocabulary {vocabulary}" + (f", padded to {padded}" if padded != vocabulary else "")
    said += f" / tp {tp}, K = hidden {hidden}; one row a sequence"
    if padded % tp:
        raise InputError(f"{config.where}: vocab_size = {padded} is not split evenly over {tp} GPUs")
    within = prefix_of(config).removesuffix("model.") if config.outer in _PREFIXES else ""
    return Gemm("lm_head", said, padded // tp, hidden, ("lm_head",), bias, "decode", names=(f"{within}lm_head",))


def absorbed(
    place: Place, tp: int, heads: int, nope: int, v: int, kv_rank: int, modules: tuple[str, ...] = ("kv_b_proj",)
) -> tuple[Gemm, ...]:
    """Return the products of one of `tp` GPUs by latent attention's up-projection of keys and values.

    Prefill multiplies by it; decoding multiplies head by head by its two halves, which engines call absorbed.
    """
    said = f"kv up: N = heads {heads} x (nope {nope} + v {v}) / tp {tp}, K = kv_lora_rank {kv_rank}; decode absorbs it"
    mine = heads // tp
    queries = f"kv up absorbed, queries to the latent: heads {heads} / tp {tp} products of N = kv_lora_rank {kv_rank}"
    values = f"kv up absorbed, values from the latent: heads {heads} / tp {tp} products of N = v {v}"
    kinds = ("absorbed",)
    return (
        gemm_at(place, said, mine * (nope + v), kv_rank, modules, rows="prefill"),
        gemm_at(place, f"{queries}, K = nope {nope}", kv_rank, nope, modules, kinds=kinds, rows="decode", batch=mine),
        gemm_at(
            place, f"{values}, K = kv_lora_rank {kv_rank}", v, kv_rank, modules, kinds=kinds, rows="decode", batch=mine
        ),
    )
