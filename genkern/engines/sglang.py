"""SGLang: a plugin (entry point sglang.srt.plugins) by which its layers call winners. docs/engines.md lists the layers.

Hooks are added to SGLang's HookRegistry, which applies them when all plugins have registered. `parts` declares
everything of SGLang that the plugin uses.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from genkern.engines.hooks import EngineAttribute, PluginPart, install, is_on, served_or_own, unhooked

_ENGINE = "sglang"
_LAYERS = "sglang.srt.layers"
_APPLY = ("self", "layer", "x", "bias")
# Arguments of apply_fp8_linear by which a layer chooses how SGLang multiplies, with all values of each.
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
    *("no_combine", "routed_scaling_factor"),
)
# Arguments of fused_experts_impl that genkern supports. All other arguments must have their defaults.
_FOLLOWED = (
    *("hidden_states", "w1", "w2", "topk_weights", "topk_ids", "inplace", "activation", "is_gated", "use_fp8_w8a8"),
    *("per_channel_quant", "w1_scale", "w2_scale", "block_shape", "routed_scaling_factor", "filter_expert"),
    # Only matters with a limit of the activation. The limit is another argument, which must have its default.
    "gate_up_interleaved",
)
_UNQUANT, _FP8 = f"{_LAYERS}.quantization.unquant", f"{_LAYERS}.quantization.fp8_utils"
_FUSED_EXPERTS = f"{_LAYERS}.moe.moe_runner.triton_utils.fused_moe.fused_experts_impl"
_LOAD_MODEL = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
_INVARIANT = "sglang.srt.batch_invariant_ops.batch_invariant_ops"

# Paths of functions that already have a genkern hook. If a hook were registered twice, SGLang would apply it twice.
_registered: set[str] = set()


def register() -> None:
    """Installs the plugin in this process of SGLang. Never raises."""
    if is_on():
        install(_ENGINE, parts())


def parts() -> tuple[PluginPart, ...]:
    """Returns the parts of the plugin, with everything of SGLang that each touches."""
    registry = "sglang.srt.plugins.hook_registry"
    common = (
        EngineAttribute(f"{registry}.HookRegistry.register", ("target", "hook", "hook_type")),
        EngineAttribute(f"{registry}.HookType", fields=("AROUND",)),
        EngineAttribute(f"{_INVARIANT}.is_batch_invariant_mode_enabled", ()),
    )
    load_model = EngineAttribute(_LOAD_MODEL, ("self",))
    linears = (
        EngineAttribute(f"{_UNQUANT}.UnquantizedLinearMethod.apply", _APPLY),
        EngineAttribute(f"{_UNQUANT}.get_bf16_gemm_backend", ()),
        EngineAttribute(f"{_UNQUANT}.Bf16GemmBackend", fields=("is_cutedsl", "is_gemv")),
        EngineAttribute(f"{_LAYERS}.vocab_parallel_embedding.VocabParallelEmbedding"),
    )
    # The functions that quantise x exist only on GPUs, so they are not checked here: the first call looks them up, and
    # SGLang's own code computes if they are missing.
    float8 = (
        EngineAttribute(f"{_FP8}.dispatch_w8a8_block_fp8_linear"),
        EngineAttribute(f"{_FP8}.apply_fp8_linear", _SCALED),
    )
    return (
        PluginPart("16-bit linear layers", (*common, load_model, *linears), _linears),
        PluginPart("fp8 linear layers", (*common, load_model, *float8), _float8),
        PluginPart("experts", (*common, load_model, EngineAttribute(_FUSED_EXPERTS, _EXPERTS)), _experts),
        PluginPart(
            "batch-invariant products",
            (*common, EngineAttribute(f"{_INVARIANT}.enable_batch_invariant_mode")),
            _invariant,
        ),
    )


def _around(hooks: Mapping[str, Callable[..., Any]]) -> None:
    """Registers each hook around the function at its path, unless it is registered already."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in hooks.items():
        if target not in _registered:
            _registered.add(target)
            HookRegistry.register(target, hook, HookType.AROUND)


