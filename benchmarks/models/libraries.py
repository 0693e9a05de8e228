"""What the libraries that write quantised checkpoints say of a module by its full name, beside genkern's own reading.

compressed-tensors and transformers are asked themselves. The rules of GPTQModel, AutoAWQ, AutoRound, Quark and ModelOpt
are written here from their documentation and sources (vLLM's for ModelOpt), because the packages need a GPU, or more
packages than a comparison is worth.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Answer = tuple[str, str, tuple[int, ...], str, bool] | None
"""How a module is quantised: the type of its weights, what has a scale in common (tensor, channel, group, block) and of
what size, the type of its activations ("" for 16 bits), and whether there is more to it (zero points, another order,
scales of scales), which genkern's formats do not have. None if it is not quantised.
"""
_FP8 = "fp8e4m3fn"


def answers(method: str, quantization: Mapping[str, Any], names: Sequence[str]) -> dict[str, Answer]:
    """The library's answer for each name. Raises ImportError if the library is needed and not installed."""
    if method == "compressed-tensors":
        return _compressed_tensors(quantization, names)
    made = {
        "fp8": _fp8,
        "fbgemm_fp8": _fbgemm,
        "mxfp4": _mxfp4,
        "bitsandbytes": _bitsandbytes,
        "gptq": _gptq,
        "awq": _awq,
        "auto-round": _auto_round,
        "intel/auto-round": _auto_round,
        "quark": _quark,
        "modelopt": _modelopt,
    }[method](quantization, names)
    return {name: made(name) for name in names}


def _tree(names: Sequence[str]) -> Any:
    """Return a model with these linear layers and the attributes that transformers' quantisers read from a model."""
    import torch

    class Model(torch.nn.Module):
        all_tied_weights_keys: Mapping[str, str] = {}

        def get_output_embeddings(self) -> Any:
            return next((module for name, module in self.named_modules() if name.endswith("lm_head")), None)

    root = Model()
    for name in names:
        *parents, last = name.split(".")
        place: torch.nn.Module = root
        for parent in parents:
            if parent not in place._modules:
                place.add_module(parent, torch.nn.Module())
            place = place._modules[parent]  # type: ignore[assignment]
        place.add_module(last, torch.nn.Linear(1, 1, bias=False, device="meta"))
    return root


def _compressed_tensors(quantization: Mapping[str, Any], names: Sequence[str]) -> dict[str, Answer]:
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.utils.match import match_named_modules, match_targets

    config = QuantizationConfig.model_validate(dict(quantization))
    schemes = {target: scheme for scheme in config.config_groups.values() for target in scheme.targets}
    found: dict[str, Answer] = dict.fromkeys(names)
    for name, module in match_named_modules(_tree(names), list(schemes), config.ignore):
        if name in found:
            scheme = schemes[match_targets(name, module, list(schemes))[0]]
            weights, inputs = scheme.weights, scheme.input_activations
            shape = tuple(weights.block_structure or ([weights.group_size] if weights.group_size else []))
            more = not weights.symmetric or bool(inputs and not inputs.symmetric) or str(weights.actorder) == "group"
            activations = _type(inputs) if inputs else ""
            found[name] = _type(weights), str(weights.strategy), shape, activations, more
    return found


def _type(arguments: Any) -> str:
    """The type that QuantizationArgs describe."""
    return (
        _FP8 if (str(arguments.type), arguments.num_bits) == ("float", 8) else f"{arguments.type}{arguments.num_bits}"
    )


def _transformers(entries: list[str] | None, names: Sequence[str]) -> Callable[[str], bool]:
    """Whether transformers quantises the linear layer of this name."""
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    kept = HfQuantizer.get_modules_to_not_convert(_tree(names), entries)
    return lambda name: bool(should_convert_module(name, kept))


def _fp8(quantization: Mapping[str, Any], names: Sequence[str]) -> Callable[[str], Answer]:
    converts = _transformers(quantization.get("modules_to_not_convert") or None, names)
    block = tuple(quantization.get("weight_block_size") or ())
    return lambda name: (_FP8, "block" if block else "tensor", block, _FP8, False) if converts(name) else None


def _fbgemm(quantization: Mapping[str, Any], names: Sequence[str]) -> Callable[[str], Answer]:
    converts = _transformers(quantization["modules_to_not_convert"], names)
    return lambda name: (_FP8, "channel", (), _FP8, False) if converts(name) else None


def _bitsandbytes(quantization: Mapping[str, Any], names: Sequence[str]) -> Callable[[str], Answer]:
    converts = _transformers(quantization.get("llm_int8_skip_modules"), names)
    return lambda name: (quantization["bnb_4bit_quant_type"], "", (), "", True) if converts(name) else None


