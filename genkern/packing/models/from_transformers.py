"""The products of any model that transformers has a class for, read from the class itself on the meta device.

transformers builds the model from its config.json without memory for weights. Code of a checkpoint's authors
(trust_remote_code) is not executed, and nothing is downloaded. Layers that engines merge (q, k and v; gate and up) are
merged by their names if they have the same input. Tensor parallelism follows the modules' names, as
input_sizes/README.md describes.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from genkern.errors import InputError
from genkern.files.model_config import ModelConfig
from genkern.packing.models.layers import (
    MOST_LAYERS,
    Experts,
    Gemm,
    ModelLayers,
    Part,
    Place,
    absorbed,
    gemm_at,
    head_of,
    prefix_of,
)

# Weights that engines merge into one product, in the order in which the merged weight holds them.
_MERGED = (
    ("q_proj", "k_proj", "v_proj"),
    ("query_proj", "key_proj", "value_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("Wq", "Wk", "Wv"),
    ("q", "k", "v"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("wi_0", "wi_1"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
_KEYS = ("k_proj", "key_proj", "key", "k_lin", "Wk", "k")
_VALUES = ("v_proj", "value_proj", "value", "v_lin", "Wv", "v")
_QUERIES = ("q_proj", "query_proj", "query", "q_lin", "Wq", "q")
_PACKED = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv")
# In cross-attention, keys and values have another input than queries.
_CROSS = ("encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "multi_head_attention")
_ROUTERS = ("gate", "router")
_ROW_PARALLEL = {
    *("o_proj", "down_proj", "out_proj", "c_proj", "w2", "wo", "Wo", "o", "fc2", "fc_out", "fc_2", "lin2", "out_lin"),
    *("dense_4h_to_h", "output_linear", "linear_out", "linear_fc2", "attention_out", "w_out", "proj_out", "proj_down"),
    *("x_proj", "linear_right", "o_b_proj"),
}
# `dense` is the output of attention, or of an MLP whose parent has one of these names.
_DENSE_OUTPUTS = {"attention", "self_attention", "self_attn", "attn", "output"}
_COLUMN_PARALLEL = {
    *(name for group in _MERGED for name in group if not name.endswith("a_proj")),
    *_PACKED,
    *("up_proj", "gate_up_proj", "q_b_proj", "kv_b_proj", "fc1", "fc_1", "fc_in", "c_fc", "lin1", "wi", "Wi", "w_in"),
    *("dense_h_to_4h", "intermediate", "in_proj", "in_proj_qkvz", "in_proj_ba", "dt_proj", "linear_fc1", "linear_left"),
    # Granite's shared MLP; linear attention's gates, one number or vector per head.
    *("input_linear", "b_proj", "a_proj", "g_proj", "f_b_proj", "g_b_proj"),
}
_REPLICATED = {
    *("gate", "router", "classifier", "shared_expert_gate", "q_a_proj", "kv_a_proj_with_mqa", "wq_b", "wk"),
    *("weights_proj", "per_layer_input_gate", "per_layer_projection", "modality_router", "prediction_coefs"),
    *("correction_coefs", "f_a_proj", "g_a_proj", "per_layer_model_projection"),
    # Modules whose weights are all on every GPU: sparse attention's indexer and compressor, Gemma 3n's streams.
    *("indexer", "compressor", "altup_projections", "altup_unembed_projections"),
}
_TOPS = (
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k", "top_k_experts"),
    *("num_selected_experts", "moe_top_k", "top_k"),
)
# Vision and audio parts of multimodal models without a separate text config.
_OTHER_SENSES = re.compile(r"(?:^|\.)(?:vision|visual|image|audio)")
# Keys that select how transformers runs a model, not what it is. They could make it download code or weights.
_LEFT_OUT = ("auto_map", "quantization_config", "attn_implementation", "experts_implementation", "dtype", "torch_dtype")
_LEAST_WIDTH = 64
# Most layers, and most experts.
_MOST = MOST_LAYERS, 100_000
_COUNT = re.compile(r"(layers?|blocks?|depth|experts)$|^(n|num)_(layer|block|expert)", re.IGNORECASE)


def has_transformers() -> bool:
    """Return True if transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def layers_from_transformers(config: ModelConfig, tp: int, vocabulary_step: int) -> ModelLayers:
    """Return the products of one of `tp` GPUs, and notes that name the class and what is assumed.

    Raises InputError, in one line, if transformers does not know the model type, or cannot build the model from the
    config, or if a layer is not split evenly over the GPUs.
    """
    with _quietly():
        built = _build(config)
    reader = _Reader(config, built, tp, vocabulary_step)
    parts = list(reader.parts())
    if not parts:
        raise InputError(f"{config.where}: {built.class_name} of transformers has no linear layers")
    return ModelLayers(parts, [built.note, *reader.notes()])


