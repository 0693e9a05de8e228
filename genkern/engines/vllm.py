"""vLLM: a plugin (entry point vllm.general_plugins) by which its layers call winners. docs/engines.md lists the layers.

vLLM calls `register` in each of its processes, more than once. It is idempotent, touches no GPU, and does nothing if no
bundle is named. All ranks load the files that the environment names, so that all call the same kernels. `parts`
declares everything of vLLM that the plugin uses.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genkern.engines.hooks import (
    EngineAttribute,
    IncompatibleEngine,
    PluginPart,
    install,
    is_on,
    resolved,
    served_or_own,
    wrap,
)

_ENGINE = "vllm"
_LAYERS = "vllm.model_executor.layers"
_UNQUANTIZED = f"{_LAYERS}.linear.UnquantizedLinearMethod"
_EMBEDDING = f"{_LAYERS}.vocab_parallel_embedding.UnquantizedEmbeddingMethod"
_LOAD_MODEL = "vllm.model_executor.model_loader.base_loader.BaseModelLoader.load_model"
_TRITON_EXPERTS = f"{_LAYERS}.fused_moe.experts.triton_moe.TritonExperts"
# Releases up to 0.27 have the second path.
_INVARIANT = "vllm.model_executor.determinism.batch_invariant", f"{_LAYERS}.batch_invariant"
_APPLY = ("self", "layer", "x", "bias")
_EXPERTS = (
    *("output", "hidden_states", "w1", "w2", "topk_weights", "topk_ids", "activation", "global_num_experts"),
    *("expert_map", "a1q_scale", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta"),
    "apply_router_weight_on_input",
)
_SCALES = "w1_scale", "w2_scale"
_EXTRAS = "w1_bias", "w2_bias", "w1_zp", "w2_zp"
_QUANTIZATION = "quant_dtype", "block_shape", "per_act_token_quant", "per_out_ch_quant"
# Name of an environment variable that is added to vLLM's keys of compiled programs, so that the keys depend on the
# bundle.
_VARIABLE = "VLLM_GENKERN_BUNDLES"


def register() -> None:
    """Installs the plugin in this process of vLLM. Never raises."""
    if is_on():
        install(_ENGINE, parts())


def parts() -> tuple[PluginPart, ...]:
    """Returns the parts of the plugin, with everything of vLLM that each touches."""
    from genkern.engines import vllm_fp8

    envs = EngineAttribute("vllm.envs.VLLM_BATCH_INVARIANT")
    load_model = EngineAttribute(_LOAD_MODEL, ("self", "vllm_config", "model_config"))
    return (
        PluginPart(
            "compiled programs' keys",
            (EngineAttribute("vllm.envs.environment_variables"), EngineAttribute("vllm.envs.compile_factors", ())),
            _key,
            _key_trial,
        ),
        PluginPart(
            "16-bit linear layers",
            (
                *(
                    envs,
                    load_model,
                    EngineAttribute(f"{_UNQUANTIZED}.apply", _APPLY),
                    EngineAttribute(f"{_EMBEDDING}.apply", _APPLY),
                ),
                EngineAttribute(f"{_LAYERS}.vocab_parallel_embedding.ParallelLMHead"),
                EngineAttribute(f"{_LAYERS}.vocab_parallel_embedding.VocabParallelEmbedding"),
                EngineAttribute(f"{_LAYERS}.utils.default_unquantized_gemm", ("layer", "x", "weight", "bias")),
                EngineAttribute(f"{_LAYERS}.utils.dispatch_unquantized_gemm"),
            ),
            _linears,
        ),
        PluginPart("fp8 linear layers", (envs, load_model, *vllm_fp8.TOUCHES), _fp8, vllm_fp8.trial),
        PluginPart(
            "experts",
            (
                *(envs, load_model, EngineAttribute(f"{_TRITON_EXPERTS}.apply", ("self", *_EXPERTS))),
                EngineAttribute(
                    _TRITON_EXPERTS, fields=(*_SCALES, *_EXTRAS, *_QUANTIZATION, "quant_config", "_lora_context")
                ),
                EngineAttribute(f"{_LAYERS}.fused_moe.config.FusedMoEQuantConfig", fields=("gemm1_clamp_limit",)),
                EngineAttribute(f"{_LAYERS}.fused_moe.activation.MoEActivation", fields=("SILU",)),
                EngineAttribute(
                    f"{_LAYERS}.fused_moe.fused_moe_method_base.FusedMoEMethodBase", fields=("moe_kernel",)
                ),
                EngineAttribute(f"{_LAYERS}.fused_moe.modular_kernel.FusedMoEKernel", fields=("fused_experts",)),
            ),
            _experts,
        ),
        PluginPart("batch-invariant products", (envs,), _invariant),
    )


def _key() -> None:
    """Makes vLLM recompile its programs if the bundle or genkern's environment changes."""
    safe = served_or_own("the key of compiled programs", digest, lambda: "unknown")
    resolved("vllm.envs.environment_variables").setdefault(_VARIABLE, safe)


