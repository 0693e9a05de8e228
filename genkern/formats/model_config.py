"""A model's config.json, as its authors publish it: numbers that are checked, and what its weights are stored in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from genkern.errors import InputError
from genkern.files import read_text, shown_path
from genkern.gemm.problem import MAX_DIMENSION, GemmProblem, Own
from genkern.ops.fields import parse_own
from genkern.ops.op import get_op

# Hugging Face's names of the types that weights are in where they are not quantised, and what servers compute in.
_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}
# What configs leave to their class in transformers (Gemma3TextConfig).
_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208},
}
# Where multimodal models' configs have their text model's.
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
_FP8 = "fp8e4m3fn"
_GROUPS = (32, 64, 128, 256)
# The format of routed experts, and how it calls the scales of weights that are stored as in these.
_EXPERTS = "fused_moe"
_EXPERT_SCALES = {"a16w16": "none", "a8w8": "per_tensor", "a8w8_blockscale": "blocks"}
# Modules that keep plain weights: transformers', compressed-tensors', Quark's and ModelOpt's names for the list.
_KEPT = ("modules_to_not_convert", "ignore", "exclude", "exclude_modules")

_INT8 = {
    "weights": {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": True},
    "input_activations": {"type": "int", "num_bits": 8, "strategy": "token", "dynamic": True},
}
# Ways to store weights by name, as a quantization_config says each.
QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8_per_tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8_block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "int8": {"quant_method": "compressed-tensors", "config_groups": {"group_0": _INT8}},
    "w4": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
}


class MissingNumberError(InputError):
    """A number that a model's config.json does not have."""


