"""SGLang: a plugin (entry point sglang.srt.plugins) by which its layers call winners; docs/engines.md says which.

Written for 0.5.23, by its HookRegistry, which applies hooks once all plugins have registered theirs.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from genkern.engines.seam import install, is_on, require

_ENGINE = "sglang"
_LAYERS = "sglang.srt.layers"
_APPLY = ("self", "layer", "x", "bias")
_BLOCK = ("weight_block_size",)
# How a layer lets SGLang multiply, with all values that it may have.
_FLAGS = {
    "cutlass_fp8_supported": (False, True),
    "use_per_token_if_dynamic": (False, True),
    "pad_output": (None, False, True),
    "compressed_tensor_quant": (False, True),
}
_SCALED = ("input", "weight", "weight_scale", "input_scale", "input_scale_ub", "bias", *_FLAGS)
_EXPERTS = (
    *("hidden_states", "w1", "w2", "topk_weights", "topk_ids", "b1", "b2", "inplace", "activation", "is_gated"),
    *("apply_router_weight_on_input", "use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16"),
    *("per_channel_quant", "w1_scale", "w2_scale", "w1_zp", "w2_zp", "a1_scale", "a2_scale", "block_shape"),
    *("no_combine", "routed_scaling_factor", "gemm1_alpha", "gemm1_limit", "filter_expert", "swiglu_limit"),
    *("gate_up_interleaved", "a1_q", "fuse_swiglu_interleaved", "defer_sum"),
)
_INVARIANT = "sglang.srt.batch_invariant_ops.batch_invariant_ops"

# Of hooks that were registered: SGLang puts two around a function where two are registered.
_registered: set[str] = set()


def register() -> None:
    """What SGLang calls in each of its processes."""
    if is_on():
        parts = {
            "16-bit linear layers": _linears,
            "fp8 linear layers": _float8,
            "experts": _experts,
            "batch-invariant products": _invariant,
        }
        install(_ENGINE, parts)


def _around(targets: Sequence[tuple[str, tuple[str, ...], Callable[..., Any]]]) -> None:
    """Register hooks around functions whose arguments begin so: all, or none. Raises Misfit."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    require(HookRegistry.register, "HookRegistry.register", ("target", "hook", "hook_type"))
    for target, parameters, _ in targets:
        owner, _, name = target.rpartition(".")
        require(getattr(_resolved(owner), name, None), target, parameters)
    for target, _, hook in targets:
        if target not in _registered:
            _registered.add(target)
            HookRegistry.register(target, hook, HookType.AROUND)