def _linears() -> None:
    _find_mode()
    _around({f"{_UNQUANT}.UnquantizedLinearMethod.apply": apply, _LOAD_MODEL: load_model})


def apply(before: Callable[..., Any], self: Any, layer: Any, x: Any, bias: Any = None) -> Any:
    """Computes a 16-bit linear layer. Tracing sees an attribute and one operator, which chooses by M at run time."""
    product = getattr(layer, "_genkern_product", None)
    # In batch-invariant mode SGLang's products go to the functions that `_invariant` has replaced.
    if product and not _mode.is_batch_invariant_mode_enabled():
        weight = layer.weight
        return product([x, weight] if bias is None else [x, weight, bias], weight.shape[0], x.dtype)
    return before(self, layer, x, bias)


def load_model(before: Callable[..., Any], self: Any, *given: Any, **named: Any) -> Any:
    """Loads the model as SGLang does, then switches winners on in its layers."""
    found = before(self, *given, **named)
    served_or_own("its search for layers", lambda runner: mark(runner.model), lambda runner: None)(self)
    return found


def mark(model: Any) -> Any:
    """Switches winners on in the layers of a loaded model that have any, logs their share, and returns it."""
    from genkern.engines import layers

    return layers.mark(_ENGINE, model, layer_of)


def layer_of(module: Any) -> Any:
    """Returns a module's genkern.engines.layers.Layer; None if the module multiplies by no weight."""
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    from genkern.engines import experts
    from genkern.engines.layers import Layer

    method = getattr(module, "quant_method", None)
    if method is None or (type(module) is VocabParallelEmbedding):
        return None
    if getattr(module, "w13_weight", None) is not None:
        return experts.layer_in(module, module)
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 2:
        return None
    product, why = _product(module, method, weight)
    if product is None or product.op != _wide():
        return Layer.of(module, product, why)
    from genkern.engines.vllm import linear_layer

    return linear_layer(module, product)


def _wide() -> str:
    from genkern.engines.products import WIDE

    return WIDE


def _product(module: Any, method: Any, weight: Any) -> tuple[Any, str]:
    """Returns a layer's product and NO_WINNER, or None and the reason why SGLang computes the layer."""
    import torch
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    from genkern.engines.layers import NO_WINNER
    from genkern.engines.products import IN_BLOCKS, SCALED, WIDE, Product

    if type(method) is UnquantizedLinearMethod:
        if _has_backend():
            return None, "--bf16-gemm-backend names a library"
        bias = getattr(module, "bias", None) is not None and not getattr(module, "skip_bias_add", False)
        return Product(WIDE, weight, weight.dtype, weight.dtype, bias), NO_WINNER
    unknown = None, f"genkern serves no {type(method).__name__}"
    if weight.dtype not in (torch.float8_e4m3fn, torch.float8_e4m3fnuz):
        return unknown
    out = getattr(module, "orig_dtype", None) or getattr(module, "params_dtype", None)
    out = out if out in (torch.bfloat16, torch.float16) else torch.bfloat16
    if getattr(module, "weight_scale_inv", None) is not None:
        _serves(weight, weight, out, "")
        return Product(IN_BLOCKS, weight, weight.dtype, out), NO_WINNER
    scale = getattr(module, "weight_scale", None)
    if scale is None:
        return unknown
    # SGLang stores the weight as [K, N], column-major.
    scales = "per_tensor" if scale.numel() == 1 else "per_token"
    _serves(weight, weight.t(), out, scales)
    return Product(SCALED, weight.t(), weight.dtype, out, own=(("scales", scales),)), NO_WINNER


def _has_backend() -> bool:
    from sglang.srt.layers.quantization.unquant import get_bf16_gemm_backend

    backend = get_bf16_gemm_backend()
    return bool(backend.is_cutedsl() or backend.is_gemv())