@dataclass(frozen=True)
class Stored:
    """How the weights of a product are stored, and so which format it is of: types of A and B, and own fields."""

    op: str
    dtype_a: str
    dtype_b: str
    dtype_c: str
    own: Own = ()

    def experts(
        self, tokens: int, experts: int, top_k: int, width: int, hidden: int
    ) -> tuple[GemmProblem, GemmProblem] | None:
        """Both products of gated experts for so many tokens, with weights stored so; None where genkern has none."""
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
class ModelConfig:
    """A config.json at `where`: `values` of its text model, and `quantization`, empty where there is none.

    `outer`: the model_type of the multimodal model that the text model is part of; "" for a text model alone.
    `document`: the whole file.
    """

    where: str
    values: Mapping[str, Any]
    quantization: Mapping[str, Any]
    outer: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """What the config calls the kind of its model."""
        return str(self.values.get("model_type", ""))[:40]

    def like(self, family: str) -> ModelConfig:
        """The same numbers as of a model of that type."""
        return replace(self, values={**self.values, "model_type": family})

    def stored_as(self, quantization: str) -> ModelConfig:
        """With weights that are quantised otherwise than it says: one of QUANTIZATIONS."""
        return replace(self, quantization=QUANTIZATIONS[quantization])

    def number(self, key: str, default: int | None = None) -> int:
        """The whole number of that name, from 1. Raises InputError where it is none, or where there is no default."""
        value = self.values.get(key)
        if value is None:
            value = _DEFAULTS.get(self.family, {}).get(key, default)
        if value is None:
            raise MissingNumberError(f"{self.where}: has no {key}, which a model of type {self.family} is known by")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DIMENSION:
            raise InputError(
                f"{self.where}: {key} = {str(value)[:40]!r} is not a whole number from 1 to {MAX_DIMENSION}"
            )
        return value

    def optional(self, key: str) -> int:
        """The number of that name; 0 where it is not there, null or 0. Raises InputError for anything else."""
        return self.number(key) if self.values.get(key) not in (None, 0) else 0

    def flag(self, key: str, default: bool = False) -> bool:
        """Raises InputError for what is neither true nor false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise InputError(f"{self.where}: {key} = {str(value)[:40]!r} is neither true nor false")
        return value

    @property
    def plain(self) -> Stored:
        """Of weights that are not quantised."""
        said = self.values.get("torch_dtype") or self.values.get("dtype") or "bfloat16"
        dtype = _TYPES.get(str(said))
        if dtype is None:
            raise InputError(f"{self.where}: weights are {str(said)[:40]!r}; known are {', '.join(_TYPES)}")
        return Stored("a16w16", dtype, dtype, dtype)

    def stored(self) -> tuple[Stored, str]:
        """How quantised weights are stored, and "" or why they are taken for plain ones."""
        plain = self.plain
        method = str(self.quantization.get("quant_method", ""))[:40]
        if not self.quantization:
            return plain, ""
        if method == "mxfp4":
            return plain, "quantization_config (mxfp4) is of the experts"
        found = None
        if method == "fp8":
            found = self._fp8(plain)
        elif method == "compressed-tensors":
            found = self._compressed(plain)
        elif method == "fbgemm_fp8":
            # FbgemmFp8Config: a scale for each row of the weights, and for each token as it comes.
            found = _in_8_bits(_FP8, plain, of_rows=True)
        elif method == "quark":
            found = self._quark(plain)
        elif method.startswith("modelopt"):
            found = self._modelopt(plain)
        elif method == "gptq":
            found = self._packed(plain, has_zero_points=self.quantization.get("sym", True) is not True)
        elif method == "awq":
            # transformers' AwqConfig has them unless it says otherwise.
            found = self._packed(plain, has_zero_points=self.quantization.get("zero_point", True) is not False)
        if found is None:
            return plain, f"quantization_config says {method or 'no method'} of a kind that genkern has no format for"
        return found, ""

    def _fp8(self, plain: Stored) -> Stored | None:
        block = self.quantization.get("weight_block_size")
        # vLLM and SGLang give each token its scale where scales are made as tokens come (use_per_token_if_dynamic).
        of_rows = self.quantization.get("activation_scheme") == "dynamic"
        return _in_blocks(_FP8, block, plain) if block else _in_8_bits(_FP8, plain, of_rows=of_rows)

    def _compressed(self, plain: Stored) -> Stored | None:
        groups = self.quantization.get("config_groups")
        group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(group, dict) or not isinstance(weights, dict) or weights.get("symmetric", True) is not True:
            return None
        kind, strategy = f"{weights.get('type')}{weights.get('num_bits')}", weights.get("strategy")
        dtype = {"float8": _FP8, "int8": "int8"}.get(kind, "")
        if group.get("input_activations") is None:
            if (kind, strategy) == ("int4", "group") and not weights.get("actorder"):
                return _in_groups(weights.get("group_size"), plain)
            if dtype and strategy == "channel":
                return Stored("a16w8", plain.dtype_a, dtype, plain.dtype_c)
            return None
        if dtype and strategy == "block":
            return _in_blocks(dtype, weights.get("block_structure"), plain)
        if dtype and strategy in ("channel", "tensor"):
            return _in_8_bits(dtype, plain, of_rows=strategy == "channel")
        return None

    def _quark(self, plain: Stored) -> Stored | None:
        """AMD's: types and scales of weights and activations, the same for all layers (what caches keep is no matter).

        A scale for each token is `per_channel` there.
        """
        whole = self.quantization.get("global_quant_config")
        others = self.quantization.get("layer_quant_config") or {}
        if not isinstance(whole, dict) or not isinstance(others, dict):
            return None
        weight, tokens = whole.get("weight"), whole.get("input_tensors")
        same = all(
            isinstance(other, dict) and (other.get("weight"), other.get("input_tensors")) == (weight, tokens)
            for other in others.values()
        )
        if not same or not isinstance(weight, dict) or weight.get("is_dynamic"):
            return None
        if _is_mxfp4(weight):
            if tokens is None:
                return Stored("a16w4", plain.dtype_a, "int8", plain.dtype_c, (("weights", "mxfp4"),))
            of_tokens = isinstance(tokens, dict) and _is_mxfp4(tokens) and tokens.get("is_dynamic") is not False
            return Stored("a4w4_blockscale", "int8", "int8", plain.dtype_c, ()) if of_tokens else None
        if not isinstance(tokens, dict):
            return None
        dtype = {"fp8_e4m3": _FP8, "int8": "int8"}.get(str(weight.get("dtype")), "")
        schemes = {str(each.get("qscheme")) for each in (weight, tokens)}
        if not dtype or tokens.get("dtype") != weight["dtype"] or not schemes <= {"per_tensor", "per_channel"}:
            return None
        if any(each.get("symmetric") is False for each in (weight, tokens)):
            return None
        return _in_8_bits(dtype, plain, of_rows="per_channel" in schemes)

    def _modelopt(self, plain: Stored) -> Stored | None:
        """NVIDIA's, which names each way; older ones one level below."""
        inner = self.quantization.get("quantization")
        said = inner if isinstance(inner, dict) else self.quantization
        of_rows = {"FP8": False, "FP8_PER_CHANNEL_PER_TOKEN": True}.get(str(said.get("quant_algo")).upper())
        return None if of_rows is None else _in_8_bits(_FP8, plain, of_rows=of_rows)

    def _packed(self, plain: Stored, *, has_zero_points: bool) -> Stored | None:
        """Four bits around zero: weights with zero points, or in the order of their activations, are another format."""
        said = self.quantization
        if has_zero_points or said.get("desc_act", False) is not False:
            return None
        return _in_groups(said.get("group_size"), plain) if said.get("bits", said.get("w_bit")) == 4 else None

    def is_kept(self, modules: tuple[str, ...]) -> bool:
        """Whether a product of these modules keeps plain weights, whatever the others are stored in.

        Entries of quantization_config that name a layer by its number are not looked at.
        """
        inner = self.quantization.get("quantization")
        said = {**self.quantization, **(inner if isinstance(inner, dict) else {})}
        entries: object = next((said[key] for key in _KEPT if said.get(key)), [])
        names = [str(entry)[:200] for entry in entries] if isinstance(entries, list) else []
        last = {re.split(r"[^A-Za-z_]+", name.rstrip(".*$"))[-1] for name in names if not re.search(r"[0-9]", name)}
        return "lm_head" in modules or bool(last & {*modules})