def _resolved(name: str) -> Any:
    """A module, or a class in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        module, _, attribute = name.rpartition(".")
        if not module or error.name != name:
            raise
        return getattr(importlib.import_module(module), attribute, None)


def _linears() -> None:
    from genkern.engines.called import WIDE, operator

    _find_mode()
    operator(WIDE)
    _around(
        [
            (f"{_LAYERS}.quantization.unquant.UnquantizedLinearMethod.apply", _APPLY, apply),
            ("sglang.srt.model_executor.model_runner.ModelRunner.load_model", ("self",), load_model),
        ]
    )


def apply(before: Callable[..., Any], self: Any, layer: Any, x: Any, bias: Any = None) -> Any:
    """A linear layer in 16 bits; traced: it sees an attribute, and one operator, which looks at M when it runs."""
    # In that mode SGLang's products go to what the part on it has replaced.
    if getattr(layer, "_genkern_serves", False) and not _mode.is_batch_invariant_mode_enabled():
        from genkern.engines.called import OPERATORS, WIDE

        return OPERATORS[WIDE](x, layer.weight, bias)
    return before(self, layer, x, bias)


def load_model(before: Callable[..., Any], self: Any, *given: Any, **named: Any) -> Any:
    """Mark what is served once the model is there."""
    found = before(self, *given, **named)
    mark(self.model)
    return found


def mark(model: Any) -> Any:
    """Mark the layers of a loaded model that winners serve, and log their share."""
    from genkern.engines import layers

    return layers.mark(_ENGINE, model, layer_of)


def layer_of(module: Any) -> Any:
    """What a module multiplies by, as genkern.engines.layers has it; None of a module without weights of products."""
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from genkern.engines import experts
    from genkern.engines.layers import Layer

    method = getattr(module, "quant_method", None)
    if method is None or (type(module) is VocabParallelEmbedding):
        return None
    if getattr(module, "w13_weight", None) is not None:
        return Layer.of(module, None, experts.tuned_in(module))
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2:
        return None
    return Layer.of(module, _product(module, method, weight))


def _product(module: Any, method: Any, weight: Any) -> Any:
    """What genkern would compute of a layer; None of one that it does not know."""
    import torch
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    from genkern.engines.called import IN_BLOCKS, SCALED, WIDE, Product

    if type(method) is UnquantizedLinearMethod:
        bias = getattr(module, "bias", None) is not None and not getattr(module, "skip_bias_add", False)
        # An explicit --bf16-gemm-backend is what the user asked for.
        return None if _has_backend() else Product(WIDE, weight, weight.dtype, weight.dtype, bias)
    if weight.dtype not in (torch.float8_e4m3fn, torch.float8_e4m3fnuz):
        return None
    out = getattr(module, "orig_dtype", None) or getattr(module, "params_dtype", None)
    out = out if out in (torch.bfloat16, torch.float16) else torch.bfloat16
    if getattr(module, "weight_scale_inv", None) is not None:
        _serves(weight, weight, out, "")
        return Product(IN_BLOCKS, weight, weight.dtype, out)
    scale = getattr(module, "weight_scale", None)
    if scale is None:
        return None
    # SGLang keeps it as [K, N], column by column.
    scales = "per_tensor" if scale.numel() == 1 else "per_token"
    _serves(weight, weight.t(), out, scales)
    own = (("scales", scales),)
    return Product(SCALED, weight.t(), weight.dtype, out, own=own)


def _has_backend() -> bool:
    from sglang.srt.layers.quantization.unquant import get_bf16_gemm_backend

    backend = get_bf16_gemm_backend()
    return bool(backend.is_cutedsl() or backend.is_gemv())


def _float8() -> None:
    from genkern.engines.called import SCALED
    from genkern.engines.choice import opaque, quantised_or

    _find_mode()
    library = _utils().apply_fp8_linear
    library = getattr(library, "__wrapped__", library)
    require(library, "apply_fp8_linear", _SCALED)
    said = inspect.signature(library).parameters
    _usual.update({name: said[name].default for name in _FLAGS})

    def own(flags: Sequence[Any]) -> Callable[..., Any]:
        named = dict(zip(_FLAGS, flags, strict=True))
        return lambda x, weight, scale, bias, *input_scale: library(
            x, weight.t(), scale, *(input_scale or (None,)), None, bias, **named
        )

    fields = {"accumulate": "fast"}
    # All of them now: none can be made while a layer is traced.
    for flags in itertools.product(*_FLAGS.values()):
        dynamic = quantised_or(own(flags), SCALED, lambda x: _token_quant()(x), fields)
        static = quantised_or(
            own(flags), SCALED, lambda x, scale: _static_quant()(x, scale, repeat_scale=False), fields
        )
        for name, call in (("dynamic", dynamic), ("static", static)):
            with_bias = f"{name} with bias"
            _scaled.update({(name, *flags): opaque(_with_bias(call)), (with_bias, *flags): opaque(call)})
    utils = f"{_LAYERS}.quantization.fp8_utils"
    _around(
        [
            (f"{utils}.dispatch_w8a8_block_fp8_linear", _BLOCK, block_linear),
            (f"{utils}.apply_fp8_linear", _SCALED, scaled_linear),
        ]
    )


# Products with a scale for each row, or one for all, by whether these are quantised by what a call gives, and by flags.
_scaled: dict[tuple[Any, ...], Callable[..., Any]] = {}
# Flags of a call that does not say them.
_usual: dict[str, Any] = {}


def _with_bias(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same of tensors without a bias."""
    return lambda x, weight, scale, *more: call(x, weight, scale, None, *more)