def _key_trial() -> None:
    if not isinstance(resolved("vllm.envs.environment_variables"), dict):
        raise IncompatibleEngine("vllm.envs.environment_variables is no dict")


@functools.cache
def digest() -> str:
    """Returns the sha256 of genkern's environment variables, except the report's, and of the files that they name."""
    from genkern.engines.layers import REPORT
    from genkern.runtime.calls.configuration import named_paths

    found = hashlib.sha256()
    for name in sorted(os.environ):
        if name.startswith("GENKERN_") and name != REPORT:
            found.update(f"{name}={os.environ[name]}\0".encode())
        if name.startswith("GENKERN_CONFIG"):
            for path in map(Path, named_paths(name, os.environ[name], [])):
                found.update(hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b"-")
    return found.hexdigest()


def _linears() -> None:
    wrap(f"{_UNQUANTIZED}.apply", _apply)
    wrap(f"{_EMBEDDING}.apply", _apply)
    wrap(_LOAD_MODEL, _load)


def _fp8() -> None:
    from genkern.engines import vllm_fp8

    vllm_fp8.put()
    wrap(_LOAD_MODEL, _load)


def _apply(before: Callable[..., Any]) -> Callable[..., Any]:
    from genkern.engines.layers import MARK

    # Dynamo traces this: it sees an attribute and one operator, which chooses by M when it runs.
    @functools.wraps(before)
    def apply(self: Any, layer: Any, x: Any, bias: Any = None) -> Any:
        product = getattr(layer, MARK, None)
        if product:
            weight = layer.weight
            return product([x, weight] if bias is None else [x, weight, bias], weight.shape[0], x.dtype)
        return before(self, layer, x, bias)

    return apply


def _load(before: Callable[..., Any]) -> Callable[..., Any]:
    from genkern.engines.layers import Share

    @functools.wraps(before)
    def load_model(self: Any, *given: Any, **named: Any) -> Any:
        model = before(self, *given, **named)
        served_or_own("its search for layers", mark, lambda model: Share.of([]))(model)
        return model

    return load_model


def mark(model: Any) -> Any:
    """Switches winners on in the layers of a loaded model that have any, logs their share, and returns it."""
    from genkern.engines import layers

    return layers.mark(_ENGINE, model, layer_of)


def layer_of(module: Any) -> Any:
    """Returns a module's genkern.engines.layers.Layer; None if the module multiplies by no weight."""
    from genkern.engines import vllm_fp8

    method = getattr(module, "quant_method", None)
    if method is None:
        return None
    if getattr(module, "w13_weight", None) is not None:
        return _expert_layer(module, method)
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2 or not _multiplies(module):
        return None
    kernel = vllm_fp8.kernel_of(module)
    return _linear_layer(module, method, weight) if kernel is None else vllm_fp8.layer_of(module, kernel)


def _multiplies(module: Any) -> bool:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    # An embedding looks rows up. A head that is tied to it, and calls apply() with the embedding's module, is left to
    # vLLM.
    return isinstance(module, ParallelLMHead) or not isinstance(module, VocabParallelEmbedding)


def _linear_layer(module: Any, method: Any, weight: Any) -> Any:
    from vllm import envs
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    from genkern.engines.layers import Layer
    from genkern.engines.products import WIDE, Product

    if type(method) not in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        return Layer.of(module, None, f"genkern serves no {type(method).__name__}")
    if envs.VLLM_BATCH_INVARIANT:
        return Layer.of(module, None, "VLLM_BATCH_INVARIANT: the part for batch-invariant products serves it")
    gemm = getattr(method, "_gemm_impl", None) or utils.dispatch_unquantized_gemm()
    if gemm is not utils.default_unquantized_gemm:
        # A library that the user asked for, or ROCm's own kernels for few rows.
        return Layer.of(module, None, "vLLM multiplies it by another library (--linear-backend, or ROCm's)")
    bias = getattr(module, "bias", None) is not None and not getattr(module, "skip_bias_add", False)
    return linear_layer(module, Product(WIDE, weight, weight.dtype, weight.dtype, bias))


def linear_layer(module: Any, product: Any) -> Any:
    """Returns the Layer of a 16-bit linear layer that computes `product` (genkern.engines.products.Product).

    If genkern's operator fails, torch.nn.functional.linear computes the layer.
    """
    from dataclasses import replace

    import torch

    from genkern.engines.layers import Layer
    from genkern.engines.winner_or_own import plain_product, served_product

    found = Layer.of(module, product)
    if not found.served:
        return found
    name = f"linear layers {product.size} {product.weight.dtype}" + " with bias" * product.bias
    return replace(found, product=served_product(name, plain_product(product.op), torch.nn.functional.linear))


def _experts() -> None:
    wrap(f"{_TRITON_EXPERTS}.apply", _apply_experts)
    wrap(_LOAD_MODEL, _load)


