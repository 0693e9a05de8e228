"""A model's config.json: its checked numbers, and how its weights are quantised."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from genkern.errors import InputError
from genkern.file_io import read_text, shown_path
from genkern.files.checkpoint_format import CheckpointFormats, Stored, method_of
from genkern.gemm.problem import MAX_DIMENSION

# Hugging Face's names of the types of plain weights, and the types that servers compute in.
_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}
# Values that config.json leaves to the defaults of transformers' class (Gemma3TextConfig).
_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208},
}
# Keys under which configs of multimodal models have their text model's config.
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
_INT8 = {
    "targets": ["Linear"],
    "weights": {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": True},
    "input_activations": {"type": "int", "num_bits": 8, "strategy": "token", "dynamic": True},
}
# Ways to store weights by name, each as a quantization_config.
QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8_per_tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8_block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "int8": {"quant_method": "compressed-tensors", "config_groups": {"group_0": _INT8}, "ignore": ["lm_head"]},
    "w4": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
}


class MissingNumberError(InputError):
    """A number that a model's config.json does not have."""


@dataclass(frozen=True)
class ModelConfig:
    """A model's config.json.

    where: its path, as messages show it
    values: the keys of its text model
    quantization: its quantization_config; {} if it has none
    outer: the model_type of the multimodal model that contains the text model; "" for a text model alone
    document: the whole file
    """

    where: str
    values: Mapping[str, Any]
    quantization: Mapping[str, Any]
    outer: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hints(self) -> list[str]:
        """The keys that speak of quantised weights in a config.json without a quantization_config, such as
        use_fp8_experts.
        """
        if self.quantization:
            return []
        values = {**self.values, **self.document}
        return [key[:60] for key, value in values.items() if _FEW_BITS.search(key) and value not in (None, False, 0)]

    @property
    def family(self) -> str:
        """The model_type of the text model."""
        return str(self.values.get("model_type", ""))[:40]

    def like(self, family: str) -> ModelConfig:
        """Return the same config with the model_type `family`, whose rules then apply to its numbers."""
        return replace(self, values={**self.values, "model_type": family})

    def stored_as(self, quantization: str) -> ModelConfig:
        """Return the same model with its weights quantised as one of QUANTIZATIONS."""
        return replace(self, quantization=QUANTIZATIONS[quantization])

    def number(self, key: str, default: int | None = None) -> int:
        """Return the value of `key`, or the default.

        Raises MissingNumberError if there is neither, and InputError if the value is not a whole number from 1.
        """
        value = self.values.get(key)
        if value is None:
            value = _DEFAULTS.get(self.family, {}).get(key, default)
        if value is None:
            raise MissingNumberError(f"{self.where}: has no {key}, which a model of type {self.family} needs")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DIMENSION:
            raise InputError(
                f"{self.where}: {key} = {str(value)[:40]!r} is not a whole number from 1 to {MAX_DIMENSION}"
            )
        return value

    def optional(self, key: str) -> int:
        """Return the value of `key`; 0 if it is missing, null or 0. Raises InputError for anything else."""
        return self.number(key) if self.values.get(key) not in (None, 0) else 0

    def flag(self, key: str, default: bool = False) -> bool:
        """Return the value of `key`, or the default. Raises InputError if it is neither true nor false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise InputError(f"{self.where}: {key} = {str(value)[:40]!r} is neither true nor false")
        return value

    @property
    def plain(self) -> Stored:
        """The format of weights that are not quantised. Raises InputError for a type that genkern does not have."""
        said = self.values.get("torch_dtype") or self.values.get("dtype") or "bfloat16"
        dtype = _TYPES.get(str(said))
        if dtype is None:
            raise InputError(f"{self.where}: weights are {str(said)[:40]!r}; known are {', '.join(_TYPES)}")
        return Stored("a16w16", dtype, dtype, dtype)

    @property
    def formats(self) -> CheckpointFormats:
        """The format in which the checkpoint stores each weight."""
        return CheckpointFormats(self.quantization, self.plain, tied=self.values.get("tie_word_embeddings") is True)


# Keys of config.json that name a type of weights.
_FEW_BITS = re.compile(r"(?:^|_)(?:mx|nv)?(?:fp[468]|int[48])(?:_|$)")
# Files beside config.json in which some libraries describe the quantisation, and the library if the file names none.
_BESIDE = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "quantization_config.json": "",
}


def read_model(folder: str) -> ModelConfig:
    """Read the config.json in a model's folder, or the file itself. Raises InputError (one line) if it is invalid."""
    path = os.path.join(folder, "config.json") if os.path.isdir(folder) else folder
    where = shown_path(path)
    values = _read_object(path)
    nested = (values.get(key) for key in _TEXT_CONFIGS)
    inner = next((each for each in nested if isinstance(each, dict) and each), values)
    keys = "quantization_config", "compression_config"
    quantization: Any = next((each[key] for key in keys for each in (values, inner) if each.get(key)), {})
    if not isinstance(quantization, dict):
        raise InputError(f"{where}: quantization_config is not an object")
    quantization = _with_files_beside(os.path.dirname(path), quantization)
    types: dict[str, Any] = {
        key: values[key] for key in ("torch_dtype", "dtype", "tie_word_embeddings") if key in values
    }
    outer = "" if inner is values else str(values.get("model_type", ""))[:40]
    return ModelConfig(where, {**types, **inner}, quantization, outer, values)


def _read_object(path: str) -> dict[str, Any]:
    where = shown_path(path)
    text = read_text(path)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: is not JSON") from None
    if not isinstance(values, dict):
        raise InputError(f"{where}: is not a model's configuration: an object with a model_type")
    return values


def _with_files_beside(folder: str, quantization: dict[str, Any]) -> dict[str, Any]:
    """Return the quantisation, completed from other files of the folder if config.json lacks it or its layers."""
    # Some of ModelOpt's releases list the layers in their own file only.
    is_short = method_of(quantization).startswith("modelopt") and quantization.get("quant_algo") == "MIXED_PRECISION"
    if quantization and not (is_short and not quantization.get("quantized_layers")):
        return quantization
    for name, method in _BESIDE.items():
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            found = _read_object(path)
            return {"quant_method": method, **found} if method else found
    return quantization