def block_linear(before: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What SGLang chooses for layers with scales of blocks, and winners before it."""
    from genkern.engines.called import IN_BLOCKS
    from genkern.engines.choice import opaque, quantised_or

    library = before(*given, **named)

    def quantised(x: Any) -> Any:
        return _group_quant()(x, 128, column_major_scales=True)

    def own(x: Any, weight: Any, scale: Any, bias: Any) -> Any:
        return library(x, weight, [128, 128], scale, None, None)

    product = opaque(_with_bias(quantised_or(own, IN_BLOCKS, quantised, {})))

    def linear(
        input: Any,
        weight: Any,
        block_size: Any,
        weight_scale: Any,
        input_scale: Any = None,
        bias: Any = None,
        **more: Any,
    ) -> Any:
        is_plain = (
            list(block_size) == [128, 128] and weight_scale.dtype.itemsize == 4 and weight_scale.is_floating_point()
        )
        wide = input_scale is None and input.dtype.itemsize == 2
        if not (is_plain and wide and _serves(weight, weight, input.dtype, "")):
            return library(input, weight, block_size, weight_scale, input_scale, bias, **more)
        out = product([input.view(-1, input.shape[-1]), weight, weight_scale], weight.shape[0], input.dtype)
        out = out if bias is None else out + bias
        return out.view(*input.shape[:-1], weight.shape[0])

    return linear


def scaled_linear(
    before: Callable[..., Any],
    input: Any,
    weight: Any,
    weight_scale: Any,
    input_scale: Any = None,
    input_scale_ub: Any = None,
    bias: Any = None,
    *more: Any,
    **named: Any,
) -> Any:
    """Layers with a scale for each row and column, or one for all of both.

    At an M without a winner SGLang is called with their own flags; what else a call may say is SGLang's.
    """
    flags = {**_usual, **dict(zip(_FLAGS, more, strict=False)), **named}
    n = weight.shape[1]
    dynamic = input_scale is None and weight_scale.numel() == n and n > 1
    static = input_scale is not None and input_scale.numel() == weight_scale.numel() == 1
    scales = "per_token" if dynamic else "per_tensor"
    known = (dynamic or static) and input.dtype.itemsize == 2 and input_scale_ub is None
    name = ("dynamic" if dynamic else "static") + " with bias" * (bias is not None)
    product = _scaled.get((name, *flags.values())) if len(more) <= len(_FLAGS) else None
    # With one scale for all of x, which it looks for in x.
    if dynamic and flags["compressed_tensor_quant"] and not flags["use_per_token_if_dynamic"]:
        product = None
    if not (known and product is not None and _serves(weight, weight.t(), input.dtype, scales)):
        return before(input, weight, weight_scale, input_scale, input_scale_ub, bias, *more, **named)
    scales_of_x = [] if dynamic else [input_scale]
    more_tensors = [weight_scale, *([] if bias is None else [bias]), *scales_of_x]
    out = product([input.view(-1, input.shape[-1]), weight.t(), *more_tensors], n, input.dtype)
    return out.view(*input.shape[:-1], n)


_known: dict[tuple[object, ...], bool] = {}


def _serves(weight: Any, as_stored: Any, out: Any, scales: str) -> bool:
    """Whether a layer's weight [N, K] has winners: found when its model is loaded, else at its first call; never while
    that is traced, which cannot look for it.
    """
    import torch

    from genkern.engines.called import IN_BLOCKS, SCALED, Product

    key = tuple(as_stored.shape), weight.dtype, out, scales, weight.device
    if _mode.is_batch_invariant_mode_enabled():
        return False
    if torch.compiler.is_compiling():
        return _known.get(key, False)
    if key not in _known:
        own = (("scales", scales),) if scales else ()
        _known[key] = bool(Product(SCALED if scales else IN_BLOCKS, as_stored, weight.dtype, out, own=own).tuned())
    return _known[key]


def _utils() -> Any:
    return importlib.import_module(f"{_LAYERS}.quantization.fp8_utils")


def _group_quant() -> Callable[..., Any]:
    found: Callable[..., Any] = _utils().per_token_group_quant_fp8
    return found


def _token_quant() -> Callable[..., Any]:
    found: Callable[..., Any] = _utils().sglang_per_token_quant_fp8
    return found


def _static_quant() -> Callable[..., Any]:
    found: Callable[..., Any] = _utils().static_quant_fp8
    return found


def _experts() -> None:
    _find_mode()
    place = f"{_LAYERS}.moe.moe_runner.triton_utils.fused_moe.fused_experts_impl"
    _around([(place, _EXPERTS, fused_experts)])


def fused_experts(before: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Within SGLang's operator for a layer of experts, which tracing does not look into."""
    said = {**dict(zip(_EXPERTS, given, strict=False)), **named}
    if not _is_plain(said):
        return before(*given, **named)
    from genkern.engines import experts

    x = said["hidden_states"]
    names = "hidden_states", "w1", "w2", "topk_weights", "topk_ids"
    scales = (said["w1_scale"], said["w2_scale"]) if said.get("use_fp8_w8a8") else (None, None)
    found = experts.by_winners(
        *(said[name] for name in names), *scales, invariant=bool(_mode.is_batch_invariant_mode_enabled())
    )
    if found is None:
        return before(*given, **named)
    if (factor := said.get("routed_scaling_factor")) not in (None, 1.0):
        found.mul_(factor)
    return x.copy_(found) if said.get("inplace") else found


def _is_plain(said: dict[str, Any]) -> bool:
    """Whether a layer is of the kind that genkern has: gated by silu, all experts here, scales of blocks or none."""
    others = "b1", "b2", "w1_zp", "w2_zp", "a1_scale", "a2_scale", "a1_q"
    limits = "gemm1_alpha", "gemm1_limit", "swiglu_limit"
    kinds = "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16"
    more = "apply_router_weight_on_input", "no_combine", "fuse_swiglu_interleaved", "defer_sum"
    if any(said.get(name) is not None for name in (*others, *limits)) or any(
        said.get(each) for each in (*kinds, *more)
    ):
        return False
    gated = said.get("is_gated", True) and said.get("activation", "silu") == "silu"
    # Of experts that are elsewhere the rows are left out.
    if not gated or said.get("filter_expert", True):
        return False
    if not said.get("use_fp8_w8a8"):
        return bool(said["w1"].dtype.itemsize == 2)
    by_blocks = list(said.get("block_shape") or ()) == [128, 128]
    return by_blocks or (said.get("block_shape") is None and bool(said.get("per_channel_quant")))


# SGLang's module with the mode of equal bits; traced code reads it.
_mode: Any = None


def _find_mode() -> None:
    global _mode
    _mode = importlib.import_module(_INVARIANT)
    require(_mode.is_batch_invariant_mode_enabled, "is_batch_invariant_mode_enabled", ())


def _invariant() -> None:
    """What SGLang's --enable-deterministic-inference sends to batch_invariant_ops."""
    from genkern.engines.invariant import take_over

    module = importlib.import_module(_INVARIANT)
    require(module.enable_batch_invariant_mode, "enable_batch_invariant_mode", ())
    take_over(module)
