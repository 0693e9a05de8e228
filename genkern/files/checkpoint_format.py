"""How a checkpoint stores the weight of each module, from its quantization_config and the module's full name.

Each library that writes quantised checkpoints has its own rules for which modules it quantises and how. `Scheme`
describes a module's quantisation in common terms; `Stored` is genkern's number format for a scheme, if it has one.
Parts of a configuration that this module does not understand are reported, and all weights then count as not quantised.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from genkern.errors import InputError
from genkern.files.name_patterns import NamePattern, Steps, UnreadPattern
from genkern.gemm.problem import GemmProblem, Own
from genkern.ops.fields import parse_own
from genkern.ops.op import get_op

_FP8 = "fp8e4m3fn"
_BYTES = (_FP8, "int8")
_GROUPS = (32, 64, 128, 256)
# The op of routed experts, and the value of its field `scales` for each format of weights.
_EXPERTS = "fused_moe"
_EXPERT_SCALES = {"a16w16": "none", "a8w8": "per_tensor", "a8w8_blockscale": "blocks"}
# Limit of the entries in one list or mapping, and of the patterns among them.
_MOST_ENTRIES = 200_000
_MOST_PATTERNS = 500
# Names of torch.nn.Linear and of its base class, which compressed-tensors and Quark accept as targets.
_CLASSES = ("Linear", "Module")
# Prefixes of the names of a multimodal model's text layers: as transformers 5 saves them, and as earlier releases and
# vLLM name them. Text checkpoints, and the earliest multimodal ones, have the last prefix.
_PREFIXES = ("model.language_model.", "language_model.model.", "model.")
_HEADS = ("lm_head", "language_model.lm_head", "model.lm_head")
# Layers that engines merge, which lists written for vLLM may name.
_MERGED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}
# ModelOpt's names of fp8 weights with a scale for each block.
_MODELOPT_BLOCKS = ("FP8_PB_WO", "FP8_BLOCK_SCALES")
# An entry without special characters of regular expressions, other than the dot.
_LITERAL = re.compile(r"[\w.\-/: ]*")


@dataclass(frozen=True)
class Stored:
    """A number format of genkern: the op, the types of A, B and C, and the op's own fields."""

    op: str
    dtype_a: str
    dtype_b: str
    dtype_c: str
    own: Own = ()

    def __str__(self) -> str:
        own = "".join(f", {key} {value}" for key, value in self.own if key != "scale_type")
        return f"{self.op} ({self.dtype_b}{own})"

    def experts(
        self, tokens: int, experts: int, top_k: int, width: int, hidden: int
    ) -> tuple[GemmProblem, GemmProblem] | None:
        """Return both products of gated experts for `tokens` tokens; None if genkern has no experts in this format."""
        blocks = dict(self.own).keys() & {"block_m", "block_n", "block_k"}
        scales = _EXPERT_SCALES.get(self.op)
        if blocks or scales is None:
            return None
        said = {
            "experts": experts,
            "top_k": top_k,
            **({} if scales == "none" else {"scales": scales}),
            **dict(self.own),
        }
        fields, types = get_op(_EXPERTS).fields, (self.dtype_a, self.dtype_b, self.dtype_c)
        gate_up, down = (parse_own(fields, {**said, "stage": stage}) for stage in ("gate_up", "down"))
        return (
            GemmProblem(tokens, width, hidden, _EXPERTS, *types, activation="silu", own=gate_up),
            GemmProblem(tokens, hidden, width, _EXPERTS, *types, own=down),
        )


@dataclass(frozen=True)
class Scheme:
    """How a module's weights are quantised, and what its activations are quantised to.

    weights: type of the weights
    scales: what shares a scale of the weights: tensor, channel, group or block
    shape: number of weights along K in a group, or the (N, K) of a block
    activations: type of the activations; "" for 16 bits
    activation_scales: what shares a scale of the activations: tensor, token or group
    unlike: why genkern has no format for it, or ""
    """

    weights: str
    scales: str = ""
    shape: tuple[int, ...] = ()
    activations: str = ""
    activation_scales: str = ""
    unlike: str = ""

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        scales = f", a scale a {self.scales}{f' of {shape}' if shape else ''}" if self.scales else ""
        activations = f", {self.activations} activations" if self.activations else ""
        return f"{self.weights} weights{scales}{activations}{f' ({self.unlike})' if self.unlike else ''}"

    def stored(self, plain: Stored) -> Stored | None:
        """Return genkern's format for this scheme, or None if it has none. `plain` is the format of the model's plain
        weights."""
        if self.unlike:
            return None
        if not self.activations:
            if self.weights == "mxfp4":
                return Stored("a16w4", plain.dtype_a, "int8", plain.dtype_c, (("weights", "mxfp4"),))
            if (self.weights, self.scales) == ("int4", "group") and self.shape:
                return _in_groups(self.shape[0], plain)
            if self.weights in _BYTES and self.scales == "channel":
                return Stored("a16w8", plain.dtype_a, self.weights, plain.dtype_c)
            return None
        if self.weights != self.activations:
            return None
        if self.weights == "mxfp4":
            return Stored("a4w4_blockscale", "int8", "int8", plain.dtype_c)
        if self.weights in _BYTES and self.scales == "block":
            return _in_blocks(self.weights, self.shape, plain)
        if self.weights in _BYTES and self.scales in ("channel", "tensor"):
            # a8w8 has a scale per token and per row of the weights, or one scale per tensor.
            of_rows = self.scales == "channel" or self.activation_scales == "token"
            own: Own = (("scales", "per_token"),) if of_rows else ()
            return Stored("a8w8", self.weights, self.weights, plain.dtype_c, own)
        return None


