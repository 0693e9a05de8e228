"""vLLM: a plugin (entry point vllm.general_plugins) by which its layers call winners; docs/engines.md says which.

Written for 0.33. In every process of vLLM `register` runs, more than once: it is idempotent, touches no GPU, and does
nothing where no bundle is named. All ranks load the same files, so all have the same kernels.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genkern.engines.seam import Misfit, Seam, install, is_on, put, require

_ENGINE = "vllm"
_APPLY = ("self", "layer", "x", "bias")
_LOAD = ("self", "vllm_config", "model_config")
_EXPERTS = (
    *("output", "hidden_states", "w1", "w2", "topk_weights", "topk_ids", "activation", "global_num_experts"),
    *("expert_map", "a1q_scale", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta"),
    "apply_router_weight_on_input",
)
# By which vLLM's compiled programs hang on the bundle: it looks them up by all variables that it knows.
_VARIABLE = "VLLM_GENKERN_BUNDLES"


def register() -> None:
    """What vLLM calls in each of its processes."""
    if is_on():
        from genkern.engines import vllm_fp8

        parts = {
            "compiled programs' keys": _key,
            "16-bit linear layers": _linears,
            "fp8 linear layers": vllm_fp8.kernels,
            "experts": _experts,
            "batch-invariant products": _invariant,
        }
        install(_ENGINE, parts)


def _key() -> None:
    """Programs that vLLM compiled with another bundle, or with none, are other programs."""
    from vllm import envs

    if not isinstance(getattr(envs, "environment_variables", None), dict):
        raise Misfit("vllm.envs.environment_variables is no dict")
    require(getattr(envs, "compile_factors", None), "vllm.envs.compile_factors", ())
    envs.environment_variables.setdefault(_VARIABLE, digest)


@functools.cache
def digest() -> str:
    """Of the files that the environment names, and their names."""
    from genkern.runtime.process.configuration import named_paths

    found = hashlib.sha256()
    for name in sorted(os.environ):
        if name.startswith("GENKERN_"):
            found.update(f"{name}={os.environ[name]}\0".encode())
        if name.startswith("GENKERN_CONFIG"):
            for path in map(Path, named_paths(name, os.environ[name], [])):
                found.update(hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b"-")
    return found.hexdigest()


def _linears() -> None:
    from vllm.model_executor.layers import linear, vocab_parallel_embedding
    from vllm.model_executor.model_loader import base_loader

    put(
        [
            Seam(linear.UnquantizedLinearMethod, "apply", _APPLY, _apply),
            Seam(vocab_parallel_embedding.UnquantizedEmbeddingMethod, "apply", _APPLY, _apply),
            Seam(base_loader.BaseModelLoader, "load_model", _LOAD, _load),
        ]
    )


def _apply(before: Callable[..., Any]) -> Callable[..., Any]:
    from genkern.engines.called import WIDE, operator
    from genkern.engines.layers import MARK

    product = operator(WIDE)

    # Traced by Dynamo: it sees an attribute, and one operator, which looks at M when it runs.
    @functools.wraps(before)
    def apply(self: Any, layer: Any, x: Any, bias: Any = None) -> Any:
        if getattr(layer, MARK, False):
            return product(x, layer.weight, bias)
        return before(self, layer, x, bias)

    return apply


def _load(before: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(before)
    def load_model(self: Any, *given: Any, **named: Any) -> Any:
        model = before(self, *given, **named)
        mark(model)
        return model

    return load_model


def mark(model: Any) -> Any:
    """Mark the layers of a loaded model that winners serve, and log their share."""
    from genkern.engines import layers

    return layers.mark(_ENGINE, model, layer_of)


def layer_of(module: Any) -> Any:
    """What a module multiplies by, as genkern.engines.layers has it; None of a module without weights of products."""
    from genkern.engines import experts
    from genkern.engines.layers import Layer

    method = getattr(module, "quant_method", None)
    if method is None:
        return None
    if getattr(module, "w13_weight", None) is not None:
        return Layer.of(module, None, experts.tuned_in(module))
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2 or not _multiplies(module):
        return None
    kernel = getattr(method, "fp8_linear", None) or getattr(getattr(module, "scheme", None), "fp8_linear", None)
    if kernel is not None:
        # vLLM has chosen it while it made the layer.
        return Layer.of(module, None, tuple(getattr(kernel, "genkern_tuned", ())))
    return Layer.of(module, None, _linear_tuned(module, method, weight))


def _multiplies(module: Any) -> bool:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    # An embedding looks rows up; it is the head too where both are tied, which calls apply() of its own module then.
    return isinstance(module, ParallelLMHead) or not isinstance(module, VocabParallelEmbedding)


def _linear_tuned(module: Any, method: Any, weight: Any) -> tuple[int, ...]:
    from vllm import envs
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    from genkern.engines.called import WIDE, Product

    # With this switch vLLM calls what the part on batch invariance has replaced.
    if type(method) not in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod) or envs.VLLM_BATCH_INVARIANT:
        return ()
    # Another is a library that the user asked for, or ROCm's own kernels for few rows.
    usual = utils.default_unquantized_gemm
    if getattr(method, "_gemm_impl", usual) is not usual:
        return ()
    bias = getattr(module, "bias", None) is not None and not getattr(module, "skip_bias_add", False)
    return Product(WIDE, weight, weight.dtype, weight.dtype, bias).tuned()


def _experts() -> None:
    from vllm.model_executor.layers.fused_moe import modular_kernel
    from vllm.model_executor.layers.fused_moe.experts import triton_moe

    require(modular_kernel.FusedMoEExperts.process_weights_after_loading, "process_weights_after_loading", ("self",))
    put([Seam(triton_moe.TritonExperts, "apply", ("self", *_EXPERTS), _apply_experts)])


def _apply_experts(before: Callable[..., Any]) -> Callable[..., Any]:
    """Within vLLM's operator for a layer of experts, which tracing does not look into."""

    @functools.wraps(before)
    def apply(self: Any, *given: Any, **named: Any) -> Any:
        from vllm import envs

        from genkern.engines import experts

        said = {**dict(zip(_EXPERTS, given, strict=False)), **named}
        output, w1 = said["output"], said["w1"]
        if _is_plain(self, w1, said):
            narrow = w1.dtype.itemsize == 1
            found = experts.by_winners(
                said["hidden_states"],
                w1,
                said["w2"],
                said["topk_weights"],
                said["topk_ids"],
                gate_up_scale=self.w1_scale if narrow else None,
                down_scale=self.w2_scale if narrow else None,
                x_scale=said["a1q_scale"] if narrow else None,
                out_dtype=output.dtype if narrow else None,
                invariant=bool(envs.VLLM_BATCH_INVARIANT),
            )
            if found is not None:
                output.copy_(found)
                return None
        return before(self, *given, **named)

    return apply