@dataclass(frozen=True)
class _Built:
    """A model on the meta device, with the config of the part that is listed.

    model, config: the model and the config.
    note: a line that names the class.
    own_prefix: at the start of a module's name, it is replaced by `prefix`.
    prefix: prefix of the modules in the checkpoint.
    within: only modules whose names start with this are listed.
    adds_head: True if the model has a head outside this class.
    """

    model: Any
    config: Any
    note: str
    own_prefix: str = ""
    prefix: str = ""
    within: str = ""
    adds_head: bool = False

    @property
    def class_name(self) -> str:
        """The class in transformers."""
        return type(self.model).__name__


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep transformers from downloading and from writing to the terminal."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _build(config: ModelConfig) -> _Built:
    """Build the model. Raise InputError if the config is not one that transformers builds a model from."""
    try:
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
    except Exception as error:
        raise InputError(f"{config.where}: transformers cannot be imported: {_line(error)}") from None
    said, version = _known(config, transformers), transformers.__version__
    _require_few(config, said)
    try:
        whole = transformers.CONFIG_MAPPING[said["model_type"]].from_dict(_cleaned(said))
        text = _text_config(whole)
        built = text if _auto_classes(text, transformers) else whole
        with torch.device("meta"):
            model = _first_that_builds(_auto_classes(built, transformers), built)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{config.where}: transformers {version} cannot build a {said['model_type']} from it: {_line(error)}"
        ) from None
    note = f"layers are read from {type(model).__name__} of transformers {version}, not from genkern's table"
    if text is whole and not (config.outer and said is config.values):
        return _Built(model, text, note)
    note += f"; vision and audio parts of {config.outer or said['model_type']} are not listed"
    if built is not text:
        return _Built(model, text, note, within=_text_model(model, text))
    lists = (name for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList))
    own_prefix = "".join(next(lists, "").rpartition(".")[:2])
    adds_head = model.get_output_embeddings() is None
    return _Built(model, text, note, own_prefix=own_prefix, prefix=prefix_of(config), adds_head=adds_head)


def _text_model(model: Any, text: Any) -> str:
    """Return the name of the module that is built from the text config, with a dot; "" if there is none."""
    named = ((name, module) for name, module in model.named_modules() if name)
    found = (name for name, module in named if type(getattr(module, "config", None)) is type(text))
    return next((f"{name}." for name in found), "")


def _line(error: BaseException) -> str:
    """Return an exception's type and text on one short line."""
    text = "".join(letter for letter in " ".join(str(error).split()) if letter.isprintable())
    return f"{type(error).__name__}: {text}"[:300]


def _known(config: ModelConfig, transformers: Any) -> Mapping[str, Any]:
    """Return the whole config or the text model's, whichever transformers knows. Raises InputError if neither."""
    candidates: tuple[Mapping[str, Any], ...] = (config.document or config.values, config.values)
    for said in candidates:
        if said.get("model_type") in transformers.CONFIG_MAPPING:
            return said
    remote = " (its class is code of the checkpoint's authors, which is not executed)"
    raise InputError(
        f"{config.where}: model_type = {config.outer or config.family!r} is known neither to genkern nor to "
        f"transformers {transformers.__version__}{remote if any('auto_map' in said for said in candidates) else ''}; "
        "if its layers are like Llama's, add --like llama (docs/models.md has other types), or let "
        "`genkern model` run your program: --capture"
    )


def _require_few(config: ModelConfig, said: Any, key: str = "") -> None:
    """Raise InputError if a count of layers or experts is so large that modules would fill the memory."""
    if isinstance(said, Mapping):
        for name, value in said.items():
            _require_few(config, value, str(name))
    elif isinstance(said, int) and _COUNT.search(key) and said > (most := _MOST[key.endswith("experts")]):
        raise InputError(f"{config.where}: {key} = {said} is over {most}")