def _in_blocks(dtype: str, block: tuple[int, ...], plain: Stored) -> Stored | None:
    try:
        own = parse_own(get_op("a8w8_blockscale").fields, dict(zip(("block_n", "block_k"), block, strict=True)))
    except (InputError, ValueError):
        return None
    return Stored("a8w8_blockscale", dtype, dtype, plain.dtype_c, own)


def _in_groups(size: int, plain: Stored) -> Stored | None:
    if size not in _GROUPS:
        return None
    own: Own = () if size == _GROUPS[0] else (("group", size),)
    # The checkpoint's scales are fp16. Servers convert them to the model's type (vLLM: params_dtype), and a16w4 has
    # none in fp16.
    if plain.dtype_a == "bf16":
        own = (*own, ("scale_type", "bf16"))
    return Stored("a16w4", plain.dtype_a, "int8", plain.dtype_c, own)


@dataclass(frozen=True)
class WeightFormat:
    """How one weight is stored. `lacking`: its scheme, if genkern has no format for it and `stored` is the plain
    format."""

    stored: Stored
    lacking: str = ""


class CheckpointFormats:
    """The format of each weight of a checkpoint.

    `unread`: the part of the configuration that is not understood, so that all weights count as plain; "" if there is
        none.
    """

    def __init__(self, quantization: Mapping[str, Any], plain: Stored, *, tied: bool = False):
        """Parse a quantization_config. `tied`: the head has the embedding's weights, which are not quantised."""
        self.plain = plain
        self.unread = ""
        self.method = method_of(quantization)
        self._tied = tied
        self._rule: Rule | None = None
        self._schemes: dict[str, Scheme | None] = {}
        # True if there are rules for single experts of a layer, so that each expert's name must be looked up.
        self.names_experts = bool(re.search(r"experts\W{0,8}\d", str(quantization)[:10_000_000]))
        if quantization:
            try:
                self._rule = _rule_of(self.method, quantization)
            except (Unread, UnreadPattern) as error:
                self.unread = _printable(str(error))

    def of(self, name: str) -> WeightFormat:
        """Return the format of the module with this full name, as the checkpoint spells it."""
        scheme = self.scheme(name)
        stored = None if scheme is None else scheme.stored(self.plain)
        return WeightFormat(stored or self.plain, _printable(str(scheme)) if scheme and not stored else "")

    def scheme(self, name: str) -> Scheme | None:
        """Return the module's scheme by the writing library's rules; None if it is not quantised."""
        if self._rule is None or self.unread or (self._tied and name in _HEADS):
            return None
        if name not in self._schemes:
            try:
                self._schemes[name] = self._rule(_also_known_as(name))
            except UnreadPattern as error:
                self.unread = _printable(str(error))
                return None
        return self._schemes[name]


def _printable(text: str) -> str:
    """Return a file's text in one line, without characters that a terminal interprets."""
    return "".join(char if char.isprintable() else "?" for char in text)


# A library's rules: a function of a module's names, of which the first is the checkpoint's own.
Rule = Callable[[Sequence[str]], "Scheme | None"]


class Unread(ValueError):
    """A part of a quantization_config that is not understood."""


def method_of(quantization: Mapping[str, Any]) -> str:
    """Return the library that wrote the checkpoint, by its quant_method; "" if it is not stated."""
    method = _printable(str(quantization.get("quant_method") or "")[:40].lower())
    producer = quantization.get("producer")
    if not method and isinstance(producer, dict) and producer.get("name") == "modelopt":
        return "modelopt"
    if not method and (quantization.get("load_in_4bit") or quantization.get("load_in_8bit")):
        return "bitsandbytes"
    return method