def _expert_layer(module: Any, method: Any) -> Any:
    from genkern.engines import experts
    from genkern.engines.layers import MARK

    found = getattr(getattr(method, "moe_kernel", None), "fused_experts", None)
    # Some of vLLM's kernel objects contain a second one, TritonExperts, for small numbers of tokens.
    for kernel in (found, getattr(found, "fallback_experts", None)):
        if type(kernel) is resolved(_TRITON_EXPERTS):
            return experts.layer_in(module, kernel)
    setattr(module, MARK, False)
    why = f"its experts are {type(found or method).__name__}, not TritonExperts"
    return experts.layer_in(module, module, why)


# What the hook of experts returns if winners have written the result; vLLM's own apply() returns None.
_WRITTEN = object()


def _apply_experts(before: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces TritonExperts.apply, which runs inside vLLM's operator for a layer of experts: tracing never sees it."""
    from genkern.engines.layers import MARK

    kinds = resolved(_TRITON_EXPERTS)
    attribute = "_genkern_experts"

    @functools.wraps(before)
    def apply(self: Any, *given: Any, **named: Any) -> Any:
        # A subclass computes something else in the methods that apply() calls.
        if type(self) is not kinds or getattr(self, MARK, None) is False:
            return before(self, *given, **named)
        call = self.__dict__.get(attribute)
        if call is None:
            # One for each layer, so that a failure switches off no other layer.
            call = served_or_own(
                "a layer of experts", functools.partial(_by_winners, self), functools.partial(before, self)
            )
            self.__dict__[attribute] = call
        result = call(*given, **named)
        return None if result is _WRITTEN else result

    return apply


def _by_winners(kernel: Any, *given: Any, **named: Any) -> Any:
    """Hook: writes the layer's result if both products have winners; returns None, and writes nothing, otherwise."""
    from vllm import envs

    from genkern.engines import experts

    said = {**dict(zip(_EXPERTS, given, strict=False)), **named}
    output, w1 = said["output"], said["w1"]
    if not _is_plain(kernel, w1, said):
        return None
    narrow = w1.dtype.itemsize == 1
    found = experts.by_winners(
        said["hidden_states"],
        w1,
        said["w2"],
        said["topk_weights"],
        said["topk_ids"],
        gate_up_scale=kernel.w1_scale if narrow else None,
        down_scale=kernel.w2_scale if narrow else None,
        x_scale=said["a1q_scale"] if narrow else None,
        out_dtype=output.dtype if narrow else None,
        invariant=bool(envs.VLLM_BATCH_INVARIANT),
        # Winners write into vLLM's tensor, which saves a kernel that copies the result.
        out=output if tuple(output.shape) == tuple(said["hidden_states"].shape) else None,
    )
    if found is None:
        return None
    if found is not output:
        output.copy_(found)
    return _WRITTEN


def _is_plain(kernel: Any, w1: Any, said: dict[str, Any]) -> bool:
    """True if genkern has such a layer: gated by silu, all experts on this rank, weights without bias or LoRA."""
    biased = any(getattr(kernel, name) is not None for name in _EXTRAS)
    # Limits of the activation. Newer releases have the limit in activation_config too.
    limits = (
        kernel.quant_config.gemm1_clamp_limit,
        getattr(getattr(kernel, "activation_config", None), "clamp_limit", None),
    )
    elsewhere = said.get("expert_map") is not None or said.get("apply_router_weight_on_input")
    # vLLM 0.33 may leave the sum over experts to another kernel (post_gemm2_hook); older releases have no such hook.
    hooked = kernel._lora_context is not None or getattr(kernel, "post_gemm2_hook", None) is not None
    emulated = getattr(kernel, "quantization_emulation", False)
    if biased or limits != (None, None) or elsewhere or hooked or emulated:
        return False
    if getattr(said["activation"], "value", "") != "silu":
        return False
    if w1.dtype.itemsize == 2:
        return kernel.quant_dtype is None
    by_blocks = kernel.block_shape == [128, 128]
    by_rows = kernel.block_shape is None and kernel.per_act_token_quant and kernel.per_out_ch_quant
    is_scaled = said.get("a1q_scale") is not None and said.get("a2_scale") is None
    return w1.dtype.itemsize == 1 and w1.dtype.is_floating_point and is_scaled and (by_blocks or by_rows)


def _invariant() -> None:
    """Takes over vLLM's functions for mm, bmm and linear layers under VLLM_BATCH_INVARIANT=1.

    _apply_experts() serves experts.
    """
    from genkern.engines.invariant import take_over

    for path in _INVARIANT:
        try:
            module = resolved(path)
        except (IncompatibleEngine, ImportError):
            continue
        EngineAttribute(f"{path}.linear_batch_invariant", ("input", "weight", "bias")).verify()
        take_over(module)
        return
    raise IncompatibleEngine(f"there is neither {' nor '.join(_INVARIANT)}")