def _cleaned(said: Any) -> Any:
    """Return the config without the keys that select how the model runs."""
    if not isinstance(said, Mapping):
        return said
    return {key: _cleaned(value) for key, value in said.items() if key not in _LEFT_OUT and not key.startswith("_")}


def _text_config(whole: Any) -> Any:
    """Return the config of the part that generates text; the whole config for a text model."""
    try:
        text = whole.get_text_config()
    except ValueError:
        # Several parts read or write text: take what generates it.
        text = whole.get_text_config(decoder=True)
    return text


def _auto_classes(config: Any, transformers: Any) -> list[Any]:
    """Return the Auto classes that have a model for the config, classes with a head first."""
    names = ["AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForImageTextToText", "AutoModelForMaskedLM"]
    if getattr(config, "is_encoder_decoder", False):
        names.insert(0, names.pop(1))
    names += ["AutoModelForMultimodalLM", "AutoModelForSpeechSeq2Seq", "AutoModelForTextToWaveform", "AutoModel"]
    classes = [found for name in names if (found := getattr(transformers, name, None)) is not None]
    return [found for found in classes if type(config) in found._model_mapping]


def _first_that_builds(classes: list[Any], config: Any) -> Any:
    """Return the model of the first of the classes that builds one; raises what the first raised if none does."""
    first: Exception | None = None
    for each in classes:
        try:
            return each.from_config(config, attn_implementation="eager")
        except Exception as error:
            first = first or error
    raise first or ValueError("no Auto class has a model for it")


@dataclass(frozen=True)
class _Weight:
    """One weight below a module.

    name: its name below the module.
    n, k: its size.
    bias: True if a bias is added.
    is_router: True for a router.
    groups: number of blocks of a block-diagonal weight; 0 for a full one.
    """

    name: str
    n: int
    k: int
    bias: bool
    is_router: bool = False
    groups: int = 0