def _float8() -> None:
    from genkern.engines.products import SCALED
    from genkern.engines.winner_or_own import quantised_product, served_product

    _find_mode()
    library = _utils().apply_fp8_linear
    library = getattr(library, "__wrapped__", library)
    said = inspect.signature(library).parameters
    _usual.update({name: said[name].default for name in _FLAGS})

    def own(flags: Sequence[Any]) -> Callable[..., Any]:
        named = dict(zip(_FLAGS, flags, strict=True))
        return lambda x, weight, scale, bias, *input_scale: library(
            x, weight.t(), scale, *(input_scale or (None,)), None, bias, **named
        )

    fields = {"accumulate": "fast"}
    hooks = {
        "dynamic": quantised_product(SCALED, lambda x: _token_quant()(x), fields),
        "static": quantised_product(SCALED, lambda x, scale: _static_quant()(x, scale, repeat_scale=False), fields),
    }
    # All operators are made now, because none can be made while a layer is traced.
    for flags, (kind, hook) in itertools.product(itertools.product(*_FLAGS.values()), hooks.items()):
        for name, adapt in ((kind, _with_bias), (f"{kind} with bias", lambda call: call)):
            key = (name, *flags)
            _scaled[key] = served_product(f"fp8 linear layers, {name}, {flags}", adapt(hook), adapt(own(flags)))
    _around({f"{_FP8}.dispatch_w8a8_block_fp8_linear": block_linear, f"{_FP8}.apply_fp8_linear": scaled_linear})
    _around({_LOAD_MODEL: load_model})


# Operators, by the quantisation of x with or without bias, and the flags.
_scaled: dict[tuple[Any, ...], Callable[..., Any]] = {}
# Default values of the flags.
_usual: dict[str, Any] = {}