def _mxfp4(quantization: Mapping[str, Any], names: Sequence[str]) -> Callable[[str], Answer]:
    """transformers replaces the experts of a layer as a whole (replace_with_mxfp4_linear)."""
    converts = _transformers(quantization["modules_to_not_convert"], [])

    def answer(name: str) -> Answer:
        head, experts, _ = name.partition(".experts.")
        return ("mxfp4", "group", (32,), "", False) if experts and converts(f"{head}.experts") else None

    return answer


def _gptq(quantization: Mapping[str, Any], names: Sequence[str]) -> Callable[[str], Answer]:
    """GPTQModel's QuantizeConfig.dynamic_get: the first pattern that matches holds."""

    def answer(name: str) -> Answer:
        if name == "lm_head" and not quantization.get("lm_head"):
            return None
        said = dict(quantization)
        for pattern, other in (quantization.get("dynamic") or {}).items():
            if pattern.startswith("-:"):
                if re.match(pattern.removeprefix("-:"), name):
                    return None
            elif re.match(pattern.removeprefix("+:"), name):
                said.update(other)
                break
        return f"int{said['bits']}", "group", (said["group_size"],), "", said["desc_act"] or not said["sym"]

    return answer


def _awq(quantization: Mapping[str, Any], names: Sequence[str]) -> Callable[[str], Answer]:
    """AutoAWQ's exclude_layers_to_not_quantize, of the linear layers of decoder blocks."""
    entries = quantization.get("modules_to_not_convert") or []

    def answer(name: str) -> Answer:
        if ".layers." not in name or any(entry in name for entry in entries):
            return None
        return f"int{quantization['w_bit']}", "group", (quantization["q_group_size"],), "", quantization["zero_point"]

    return answer


def _auto_round(quantization: Mapping[str, Any], names: Sequence[str]) -> Callable[[str], Answer]:
    """AutoRound's get_layer_config: names of extra_config, then its patterns, then the blocks."""
    other = quantization.get("extra_config") or {}
    blocks = (quantization.get("block_name_to_quantize") or "model.layers").split(",")

    def answer(name: str) -> Answer:
        said = other.get(name)
        if said is None:
            patterns = (pattern for pattern in other if re.search(r"[*+?^$()|\\]", pattern))
            said = next((other[pattern] for pattern in patterns if re.search(pattern, name)), None)
        if said is None:
            said = {} if any(name.startswith(block) for block in blocks) else {"bits": 16}
        said = {**quantization, **said}
        shape = (said["group_size"],) if said["group_size"] > 0 else ()
        answer = f"int{said['bits']}", "group" if shape else "channel", shape, "", not said["sym"]
        return None if said["bits"] >= 16 else answer

    return answer


def _quark(quantization: Mapping[str, Any], names: Sequence[str]) -> Callable[[str], Answer]:
    """Quark's get_layer_quant_config."""

    def answer(name: str) -> Answer:
        if any(fnmatch.fnmatch(name, entry) for entry in quantization["exclude"]):
            return None
        layers = quantization["layer_quant_config"].items()
        said = next((each for pattern, each in layers if fnmatch.fnmatch(name, pattern)), None)
        said = said or quantization["global_quant_config"]
        weight, types = said["weight"], {"fp8_e4m3": _FP8, "fp4": "mxfp4"}
        shape = (weight["group_size"],) if weight["group_size"] else ()
        scales, activations = weight["qscheme"].removeprefix("per_"), types[said["input_tensors"]["dtype"]]
        return types[weight["dtype"]], scales, shape, activations, False

    return answer


def _modelopt(quantization: Mapping[str, Any], names: Sequence[str]) -> Callable[[str], Answer]:
    """vLLM's ModelOptQuantConfigBase.is_layer_excluded and ModelOptMixedPrecisionConfig._resolve_quant_algo."""
    said = quantization.get("quantization", quantization)
    entries = said.get("exclude_modules", said.get("ignore", []))
    layers = said.get("quantized_layers", {})

    def answer(name: str) -> Answer:
        if any(entry in name or fnmatch.fnmatch(name, entry) for entry in entries):
            return None
        algorithm = said["quant_algo"]
        if algorithm == "MIXED_PRECISION":
            found = layers.get(name) or layers.get(name.partition(".experts.")[0] + ".experts")
            algorithm = found["quant_algo"] if found else None
        if algorithm == "FP8":
            return _FP8, "tensor", (), _FP8, False
        return (algorithm.lower(), "", (), "", True) if algorithm else None

    return answer