class _Reader:
    """Reads the products of one GPU from a model on the meta device, and gathers notes."""

    def __init__(self, config: ModelConfig, built: _Built, tp: int, vocabulary_step: int) -> None:
        self._config, self._built, self._tp, self._step = config, built, tp, vocabulary_step
        self._assumed: dict[str, None] = {}
        self._whole: dict[str, None] = {}
        self._absent: dict[str, None] = {}
        self._has_top, self._left_out = True, False
        self._sources, self._renamed, self._unread = _checkpoint_names(built.config)

    def notes(self) -> list[str]:
        """Return one line for each kind of assumption."""
        found = [f"{name}: not in the list: its weights are stored in an unknown layout" for name in self._absent]
        if self._unread:
            found.append(
                f"how checkpoints name their weights could not be read from transformers ({self._unread}): rules of "
                "quantised checkpoints are compared with transformers' own names"
            )
        if self._left_out:
            found.append("vision and audio parts are not listed")
        if not self._has_top:
            found.append("experts per token are not in the config: taken as 1")
        if self._tp > 1:
            rule = "tensor parallelism by modules' names: o_proj, down_proj, out_proj and the like split K"
            rule += "; routers and latent down-projections are on every GPU; other layers split N"
            found.append(rule)
            if self._assumed:
                found.append(f"assumed to split N: {', '.join(self._assumed)}")
            if self._whole:
                found.append(f"not split evenly over {self._tp} GPUs, so on every GPU: {', '.join(self._whole)}")
        return found

    def parts(self) -> Iterator[Part]:
        """Yield the products in the model's order, the head last. Raises InputError."""
        model = self._built.model
        head = model.get_output_embeddings()
        parents: dict[str, dict[int, list[_Weight]]] = {}
        experts: dict[str, dict[int, Any]] = {}
        modules: dict[tuple[str, int], Any] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            if module is head or not name or not name.startswith(self._built.within):
                continue
            if _OTHER_SENSES.search(re.split(r"[0-9]", name)[0]):
                self._left_out = True
                continue
            if "experts" in name and (found := re.fullmatch(r"(.*\bexperts)\.([0-9]+)\.(.+)", name)):
                template, index = _template(found[1])
                one = experts.setdefault(template, {}).setdefault(index, {})
                if isinstance(one, dict) and (weight := _weight_of(found[3], module)):
                    one.setdefault(int(found[2]), []).append(weight)
                continue
            if type(module).__name__.endswith("Experts") and any(p.ndim == 3 for p in module.parameters(recurse=False)):
                template, index = _template(name)
                experts.setdefault(template, {})[index] = module
                parents.setdefault(template, {})
                continue
            parent, _, own = name.rpartition(".")
            weight = _weight_of(own, module)
            if weight is None:
                for stored in _stored_otherwise(module):
                    self._absent[f"{_template(name)[0]}.{stored}".replace("{}.", "")] = None
                continue
            template, index = _template(parent)
            parents.setdefault(template, {}).setdefault(index, []).append(weight)
            modules.setdefault((template, index), model.get_submodule(parent) if parent else model)
        for template in {**parents, **experts}:
            for weights, layers in _alike(parents.get(template, {})):
                place = self._place(template, tuple(index for index in layers if index >= 0))
                yield from self._products(place, weights, modules[template, layers[0]])
            yield from self._experts(template, experts.get(template, {}))
        yield from self._head(head)

    def _place(self, template: str, layers: tuple[int, ...]) -> Place:
        built = self._built
        name = template
        if built.prefix and template.startswith(built.own_prefix):
            name = built.prefix + template.removeprefix(built.own_prefix)
        for ours, theirs in self._renamed:
            name = f"{name}.".replace(ours, theirs).removesuffix(".")
        return Place(name, layers)

    def _products(self, place: Place, weights: list[_Weight], module: Any) -> Iterator[Gemm]:
        parent = place.name.rpartition(".")[2]
        left = {weight.name: weight for weight in weights}
        for weight in weights:
            if weight.name not in left:
                continue
            together = [weight]
            for group in _MERGED:
                names = group[1:] if parent in _CROSS and len(group) == 3 else group
                if weight.name in names:
                    same = [left[name] for name in names if name in left and left[name].k == weight.k]
                    together = same if len(same) > 1 else together
            for each in together:
                del left[each.name]
            yield from self._product(place, together, module)

    def _product(self, place: Place, weights: list[_Weight], module: Any) -> Iterator[Gemm]:
        tp, first = self._tp, weights[0]
        names = tuple(weight.name for weight in weights)
        joined = ", ".join(names) + (" in one" if len(names) > 1 else "")
        bias = any(weight.bias for weight in weights)
        if first.name == "kv_b_proj" and (sizes := _latent(module, first)):
            if sizes[0] % tp:
                raise self._uneven(place, first.name, f"{sizes[0]} heads are")
            yield from (replace(each, bias=each.bias or bias) for each in absorbed(place, tp, *sizes))
            return
        if first.groups > 1:
            # A block-diagonal weight: one product per block, in one call.
            mine, blocks = first.groups // (tp if first.groups % tp == 0 else 1), first.n // first.groups
            said = f"{joined}: {first.groups} blocks of N = {blocks}, {mine} on a GPU, K = {first.k}"
            yield gemm_at(place, said, blocks, first.k, names, bias=bias, batch=mine)
            return
        path = place.name.split(".")
        is_router = first.is_router or path[-1] in _ROUTERS
        kinds = ("router",) if is_router or first.name == "shared_expert_gate" else ()
        parts, k, row_parallel = [weight.n for weight in weights], first.k, False
        columns, length = " + ".join(map(str, parts)), str(k)
        if _is_row_parallel(path, first.name):
            if k % tp:
                raise self._uneven(place, first.name, f"K = {k} is")
            k, row_parallel, length = k // tp, True, f"{k} / tp {tp}"
        elif is_router or first.name in _REPLICATED or not _REPLICATED.isdisjoint(path):
            columns += ", on every GPU"
        else:
            whole, parts = sum(parts), [self._columns(place, weight, module) for weight in weights]
            columns += f" / tp {tp}" if sum(parts) * tp == whole else f", {sum(parts)} of them on a GPU"
        n, said = sum(parts), f"{joined}: N = {columns}, K = {length}"
        merged = tuple(parts) if len(parts) > 1 else ()
        yield gemm_at(place, said, n, k, names, kinds=kinds, bias=bias, parts=merged, row_parallel=row_parallel)

    def _columns(self, place: Place, weight: _Weight, module: Any) -> int:
        """Return the columns of one GPU. Raises InputError if heads are not split evenly."""
        tp, n, name = self._tp, weight.n, weight.name
        if tp == 1:
            return n
        head_dim = getattr(module, "head_dim", None)
        heads = n // head_dim if isinstance(head_dim, int) and head_dim and n % head_dim == 0 else 0
        if name in (*_KEYS, *_VALUES) and heads and heads < tp:
            if tp % heads:
                raise self._uneven(place, name, f"{heads} heads are")
            return n // heads
        if name in (*_QUERIES, *_KEYS, *_VALUES):
            if (heads or n) % tp:
                raise self._uneven(place, name, f"{heads} heads are" if heads else f"N = {n} is")
            return n // tp
        if name == "kv_proj" and n == head_dim:
            # The one head of keys, which are the values too, is on every GPU.
            return n
        if name in _PACKED and (packed := self._packed(place, n)):
            return packed
        if name == "in_proj" and (mixed := _mamba(module, n, tp)):
            return mixed
        if n % tp:
            self._whole[name] = None
            return n
        if name not in _COLUMN_PARALLEL:
            self._assumed[name] = None
        return n // tp

    def _packed(self, place: Place, n: int) -> int:
        """Return the columns of q, k and v in one tensor; 0 if it does not hold these."""
        config, tp = self._built.config, self._tp
        heads = _number(config, "num_attention_heads", "n_head")
        kv_heads = _number(config, "num_key_value_heads", "num_kv_heads") or heads
        if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
            kv_heads = 1
        if not heads or n % (heads + 2 * kv_heads):
            return 0
        head_dim = n // (heads + 2 * kv_heads)
        if heads % tp or (kv_heads >= tp and kv_heads % tp) or (kv_heads < tp and tp % kv_heads):
            raise self._uneven(place, "qkv", f"{heads} heads and {kv_heads} kv heads are")
        return head_dim * (heads // tp + 2 * max(1, kv_heads // tp))

    def _uneven(self, place: Place, name: str, what: str) -> InputError:
        return InputError(f"{self._config.where}: {place.label}.{name}: {what} not split evenly over {self._tp} GPUs")

    def _experts(self, template: str, by_layer: Mapping[int, Any]) -> Iterator[Experts]:
        groups: dict[_ExpertWeights, list[int]] = {}
        for index, found in by_layer.items():
            weights = _listed_experts(found) if isinstance(found, dict) else _stacked_experts(found, self._built.config)
            if weights is None:
                self._absent[template.replace("{}.", "")] = None
            else:
                groups.setdefault(weights, []).append(index)
        top = _number(self._built.config, *_TOPS)
        if groups and not top:
            self._has_top, top = False, 1
        for weights, indices in groups.items():
            place = self._place(template, tuple(index for index in indices if index >= 0))
            count, width, hidden = weights.count, weights.width, weights.hidden
            if width % self._tp:
                raise self._uneven(place, "experts", f"the experts' width {width} is")
            mine = width // self._tp
            up = f"gate and up [{2 * mine}, {hidden}]" if weights.gated else f"up [{mine}, {hidden}]"
            said = f"{count} experts, {top} a token: {up}, down [{hidden}, {mine}] each"
            names = place.names(*(own for name in weights.names for own in self._sources.get(name, (name,))))
            kinds = tuple(word for word in place.name.split(".") if word != "{}")[-2:]
            layers, differs = max(1, len(place.layers)), ", ".join(weights.differs)
            yield Experts(place.label, said, count, top, mine, hidden, kinds, differs, layers, names, place.layers)

    def _head(self, head: Any) -> Iterator[Gemm]:
        if head is None and not self._built.adds_head:
            return
        config = self._built.config
        if head is not None and hasattr(head, "in_features"):
            vocabulary, hidden = int(head.out_features), int(head.in_features)
        else:
            vocabulary, hidden = _number(config, "vocab_size"), _number(config, "hidden_size")
        if vocabulary and hidden:
            bias = getattr(head, "bias", None) is not None
            yield head_of(self._config, vocabulary, hidden, self._tp, self._step, bias=bias)


def _template(name: str) -> tuple[str, int]:
    """Return the module's name with `{}` in place of the layer's index, and the index; -1 outside the layers."""
    words = name.split(".")
    for place, word in enumerate(words[:-1] if len(words) > 1 and words[-1].isdigit() else words):
        if word.isdigit():
            return ".".join([*words[:place], "{}", *words[place + 1 :]]), int(word)
    if len(words) > 1 and words[-1].isdigit():
        return ".".join([*words[:-1], "{}"]), int(words[-1])
    return name, -1


def _alike(by_layer: Mapping[int, list[_Weight]]) -> list[tuple[list[_Weight], list[int]]]:
    """Return each distinct list of a module's weights, with the layers that have these weights."""
    groups: dict[tuple[_Weight, ...], list[int]] = {}
    for index, weights in by_layer.items():
        groups.setdefault(tuple(weights), []).append(index)
    return [(list(weights), layers) for weights, layers in groups.items()]


def _weight_of(name: str, module: Any) -> _Weight | None:
    """Return the weight of a module that multiplies its input by one matrix; None for other modules."""
    torch: Any = importlib.import_module("torch")
    kind, weight = type(module).__name__, getattr(module, "weight", None)
    bias = getattr(module, "bias", None) is not None
    is_router = bool(re.search(r"Router|TopK|Topk|Gate$", kind))
    if isinstance(module, torch.nn.Linear):
        groups = getattr(module, "n_groups", 0) if "Grouped" in kind else 0
        return _Weight(name, int(module.out_features), int(module.in_features), bias, is_router, groups)
    if kind == "Conv1D":
        return _Weight(name, int(module.weight.shape[1]), int(module.weight.shape[0]), bias)
    if is_router and isinstance(weight, torch.nn.Parameter) and weight.ndim == 2:
        return _Weight(name, int(weight.shape[0]), int(weight.shape[1]), bias, True)
    return None


def _stored_otherwise(module: Any) -> list[str]:
    """Return a module's own parameters that may be weights of products in an unknown layout."""
    if re.search(r"Embedding|Conv|Norm", type(module).__name__):
        return []
    own = [each for each in module.named_parameters(recurse=False) if not re.search(r"bias|position", each[0])]
    # Smaller parameters are states and scales per head.
    return [name for name, value in own if value.ndim >= 2 and min(value.shape[0], value.shape[-1]) >= _LEAST_WIDTH]


def _is_row_parallel(path: list[str], name: str) -> bool:
    return name in _ROW_PARALLEL or (name == "dense" and path[-1] in _DENSE_OUTPUTS)


def _number(config: Any, *keys: str) -> int:
    """Return the first whole number that the config has under one of these keys; 0 if it has none."""
    for key in keys:
        value = getattr(config, key, None)
        value = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _latent(module: Any, weight: _Weight) -> tuple[int, int, int, int] | None:
    """Return latent attention's heads, size without positions, size of values and rank; None for other modules."""
    nope, v = getattr(module, "qk_nope_head_dim", None), getattr(module, "v_head_dim", None)
    if not isinstance(nope, int) or not isinstance(v, int) or weight.n % (nope + v):
        return None
    return weight.n // (nope + v), nope, v, weight.k


def _mamba(module: Any, n: int, tp: int) -> int:
    """Return the columns of Mamba-2's input projection on one GPU; 0 for other modules.

    They are gate, input, B, C and one step per head. Engines split heads; with more GPUs than groups, several GPUs hold
    the same group's B and C.
    """
    keys = "intermediate_size", "n_groups", "ssm_state_size", "num_heads"
    inner, groups, state, heads = (_number(module, key) for key in keys)
    if not groups or n != 2 * inner + 2 * groups * state + heads or inner % tp or heads % tp:
        return 0
    if groups >= tp and groups % tp:
        return 0
    return 2 * inner // tp + 2 * max(1, groups // tp) * state + heads // tp


@dataclass(frozen=True)
class _ExpertWeights:
    """The experts of a layer.

    count: number of experts.
    width: an expert's intermediate size.
    hidden: length of a token's vector.
    names: the weights' names below their module.
    gated: True if an expert has a gate.
    differs: why genkern has no kernels for them.
    """

    count: int
    width: int
    hidden: int
    names: tuple[str, ...]
    gated: bool
    differs: tuple[str, ...]


def _stacked_experts(module: Any, config: Any) -> _ExpertWeights | None:
    """Return experts whose weights are tensors with three axes; None if they are not up- and down-projections."""
    own = dict(module.named_parameters(recurse=False))
    weights = {name: tuple(map(int, value.shape)) for name, value in own.items() if value.ndim == 3}
    down = weights.get("down_proj")
    up = weights.get("gate_up_proj") or weights.get("up_proj")
    # LongCat's first tensor also has rows for experts that compute nothing.
    if down is None or up is None or up[0] < down[0]:
        return None
    merged = "gate_up_proj" in weights and getattr(module, "has_gate", True)
    gated, wide = merged or "gate_proj" in weights, 2 if merged else 1
    if up[1:] == (wide * down[2], down[1]):
        count, hidden, width = down
    elif up[1:] == (down[2], wide * down[1]):
        count, width, hidden = down
    else:
        return None
    differs = [] if gated else ["experts without a gate"]
    if getattr(module, "has_bias", False) or any("bias" in name for name in own):
        differs.append("experts have biases")
    gate = getattr(type(module), "_apply_gate", None)
    if gated and gate is not None and gate.__name__ != "_default_apply_gate":
        differs.append("another gate than silu")
    elif gated and (activation := _activation(config)) not in ("silu", "swish", ""):
        differs.append(f"the gate is {activation}")
    names = tuple(name for name in ("gate_proj", "gate_up_proj", "up_proj", "down_proj") if name in weights)
    return _ExpertWeights(count, width, hidden, names, gated, tuple(differs))


def _listed_experts(experts: Mapping[int, list[_Weight]]) -> _ExpertWeights | None:
    """Return experts that are modules of their own, all alike; None if they are not up- and down-projections."""
    kinds = {tuple(each) for each in experts.values()}
    if len(kinds) != 1:
        return None
    found = {weight.name: weight for weight in kinds.pop()}
    differs = ("experts have biases",) if any(weight.bias for weight in found.values()) else ()
    for names in (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")):
        if found.keys() == {*names}:
            gate, up, down = (found[name] for name in names)
            if (gate.n, gate.k) == (up.n, up.k) == (down.k, down.n):
                below = tuple(f"0.{name}" for name in names)
                return _ExpertWeights(len(experts), up.n, up.k, below, True, differs)
    if len(found) == 2:
        up, down = found.values()
        if (up.n, up.k) == (down.k, down.n):
            below = tuple(f"0.{name}" for name in found)
            return _ExpertWeights(len(experts), up.n, up.k, below, False, ("experts without a gate", *differs))
    return None


def _activation(config: Any) -> str:
    keys = ("hidden_act", "hidden_activation", "mlp_hidden_act", "activation_function")
    return next((value for key in keys if isinstance(value := getattr(config, key, None), str)), "")


def _checkpoint_names(config: Any) -> tuple[dict[str, tuple[str, ...]], list[tuple[str, str]], str]:
    """Return the checkpoints' names of experts' weights, pairs of a module's names in transformers and checkpoints, and
    why transformers' table of names could not be read, or "".

    transformers renames and stacks weights as it loads them. The names are empty if it has no entry for the model type.
    """
    try:
        conversions: Any = importlib.import_module("transformers.conversion_mapping")
        steps = conversions.get_checkpoint_conversion_mapping(config.model_type) or []
        sources: dict[str, tuple[str, ...]] = {}
        renamed = []
        for step in steps:
            theirs = [pattern.replace("\\.", ".") for pattern in step.source_patterns]
            ours = [pattern.replace("\\.", ".") for pattern in step.target_patterns]
            if len(ours) == 1 and (found := re.search(r"\bexperts\.(\w+)$", ours[0])) and "*" in theirs[0]:
                names = (re.search(r"experts\.\*\.(.+?)(?:\.weight)?\$?$", each) for each in theirs)
                sources[found[1]] = tuple(f"0.{name[1]}" for name in names if name)
            elif len(ours) == len(theirs) == 1 and all(re.fullmatch(r"\.\w+\.", name) for name in (*ours, *theirs)):
                renamed.append((ours[0], theirs[0]))
        return {ours: names for ours, names in sources.items() if names}, renamed, ""
    except Exception as error:  # The table is not part of transformers' interface, and may change in any way.
        return {}, [], _line(error)