def _with_bias(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function without the parameter `bias`, which calls `call` with None for it."""
    return lambda x, weight, scale, *more: call(x, weight, scale, None, *more)


def block_linear(before: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Returns SGLang's function for layers with scales of blocks, wrapped so that winners are tried first."""
    library = before(*given, **named)
    return served_or_own("its hook of layers in fp8 blocks", _block_linear, lambda library: library)(library)


def _block_linear(library: Callable[..., Any]) -> Callable[..., Any]:
    from genkern.engines.products import IN_BLOCKS
    from genkern.engines.winner_or_own import quantised_product, served_product

    def quantise(x: Any) -> Any:
        return _group_quant()(x, 128, column_major_scales=True)

    def own(x: Any, weight: Any, scale: Any) -> Any:
        return library(x, weight, [128, 128], scale, None, None)

    # SGLang may choose several functions in one process, and each needs its own name.
    _block_libraries.append(library)
    name = f"fp8 linear layers in blocks, {len(_block_libraries)}"
    product = served_product(name, _with_bias(quantised_product(IN_BLOCKS, quantise, {})), own)

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


_block_libraries: list[Callable[..., Any]] = []


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
    """Computes an fp8 linear layer with scales of rows and columns, or with one scale for each operand.

    SGLang's own function, with the call's flags, serves an M without a winner and calls with other arguments.
    """
    flags = {**_usual, **dict(zip(_FLAGS, more, strict=False)), **named}
    n = weight.shape[1]
    dynamic = input_scale is None and weight_scale.numel() == n and n > 1
    static = input_scale is not None and input_scale.numel() == weight_scale.numel() == 1
    scales = "per_token" if dynamic else "per_tensor"
    known = (dynamic or static) and input.dtype.itemsize == 2 and input_scale_ub is None
    name = ("dynamic" if dynamic else "static") + " with bias" * (bias is not None)
    product = _scaled.get((name, *flags.values())) if len(more) <= len(_FLAGS) else None
    # With these flags SGLang computes one scale for all of x from x.
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
    """Returns whether a layer's weight [N, K] has winners; False in batch-invariant mode.

    Winners are looked up when the model is loaded or at the layer's first call. Tracing cannot look them up: there, a
    weight that was not looked up before counts as one without winners.
    """
    import torch

    key = tuple(as_stored.shape), weight.dtype, out, scales, weight.device
    if _mode.is_batch_invariant_mode_enabled():
        return False
    if torch.compiler.is_compiling():
        return _known.get(key, False)
    if key not in _known:
        find = served_or_own("its search for winners", _find_winners, lambda *given: False)
        _known[key] = find(weight, as_stored, out, scales)
    return _known[key]


def _find_winners(weight: Any, as_stored: Any, out: Any, scales: str) -> bool:
    from genkern.engines.layers import is_skipped
    from genkern.engines.products import IN_BLOCKS, SCALED, Product

    own = (("scales", scales),) if scales else ()
    product = Product(SCALED if scales else IN_BLOCKS, as_stored, weight.dtype, out, own=own)
    return bool(product.tuned()) and not is_skipped("", product.size)


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
    _around({_FUSED_EXPERTS: fused_experts, _LOAD_MODEL: load_model})


# One function for each shape and type of weights, so that a failure does not switch off layers with other weights.
_expert_calls: dict[tuple[object, ...], Callable[..., Any]] = {}


def fused_experts(before: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Computes a layer of experts. It runs inside SGLang's operator for the layer, so tracing never sees it."""
    weight = named.get("w1", given[1] if len(given) > 1 else None)
    key = getattr(weight, "shape", None), getattr(weight, "dtype", None)
    if key not in _expert_calls:
        own = lambda before, *given, **named: before(*given, **named)  # noqa: E731
        _expert_calls[key] = served_or_own("a layer of experts", _by_winners, own)
    return _expert_calls[key](before, *given, **named)


def _by_winners(before: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Hook: returns the layer's result; None if a product has no winner, or an argument is not supported."""
    usual = _defaults(before)
    said = {**usual, **dict(zip(usual, given, strict=False)), **named}
    if any(_differs(said[name], usual[name]) for name in set(said) - {*_FOLLOWED}):
        return None
    if not _is_plain(said):
        return None
    from genkern.engines import experts
    from genkern.engines.layers import is_skipped, size_of

    if is_skipped("", size_of(said["w1"])):
        return None
    x = said["hidden_states"]
    names = "hidden_states", "w1", "w2", "topk_weights", "topk_ids"
    scales = (said["w1_scale"], said["w2_scale"]) if said["use_fp8_w8a8"] else (None, None)
    found = experts.by_winners(
        *(said[name] for name in names), *scales, invariant=bool(_mode.is_batch_invariant_mode_enabled())
    )
    if found is None:
        return None
    if (factor := said["routed_scaling_factor"]) not in (None, 1.0):
        found.mul_(factor)
    return x.copy_(found) if said["inplace"] else found


@functools.lru_cache(maxsize=16)
def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: each.default for name, each in inspect.signature(unhooked(function)).parameters.items()}


def _differs(value: Any, usual: Any) -> bool:
    return value is not usual and not (isinstance(value, (bool, int, float, str)) and value == usual)


def _is_plain(said: dict[str, Any]) -> bool:
    """True if genkern has such a layer: gated by silu, all experts on this rank, scales of blocks, rows or none."""
    # filter_expert leaves rows of experts on other ranks out of the sum, which genkern does not do.
    if not said["is_gated"] or said["activation"] != "silu" or said.get("filter_expert", True):
        return False
    if not said["use_fp8_w8a8"]:
        return bool(said["w1"].dtype.itemsize == 2)
    by_blocks = list(said["block_shape"] or ()) == [128, 128]
    return by_blocks or (said["block_shape"] is None and bool(said["per_channel_quant"]))


# SGLang's module with the batch-invariant mode. Traced code reads it.
_mode: Any = None


def _find_mode() -> None:
    global _mode
    _mode = importlib.import_module(_INVARIANT)


def _invariant() -> None:
    """Replaces the functions of batch_invariant_ops that SGLang calls with --enable-deterministic-inference."""
    from genkern.engines.invariant import take_over

    take_over(importlib.import_module(_INVARIANT))