def _rule_of(method: str, quantization: Mapping[str, Any]) -> Rule:
    made = next((made for pattern, made in _METHODS.items() if re.fullmatch(pattern, method)), None)
    if made is not None:
        return made(quantization, Steps())
    unknown = Scheme("quantised", unlike=f"quant_method {method!r}" if method else "no quant_method")
    return lambda names: None if _is_head(names) else unknown


def _is_head(names: Sequence[str]) -> bool:
    return names[0] in _HEADS


def _also_known_as(name: str) -> tuple[str, ...]:
    """Return the name, and its spellings in lists that other releases of a library wrote."""
    if name in _HEADS:
        return (name, *(each for each in _HEADS if each != name))
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return (name, *(each + name[len(prefix) :] for each in _PREFIXES if each != prefix))
    return (name,)


# Lists of names -----------------------------------------------------------------------------------------------------


def _entries(quantization: Mapping[str, Any], *keys: str) -> list[str]:
    """Return the names in the first of these lists that is not empty. Raises Unread for anything but a list of
    texts."""
    for key in keys:
        value = quantization.get(key)
        if value in (None, [], ""):
            continue
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise Unread(f"{key} is not a list of names")
        return list(dict.fromkeys(value[: _within(len(value), key)]))
    return []


def _object(quantization: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under this key; {} if there is none. Raises Unread for anything else."""
    value = quantization.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unread(f"{key} is not an object")
    _within(len(value), key)
    return value


def _within(count: int, key: str) -> int:
    if count > _MOST_ENTRIES:
        raise Unread(f"{key} has more than {_MOST_ENTRIES} entries")
    return count


def _pieces(name: str) -> Iterator[str]:
    """Yield each run of consecutive parts of a dotted name."""
    parts = name.split(".")
    for first in range(len(parts)):
        for end in range(first + 1, len(parts) + 1):
            yield ".".join(parts[first:end])


def _ends_of(name: str) -> Iterator[str]:
    """Yield the dotted name, then the name without its first part, without its first two parts, and so on."""
    yield name
    while "." in name:
        name = name.partition(".")[2]
        yield name


def _parents(name: str) -> Iterator[str]:
    """Yield the modules that contain this one, innermost first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _merged(name: str) -> str:
    """Return the name of the layer that engines merge this one into; the name itself if they do not merge it."""
    parent, _, last = name.rpartition(".")
    return f"{parent}.{_MERGED[last]}" if last in _MERGED else name


def _siblings(name: str) -> list[str]:
    """Return the names of all layers that engines merge with this one, including it; [] if they do not merge it."""
    parent, _, last = name.rpartition(".")
    return [f"{parent}.{each}" for each, merged in _MERGED.items() if merged == _MERGED.get(last)]


def _container(name: str) -> str:
    """Return the module that holds all experts of the layer, for a routed expert's module; the name itself
    otherwise."""
    found = re.match(r".*\.experts(?=\.)", name)
    return found.group() if found else name


class _Patterns:
    """Regular expressions in order, each with a value."""

    def __init__(self, steps: Steps):
        self._steps = steps
        self.items: list[tuple[NamePattern, Any]] = []

    def add(self, pattern: str, value: Any = True) -> None:
        """Add a pattern. Raises UnreadPattern if it is invalid, Unread if there are too many."""
        if len(self.items) == _MOST_PATTERNS:
            raise Unread(f"there are more than {_MOST_PATTERNS} patterns")
        self.items.append((NamePattern(pattern, self._steps), value))

    def match(self, names: Sequence[str]) -> bool:
        """Return True if a pattern matches from the start of a name."""
        return any(_is_met(pattern, pattern.matches, names) for pattern, _ in self.items)

    def first(self, names: Sequence[str], default: Any) -> Any:
        """Return the value of the first pattern that matches from the start of a name, or the default."""
        return next((value for pattern, value in self.items if _is_met(pattern, pattern.matches, names)), default)

    def first_of_merged(self, names: Sequence[str], default: Any) -> Any:
        """Return the value of the first pattern that matches a merged layer's name but no layer in it, or the default.

        Patterns with a negative lookahead are passed over.
        """
        for pattern, value in self.items:
            for name in names:
                siblings = _siblings(name)
                of_merged = bool(siblings) and not pattern.denies and pattern.matches(_merged(name))
                if of_merged and not any(map(pattern.matches, siblings)):
                    return value
        return default


def _is_met(pattern: NamePattern, test: Callable[[str], object], names: Sequence[str]) -> bool:
    """Return True if the pattern's test holds for one of a module's names.

    If the pattern has a negative lookahead, the test must hold for all names: a name's other spelling must not satisfy
    it.
    """
    return (all if pattern.denies else any)(bool(test(name)) for name in names)


class _ExactOrPattern:
    """compressed-tensors' lists: full names, patterns that begin with re:, and names of classes (`match_name`).

    As in vLLM, a full name may also be that of a merged layer, or of the module that holds a layer's experts.
    """

    def __init__(self, entries: Sequence[str], steps: Steps):
        self._names = frozenset(entries)
        self._patterns = _Patterns(steps)
        for entry in entries:
            if entry.startswith("re:"):
                self._patterns.add(entry[3:])

    def has(self, names: Sequence[str]) -> bool:
        exact = {*names, *map(_merged, names), *map(_container, names), *_CLASSES}
        return not self._names.isdisjoint(exact) or self._patterns.match(names)


class _SkipList:
    """transformers' lists of modules that are not quantised (`should_convert_module`).

    An entry is the start of a name up to a dot, a regular expression for such a start, or the end of a name. An
    entry may end with a dot.
    """

    def __init__(self, entries: Sequence[str], steps: Steps):
        literal = [entry for entry in entries if _LITERAL.fullmatch(entry)]
        self._ends = tuple({*entries, *(entry.rstrip(".") for entry in entries)} - {""})
        self._names = frozenset(entries)
        self._literal = re.compile(rf"(?:{'|'.join(map(re.escape, literal))})(?:(?<=\.)|(?=\.|$))") if literal else None
        self._patterns = _Patterns(steps)
        for entry in entries:
            if not _LITERAL.fullmatch(entry):
                self._patterns.add(entry)

    def has(self, names: Sequence[str]) -> bool:
        if any(name.endswith(self._ends) or (self._literal and self._literal.match(name)) for name in names):
            return True
        # Lists written for vLLM and SGLang may name merged layers.
        if any(each in self._names for name in names if _siblings(name) for each in _ends_of(_merged(name))):
            return True
        return any(_is_met(pattern, partial(_ends_at_dot, pattern), names) for pattern, _ in self._patterns.items)


def _ends_at_dot(pattern: NamePattern, name: str) -> bool:
    """Return True if a match from the start of the name may end at its end, or next to a dot."""
    return any(end == len(name) or name[end] == "." or name[end - 1 : end] == "." for end in pattern.ends(name))


class _Globs:
    """Names and fnmatch patterns (*, ?, [...]), each with a value. An exact name comes before the patterns."""

    def __init__(self, entries: Mapping[str, Any]):
        self.exact = entries
        self._globs: list[tuple[Callable[[str], object], Any]] = []
        for entry, value in entries.items():
            if re.search(r"[*?\[]", entry):
                if len(entry) > 1000 or len(self._globs) == 20 * _MOST_PATTERNS:
                    raise Unread("there are too many, or too long, names with *, ? or [")
                # From Python 3.9 on, fnmatch's expressions do not backtrack over a *.
                self._globs.append((re.compile(fnmatch.translate(entry)).match, value))

    def first(self, name: str) -> tuple[bool, Any]:
        """Return whether an entry matches, and the value of the first that does."""
        if name in self.exact:
            return True, self.exact[name]
        return next(((True, value) for match, value in self._globs if match(name)), (False, None))


# Numbers ------------------------------------------------------------------------------------------------------------


def _whole(values: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    """Return the value of the first of `keys` that `values` has, or `default`.

    Raises Unread if none of the keys is there and there is no default, or if the value is not a whole number.
    """
    found = next((key for key in keys if values.get(key) is not None), None)
    value = default if found is None else values[found]
    if value is None:
        raise Unread(f"{' or '.join(keys)} is missing")
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unread(f"{found} = {str(value)[:40]!r} is not a whole number")
    return value


def _flag(values: Mapping[str, Any], key: str, default: bool) -> bool:
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise Unread(f"{key} = {str(value)[:40]!r} is neither true nor false")
    return value


def _block(value: object, key: str) -> tuple[int, ...]:
    """Return the (N, K) of a block: two whole numbers, or text such as 128x128. Raises Unread."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,6}x\d{1,6}", value):
        value = [int(each) for each in value.split("x")]
    if not isinstance(value, list) or len(value) != 2:
        raise Unread(f"{key} = {str(value)[:40]!r} is not two whole numbers")
    for each in value:
        if isinstance(each, bool) or not isinstance(each, int) or each < 1:
            raise Unread(f"{key} = {str(value)[:40]!r} is not two whole numbers")
    return tuple(value)


def _packed(bits: int, group: int, *, zero_points: bool, by_activations: bool = False, unlike: str = "") -> Scheme:
    """Return the scheme of integers with a scale per group along K, or per column if there are no groups."""
    reasons = [unlike] if unlike else []
    reasons += ["zero points"] if zero_points else []
    reasons += ["rows in the order of their activations"] if by_activations else []
    shape = (group,) if group > 0 else ()
    return Scheme(f"int{bits}", "group" if shape else "channel", shape, unlike=", ".join(reasons))


# The libraries ------------------------------------------------------------------------------------------------------


def _compressed_tensors(quantization: Mapping[str, Any], steps: Steps) -> Rule:
    """Return the rule of compressed-tensors (apply_quantization_config): groups of targets, except for ignored
    modules."""
    ignored = _ExactOrPattern(_entries(quantization, "ignore"), steps)
    by_target: dict[str, Scheme | None] = {}
    for key, group in _object(quantization, "config_groups").items():
        if not isinstance(group, dict):
            raise Unread(f"config_groups: {key[:40]} is not an object")
        targets = _entries(group, "targets")
        if not targets:
            raise Unread(f"config_groups: {key[:40]} has no targets")
        by_target.update(dict.fromkeys(targets, _compressed_scheme(group, quantization)))
    sparse = str(_object(quantization, "sparsity_config").get("format") or "dense")[:40]
    if not by_target:
        if sparse != "dense":
            return lambda names: None if ignored.has(names) else Scheme("16-bit", unlike=sparse)
        raise Unread("config_groups has no groups")
    exact = {target: scheme for target, scheme in by_target.items() if not target.startswith("re:")}
    patterns = _Patterns(steps)
    # Precedence of match_targets: full names, then patterns in alphabetical order, then names of classes.
    for target in sorted(target for target in by_target if target.startswith("re:")):
        patterns.add(target[3:], by_target[target])
    of_class = next((exact[each] for each in _CLASSES if each in exact), None)

    def rule(names: Sequence[str]) -> Scheme | None:
        if ignored.has(names):
            return None
        for name in (*names, *map(_merged, names), *map(_container, names)):
            if name in exact:
                return exact[name]
        # vLLM's files may have patterns for merged layers.
        scheme: Scheme | None = patterns.first(names, of_class or patterns.first_of_merged(names, None))
        return scheme

    return rule


def _compressed_scheme(group: Mapping[str, Any], whole: Mapping[str, Any]) -> Scheme | None:
    """Return the scheme of a group; None if its weights are not quantised."""
    weights, inputs = group.get("weights"), group.get("input_activations")
    if weights is None:
        return None
    if not isinstance(weights, dict) or not (inputs is None or isinstance(inputs, dict)):
        raise Unread("config_groups: weights or input_activations is not an object")
    layout = str(group.get("format") or whole.get("format") or "")[:40]
    sparse = str(_object(whole, "sparsity_config").get("format") or "dense")[:40]
    reasons = [each for each in (sparse if sparse != "dense" else "", layout if "24" in layout else "") if each]
    dtype, scales, shape = _compressed_type(weights, layout)
    if not _flag(weights, "symmetric", True):
        reasons.append("zero points")
    # "static" and "weight" only reorder during quantisation; the stored columns are in their places.
    order = weights.get("actorder")
    if order not in (None, False, "static", "weight"):
        reasons.append("rows in the order of their activations")
    if inputs is None:
        return Scheme(dtype, scales, shape, unlike=", ".join(reasons))
    activations, by, sizes = _compressed_type(inputs, layout)
    if not _flag(inputs, "symmetric", True):
        reasons.append("zero points of activations")
    if scales == "block" and by == "group" and sizes != shape[1:]:
        reasons.append(f"activations in groups of {sizes}")
    return Scheme(dtype, scales, shape, activations, by, ", ".join(reasons))


def _compressed_type(arguments: Mapping[str, Any], layout: str) -> tuple[str, str, tuple[int, ...]]:
    """Return the type of QuantizationArgs, what shares a scale, and the sizes of groups or blocks. Raises Unread."""
    bits, kind = _whole(arguments, "num_bits", default=8), arguments.get("type") or "int"
    group = _whole(arguments, "group_size", default=0)
    strategy = arguments.get("strategy") or ("group" if group > 0 else "channel" if group < 0 else "tensor")
    dtype = {("float", 8): _FP8, ("float", 4): "fp4"}.get((str(kind), bits), f"{str(kind)[:20]}{bits}")
    if dtype == "fp4" and strategy == "tensor_group":
        dtype = "nvfp4"
    elif dtype == "fp4" and group == 32 and ("mxfp4" in layout or "uint8" in str(arguments.get("scale_dtype"))):
        dtype = "mxfp4"
    if strategy == "block":
        return dtype, "block", _block(arguments.get("block_structure"), "block_structure")
    return dtype, str(strategy)[:20], (group,) if group > 0 else ()


def _fp8(quantization: Mapping[str, Any], steps: Steps) -> Rule:
    """Return the rule of transformers' FineGrainedFP8Config and of AutoFP8's files.

    The head is not quantised, unless ModelOpt's quantized_layers lists it.
    """
    kept = _SkipList(_entries(quantization, "modules_to_not_convert", "ignored_layers"), steps)
    block, is_dynamic = quantization.get("weight_block_size"), quantization.get("activation_scheme") != "static"
    unlike = "" if str(quantization.get("fmt") or "e4m3") in ("e4m3", "float8_e4m3fn") else "not e4m3"
    if block:
        unlike = unlike or ("" if is_dynamic else "static scales of activations")
        shape = _block(block, "weight_block_size")
        scheme = Scheme(_FP8, "block", shape, _FP8, "group", unlike)
    else:
        # If scales are dynamic, vLLM and SGLang give each token a scale (use_per_token_if_dynamic).
        scheme = Scheme(_FP8, "tensor", (), _FP8, "token" if is_dynamic else "tensor", unlike)
    # ModelOpt adds this to checkpoints whose experts it has quantised again (DeepSeek-V4).
    layers = _modelopt_layers(quantization)

    def rule(names: Sequence[str]) -> Scheme | None:
        of_layer = _of_layer(layers, names)
        if of_layer is not None:
            return of_layer
        return None if _is_head(names) or kept.has(names) else scheme

    return rule


def _fbgemm(quantization: Mapping[str, Any], steps: Steps) -> Rule:
    """Return the rule of FbgemmFp8Config: a scale per row of the weights, and a dynamic scale per token."""
    kept = _SkipList(_entries(quantization, "modules_to_not_convert"), steps)
    scheme = Scheme(_FP8, "channel", (), _FP8, "token")
    return lambda names: None if _is_head(names) or kept.has(names) else scheme


def _gptq(quantization: Mapping[str, Any], steps: Steps) -> Rule:
    """Return the rule of GPTQModel.

    `dynamic` maps patterns to settings: modules that match a pattern with "-:" are not quantised; with "+:" or no
        prefix, they have settings of their own. The first pattern that matches applies.
    """
    with_head = _flag(quantization, "lm_head", False)
    layout = str(quantization.get("checkpoint_format") or quantization.get("format") or "gptq")[:40]
    unlike = "" if layout in ("gptq", "gptq_v2", "marlin", "gptq_marlin") else layout
    named = quantization.get("modules_in_block_to_quantize") or []
    if not isinstance(named, list):
        raise Unread("modules_in_block_to_quantize is not a list of names")
    named = [name for each in named for name in (each if isinstance(each, list) else [each])]
    _entries({"modules_in_block_to_quantize": named}, "modules_in_block_to_quantize")
    patterns = _Patterns(steps)

    def scheme_with(other: Mapping[str, Any]) -> Scheme:
        said = {**quantization, **other}
        return _packed(
            _whole(said, "bits"),
            _whole(said, "group_size", default=-1),
            zero_points=not _flag(said, "sym", True),
            by_activations=_flag(said, "desc_act", False),
            unlike=unlike,
        )

    for pattern, other in _object(quantization, "dynamic").items():
        if not isinstance(other, dict):
            raise Unread(f"dynamic: {pattern[:40]!r} is not an object")
        patterns.add(
            pattern[2:] if pattern.startswith(("+:", "-:")) else pattern,
            None if pattern.startswith("-:") else scheme_with(other),
        )
    whole = scheme_with({})

    def rule(names: Sequence[str]) -> Scheme | None:
        if _is_head(names) and not with_head:
            return None
        if named and not _is_head(names) and not any(each in name for each in named for name in names):
            return None
        scheme: Scheme | None = patterns.first(names, whole)
        return scheme

    return rule


def _awq(quantization: Mapping[str, Any], steps: Steps) -> Rule:
    """Return the rule of AutoAWQ.

    An entry that is part of a module's name, or that transformers' rules match, excludes it. The head is excluded too.
    """
    entries = _entries(quantization, "modules_to_not_convert")
    kept = _SkipList(entries, steps)
    # transformers' AwqConfig has zero points by default.
    scheme = _packed(
        _whole(quantization, "bits", "w_bit"),
        _whole(quantization, "group_size", "q_group_size", default=-1),
        zero_points=_flag(quantization, "zero_point", True),
    )

    def rule(names: Sequence[str]) -> Scheme | None:
        is_kept = _is_head(names) or any(each in name for each in entries for name in names) or kept.has(names)
        return None if is_kept else scheme

    return rule


def _modelopt(quantization: Mapping[str, Any], steps: Steps) -> Rule:
    """Return the rule of NVIDIA ModelOpt.

    One algorithm applies to all modules, or each listed module has its own (MIXED_PRECISION). Modules that are excluded
    by name or glob are not quantised.
    """
    inner = quantization.get("quantization")
    said = inner if isinstance(inner, dict) else quantization
    algorithm = str(said.get("quant_algo") or "")[:40].upper()
    excluded = _Globs(dict.fromkeys(_entries(said, "exclude_modules", "ignore", *_KEPT), True))
    layers = _modelopt_layers(said)
    if algorithm == "MIXED_PRECISION" and not layers:
        raise Unread("quant_algo is MIXED_PRECISION and there are no quantized_layers")
    group = _whole(said, "group_size", default=128)
    whole = None if algorithm in ("", "MIXED_PRECISION") else _modelopt_scheme(algorithm, group)

    def rule(names: Sequence[str]) -> Scheme | None:
        # Releases before 0.39 list parts of names; vLLM also accepts an entry that is part of a module's name.
        for name in names:
            exact = any(piece in excluded.exact for piece in (*_pieces(name), _merged(name)))
            if exact or any(excluded.first(each)[0] for each in (name, *_parents(name))):
                return None
        return _of_layer(layers, names) if algorithm == "MIXED_PRECISION" else whole

    return rule


def _modelopt_scheme(algorithm: str, group: int = 128) -> Scheme:
    if algorithm in _MODELOPT_BLOCKS:
        # Servers give each token a scale for each group along K.
        return Scheme(_FP8, "block", (group, group), _FP8, "group")
    if algorithm == "FP8":
        return Scheme(_FP8, "tensor", (), _FP8, "tensor")
    if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
        return Scheme(_FP8, "channel", (), _FP8, "token")
    return Scheme(algorithm.lower(), unlike="ModelOpt")


def _modelopt_layers(said: Mapping[str, Any]) -> dict[str, Scheme]:
    """Return the schemes of quantized_layers, by name."""
    found = {}
    for name, layer in _object(said, "quantized_layers").items():
        if not isinstance(layer, dict) or not isinstance(layer.get("quant_algo"), str):
            raise Unread(f"quantized_layers: {name[:60]} has no quant_algo")
        group = _whole(layer, "group_size", default=128)
        found[name] = _modelopt_scheme(layer["quant_algo"][:40].upper(), group)
    return found


def _of_layer(layers: Mapping[str, Scheme], names: Sequence[str]) -> Scheme | None:
    """Return the scheme of the module, or of the innermost listed module that contains it; None if none is listed."""
    if not layers:
        return None
    for name in names:
        for each in (name, _merged(name), *_parents(name)):
            if each in layers:
                return layers[each]
    return None


def _mxfp4(quantization: Mapping[str, Any], steps: Steps) -> Rule:
    """Return the rule of transformers' Mxfp4Config: only routed experts are quantised."""
    kept = _SkipList(_entries(quantization, "modules_to_not_convert", "ignored_layers"), steps)
    scheme = Scheme("mxfp4", "group", (32,))

    def rule(names: Sequence[str]) -> Scheme | None:
        experts = [_container(name) for name in names if _container(name) != name]
        return scheme if experts and not kept.has(experts) else None

    return rule


def _bitsandbytes(quantization: Mapping[str, Any], steps: Steps) -> Rule:
    kept = _SkipList(_entries(quantization, "llm_int8_skip_modules"), steps)
    in_4_bits = _flag(quantization, "load_in_4bit", False)
    kind = str(quantization.get("bnb_4bit_quant_type") or "fp4")[:20] if in_4_bits else "int8"
    scheme = Scheme(kind, unlike="bitsandbytes")
    return lambda names: None if _is_head(names) or kept.has(names) else scheme


def _auto_round(quantization: Mapping[str, Any], steps: Steps) -> Rule:
    """Return the rule of Intel AutoRound.

    Modules of the listed blocks are quantised; extra_config has exceptions, by full name or pattern.
    """
    keys = "block_name_to_quantize", "to_quant_block_names"
    blocks: Any = next((quantization[key] for key in keys if quantization.get(key)), [])
    blocks = blocks.split(",") if isinstance(blocks, str) else blocks
    if isinstance(blocks, list):
        blocks = [name for each in blocks for name in (each if isinstance(each, list) else [each])]
    blocks = _entries({keys[0]: blocks}, keys[0])
    exact: dict[str, Scheme | None] = {}
    patterns = _Patterns(steps)
    for name, other in _object(quantization, "extra_config").items():
        if not isinstance(other, dict):
            raise Unread(f"extra_config: {name[:40]!r} is not an object")
        exact[name] = _auto_round_scheme({**quantization, **other})
        if not _LITERAL.fullmatch(name):
            patterns.add(name, exact[name])
    whole = _auto_round_scheme(quantization)

    def rule(names: Sequence[str]) -> Scheme | None:
        # A name without special characters may be that of a module that contains this one.
        for name in names:
            for each in (name, *_parents(name)):
                if each in exact:
                    return exact[each]
        for pattern, value in patterns.items:
            if _is_met(pattern, pattern.found_in, names):
                scheme: Scheme | None = value
                return scheme
        if blocks:
            return (
                whole if any(name == each or name.startswith(f"{each}.") for each in blocks for name in names) else None
            )
        return None if _is_head(names) else whole

    return rule


def _auto_round_scheme(said: Mapping[str, Any]) -> Scheme | None:
    bits, dtype = _whole(said, "bits", default=4), str(said.get("data_type") or "int")[:40]
    if bits >= 16:
        return None
    layout = str(said.get("packing_format") or said.get("backend") or "")
    act_bits = _whole(said, "act_bits", default=16)
    group = said.get("group_size")
    if dtype == "int" and act_bits >= 16 and isinstance(group, int):
        unlike = "" if not layout or re.search("gptq|awq|auto$|marlin", layout) else layout[:40]
        return _packed(bits, group, zero_points=not _flag(said, "sym", True), unlike=unlike)
    if dtype.startswith("mx_fp") and bits == 4 and group == 32 and (act_bits >= 16 or act_bits == 4):
        activations = {} if act_bits >= 16 else {"activations": "mxfp4", "activation_scales": "group"}
        return Scheme("mxfp4", "group", (32,), **activations)
    return Scheme(f"{dtype}{bits}", activations="" if act_bits >= 16 else f"{act_bits}-bit", unlike="AutoRound")


def _quark(quantization: Mapping[str, Any], steps: Steps) -> Rule:
    """Return the rule of AMD Quark.

    In order of precedence: excluded globs, layer_quant_config, layer_type_quant_config, global_quant_config. As in
        vLLM, excluded entries that begin with re: are patterns.
    """
    entries = _entries(quantization, "exclude", *_KEPT)
    excluded = _Globs(dict.fromkeys(entries, True))
    patterns = _Patterns(steps)
    for entry in entries:
        if entry.startswith("re:"):
            patterns.add(entry[3:])
    layers = _Globs({name: _quark_scheme(each) for name, each in _object(quantization, "layer_quant_config").items()})
    types = _object(quantization, "layer_type_quant_config")
    whole = _quark_scheme(types["Linear"] if "Linear" in types else quantization.get("global_quant_config"))

    def rule(names: Sequence[str]) -> Scheme | None:
        if any(excluded.first(each)[0] for name in names for each in (name, _merged(name))) or patterns.match(names):
            return None
        for name in names:
            is_listed, scheme = layers.first(name)
            if is_listed:
                found: Scheme | None = scheme
                return found
        return whole

    return rule


def _quark_scheme(said: object) -> Scheme | None:
    """Return the scheme of a QLayerConfig; None if its weights are not quantised."""
    if not isinstance(said, dict):
        raise Unread("a configuration of Quark's is not an object")
    weight, inputs = said.get("weight"), said.get("input_tensors")
    if weight is None:
        return None
    # A list means two quantisers, one after the other.
    if not isinstance(weight, dict) or not (inputs is None or isinstance(inputs, dict)):
        return Scheme("twice quantised", unlike="Quark")
    dtype, scales, shape = _quark_type(weight)
    reasons = ["zero points"] if weight.get("symmetric") is False else []
    reasons += ["dynamic weights"] if weight.get("is_dynamic") else []
    if inputs is None:
        return Scheme(dtype, scales, shape, unlike=", ".join(reasons))
    activations, by, _ = _quark_type(inputs)
    reasons += ["zero points of activations"] if inputs.get("symmetric") is False else []
    if activations == "mxfp4" and inputs.get("is_dynamic") is False:
        reasons.append("static scales of activations")
    # Quark calls a scale per token per_channel.
    return Scheme(dtype, scales, shape, activations, "token" if by == "channel" else by, ", ".join(reasons))


def _quark_type(said: Mapping[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    dtype = str(said.get("dtype"))[:20]
    scales = str(said.get("qscheme"))[:20].removeprefix("per_")
    group = said.get("group_size") if scales == "group" else None
    shape = (group,) if isinstance(group, int) and group > 0 else ()
    # As vLLM's _is_mx_fp4 decides.
    if (dtype, shape, said.get("scale_format")) == ("fp4", (32,), "e8m0"):
        return "mxfp4", scales, shape
    return {"fp8_e4m3": _FP8}.get(dtype, dtype), scales, shape


# Other libraries' names for the list of modules that are not quantised: used if a library's own list is missing.
_KEPT = ("modules_to_not_convert", "ignored_layers")
# The rules of each library, by a pattern for its quant_method.
_METHODS: dict[str, Callable[[Mapping[str, Any], Steps], Rule]] = {
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "gptq.*": _gptq,
    "awq.*": _awq,
    "modelopt.*": _modelopt,
    "mxfp4": _mxfp4,
    "bitsandbytes.*": _bitsandbytes,
    ".*auto[-_]round": _auto_round,
    "quark": _quark,
}