def _is_plain(kernel: Any, w1: Any, said: dict[str, Any]) -> bool:
    """Whether genkern has such a layer: gated by silu, all experts here, weights without bias or LoRA."""
    biased = any(getattr(kernel, name, None) is not None for name in ("w1_bias", "w2_bias", "w1_zp", "w2_zp"))
    limited = getattr(getattr(kernel, "activation_config", None), "clamp_limit", None) is not None
    elsewhere = said.get("expert_map") is not None or said.get("apply_router_weight_on_input")
    # The experts' sum may be left open for a kernel behind it.
    hooked = getattr(kernel, "_lora_context", None) is not None or kernel._uses_post_gemm2_hook(w1.shape[0])
    if biased or limited or elsewhere or hooked or getattr(said["activation"], "value", "") != "silu":
        return False
    if w1.dtype.itemsize == 2:
        return kernel.quant_dtype is None
    by_blocks = kernel.block_shape == [128, 128]
    by_rows = kernel.block_shape is None and kernel.per_act_token_quant and kernel.per_out_ch_quant
    is_scaled = said.get("a1q_scale") is not None and said.get("a2_scale") is None
    return w1.dtype.itemsize == 1 and w1.dtype.is_floating_point and is_scaled and (by_blocks or by_rows)


def _invariant() -> None:
    """What VLLM_BATCH_INVARIANT=1 sends to a kernel of vLLM's own: mm, bmm and linear layers (experts: above)."""
    from vllm.model_executor.determinism import batch_invariant

    from genkern.engines.invariant import take_over

    require(batch_invariant.linear_batch_invariant, "linear_batch_invariant", ("input", "weight", "bias"))
    take_over(batch_invariant)