def _is_mxfp4(said: Mapping[str, object]) -> bool:
    """Whether Quark says e2m1 with an exponent for each 32 (as vLLM's _is_mx_fp4 reads it)."""
    wanted = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
    return all(said.get(key) == value for key, value in wanted.items())


def _in_8_bits(dtype: str, plain: Stored, *, of_rows: bool) -> Stored:
    """With a scale for each token and each row of the weights, or one for each of both."""
    own: Own = (("scales", "per_token"),) if of_rows else ()
    return Stored("a8w8", dtype, dtype, plain.dtype_c, own)


def _in_blocks(dtype: str, block: object, plain: Stored) -> Stored | None:
    if not isinstance(block, list) or len(block) != 2:
        return None
    try:
        own = parse_own(get_op("a8w8_blockscale").fields, dict(zip(("block_n", "block_k"), block, strict=True)))
    except InputError:
        return None
    return Stored("a8w8_blockscale", dtype, dtype, plain.dtype_c, own)


def _in_groups(size: object, plain: Stored) -> Stored | None:
    if not isinstance(size, int) or size not in _GROUPS:
        return None
    own: Own = () if size == _GROUPS[0] else (("group", size),)
    # Their scales are fp16; servers take them in the model's type (vLLM: params_dtype), and a16w4 has none in fp16.
    if plain.dtype_a == "bf16":
        own = (*own, ("scale_type", "bf16"))
    return Stored("a16w4", plain.dtype_a, "int8", plain.dtype_c, own)


def read_model(folder: str) -> ModelConfig:
    """The config.json in a model's folder, or the file itself. Raises InputError, one line, where it is none."""
    path = os.path.join(folder, "config.json") if os.path.isdir(folder) else folder
    where = shown_path(path)
    text = read_text(path)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: is not JSON") from None
    if not isinstance(values, dict):
        raise InputError(f"{where}: is no model's configuration, which is an object with a model_type")
    nested = (values.get(key) for key in _TEXT_CONFIGS)
    inner = next((each for each in nested if isinstance(each, dict) and each), values)
    quantization = values.get("quantization_config") or inner.get("quantization_config") or {}
    if not isinstance(quantization, dict):
        raise InputError(f"{where}: quantization_config is no object")
    types = {key: values[key] for key in ("torch_dtype", "dtype") if key in values}
    outer = "" if inner is values else str(values.get("model_type", ""))[:40]
    return ModelConfig(where, {**types, **inner}, quantization, outer, values)
