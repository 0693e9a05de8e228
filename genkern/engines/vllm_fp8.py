"""vLLM's fp8 linear layers: vLLM's own kernel objects call winners, and compute the product if there is none."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from genkern.engines.hooks import EngineAttribute, IncompatibleEngine, resolved, wrap

_KERNELS = "vllm.model_executor.kernels.linear"
_SCALED, _BLOCKS = "apply_scaled_mm", "apply_block_scaled_mm"
_SCALED_OPERANDS = ("self", "A", "B", "out_dtype", "As", "Bs", "bias", "output_shape")
_BLOCK_OPERANDS = ("self", "A", "B", "As", "Bs")
# vLLM's kernels that keep weights as [N, K], and the method that multiplies. The last kernel quantises x itself.
_HOOKED = {
    "CutlassFP8ScaledMMLinearKernel": _SCALED,
    "PerTensorTorchFP8ScaledMMLinearKernel": _SCALED,
    "ChannelWiseTorchFP8ScaledMMLinearKernel": _SCALED,
    "DeepGemmFp8BlockScaledMMKernel": _BLOCKS,
    "CutlassFp8BlockScaledMMKernel": _BLOCKS,
    "TritonFp8BlockScaledMMKernel": _BLOCKS,
    "FlashInferFp8DeepGEMMDynamicBlockScaledKernel": _BLOCKS,
}
_QUANT = "vllm.model_executor.layers.quantization.utils"
_KEYS = f"{_QUANT}.quant_utils"
_GROUP = "is_per_tensor", "is_per_token", "is_per_channel", "is_per_group"
_BLOCK = 128
# Attribute of a kernel object: the weight's only scale, repeated for each of the N columns.
_COLUMNS = "_genkern_columns"

TOUCHES = (
    *(
        EngineAttribute(f"{_KERNELS}.{name}.{method}", _SCALED_OPERANDS if method == _SCALED else _BLOCK_OPERANDS)
        for name, method in _HOOKED.items()
    ),
    EngineAttribute(f"{_KERNELS}.FP8ScaledMMLinearKernel", fields=("quant_fp8", "config")),
    EngineAttribute(f"{_KERNELS}.FP8ScaledMMLinearKernel._get_layer_params", ("self", "layer")),
    EngineAttribute(f"{_KERNELS}.Fp8BlockScaledMMLinearKernel", fields=("quant_fp8", "config", "apply_input_quant")),
    EngineAttribute(f"{_KERNELS}.Fp8BlockScaledMMLinearKernel._get_layer_params", ("self", "layer")),
    EngineAttribute(
        f"{_KERNELS}.FP8ScaledMMLinearLayerConfig",
        fields=("weight_quant_key", "activation_quant_key", "weight_shape", "out_dtype"),
    ),
    EngineAttribute(
        f"{_KERNELS}.scaled_mm.BlockScaledMMLinearKernel.FP8BlockParams",
        fields=("weight", "weight_scale_inv", "weight_scale"),
    ),
    EngineAttribute(f"{_KEYS}.GroupShape", fields=_GROUP),
    EngineAttribute(f"{_KEYS}.ScaleDesc", fields=("static", "group_shape")),
    EngineAttribute(f"{_KEYS}.QuantKey", fields=("dtype", "scale")),
    EngineAttribute("vllm.model_executor.layers.quantization.input_quant_fp8.QuantFP8", fields=("tma_aligned_scales",)),
    EngineAttribute(f"{_QUANT}.fp8_utils.per_token_group_quant_fp8", ("x", "group_size")),
    EngineAttribute("vllm.config.get_current_vllm_config_or_none", ()),
)


def trial() -> None:
    """Raises Misfit unless scales_of() returns what is expected for vLLM's own quantisation keys."""
    keys = resolved(_KEYS)
    names = {
        ("kFp8DynamicTokenSym", "kFp8StaticChannelSym"): "per_token",
        ("kFp8DynamicTokenSym", "kFp8StaticTensorSym"): "per_token",
        ("kFp8StaticTensorSym", "kFp8StaticTensorSym"): "per_tensor",
        ("kFp8Dynamic128Sym", "kFp8Static128BlockSym"): "blocks",
    }
    for (of_x, of_weight), expected in names.items():
        if scales_of(getattr(keys, of_x), getattr(keys, of_weight)) != expected:
            raise IncompatibleEngine(f"{_KEYS}.{of_x} with {of_weight} is not {expected}")


def put() -> None:
    """Replaces the methods of vLLM's kernels that multiply (_HOOKED)."""
    for name, method in _HOOKED.items():
        wrap(f"{_KERNELS}.{name}.{method}", _scaled if method == _SCALED else _in_blocks)


def kernel_of(module: Any) -> Any:
    """Returns the kernel object that vLLM chose for an fp8 linear layer, None if the layer has none."""
    kinds = tuple(
        getattr(importlib.import_module(_KERNELS), name)
        for name in ("FP8ScaledMMLinearKernel", "Fp8BlockScaledMMLinearKernel")
    )
    owners = module.quant_method, getattr(module, "scheme", None), getattr(module.quant_method, "scheme", None)
    found = (each for owner in owners if owner is not None for each in vars(owner).values() if isinstance(each, kinds))
    return next(found, None)


def layer_of(module: Any, kernel: Any) -> Any:
    """Returns the Layer of a linear layer in fp8, whose weights vLLM has loaded and laid out."""
    from genkern.engines.layers import Layer

    if why := _unfit(module, kernel):
        return Layer.of(module, None, why)
    made = _block_layer if _HOOKED[type(kernel).__name__] == _BLOCKS else _scaled_layer
    return made(module, kernel)


def scales_of(of_x: Any, of_weight: Any) -> str:
    """Returns how two of vLLM's quantisation keys scale a product: per_token, per_tensor, blocks, "" if otherwise.

    A scale for each row of x and one for all of the weight count as per_token, with N equal scales of the weight.
    """
    x, weight = of_x.scale, of_weight.scale
    if x.static is False and tuple(x.group_shape) == (1, _BLOCK) and tuple(weight.group_shape) == (_BLOCK, _BLOCK):
        return "blocks"
    by_rows = x.group_shape.is_per_token() and not x.static
    if by_rows and (weight.group_shape.is_per_channel() or weight.group_shape.is_per_tensor()):
        return "per_token"
    return "per_tensor" if x.group_shape.is_per_tensor() and weight.group_shape.is_per_tensor() else ""


def _unfit(module: Any, kernel: Any) -> str:
    """Returns why genkern leaves a layer to vLLM, "" if it does not."""
    from vllm import envs
    from vllm.config import get_current_vllm_config_or_none

    if type(kernel).__name__ not in _HOOKED:
        return f"genkern does not serve {type(kernel).__name__}"
    if envs.VLLM_BATCH_INVARIANT:
        return "VLLM_BATCH_INVARIANT: vLLM's own batch-invariant fp8 kernels serve it"
    named = getattr(get_current_vllm_config_or_none(), "kernel_config", None)
    if getattr(named, "linear_backend", "auto") != "auto" or getattr(named, "linear_backend_per_quant", None):
        return "--linear-backend names a library"
    if getattr(module, "is_bmm", False):
        return "vLLM multiplies by it in batches elsewhere"
    expected = ("blocks",) if _HOOKED[type(kernel).__name__] == _BLOCKS else ("per_token", "per_tensor")
    config = kernel.config
    is_known = scales_of(config.activation_quant_key, config.weight_quant_key) in expected
    return "" if is_known else "genkern has no products with such scales"


def _name(kernel: Any, product: Any, more: str = "") -> str:
    """Returns an operator's name: all that vLLM's kernel depends on besides tensors, as served_product() requires."""
    keys = kernel.config.activation_quant_key, kernel.config.weight_quant_key
    return f"{type(kernel).__name__} {product.size} {product.dtype_out} {keys[0]} {keys[1]}{more}"


def _scaled_layer(module: Any, kernel: Any) -> Any:
    from genkern.engines.layers import Layer
    from genkern.engines.products import SCALED, Product
    from genkern.engines.winner_or_own import scaled_product, served_product

    config = kernel.config
    weight, scale, *_ = kernel._get_layer_params(module)
    if tuple(weight.shape) != tuple(config.weight_shape)[::-1] or any(size % 16 for size in weight.shape):
        return Layer.of(module, None, "vLLM pads its weight")
    scales = scales_of(config.activation_quant_key, config.weight_quant_key)
    product = Product(
        SCALED, weight.t(), config.activation_quant_key.dtype, config.out_dtype, own=(("scales", scales),)
    )
    found = replace(Layer.of(module, product), target=kernel)
    if not found.served:
        return found
    n = weight.shape[1]
    if scales == "per_token" and scale.numel() == 1:
        # genkern's kernels read one scale per column.
        setattr(kernel, _COLUMNS, scale.detach().float().reshape(1).expand(n).contiguous().view(n, 1))
    elif scale.numel() not in (1, n):
        return Layer.of(module, None, "its weight has several scales")
    before = _before(kernel, _SCALED)

    def own(x: Any, weight: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> Any:
        named = {"A": x, "B": weight.t(), "As": scale_a, "Bs": scale_b, "bias": bias}
        return before(kernel, out_dtype=config.out_dtype, output_shape=[x.shape[0], weight.shape[0]], **named)

    # vLLM's CUTLASS kernels use fast accumulation too (KernelTmaWarpSpecializedPingpongFP8FastAccum).
    hook = scaled_product(SCALED, config.out_dtype, {"accumulate": "fast"})
    return replace(found, product=served_product(_name(kernel, product), hook, own))


def _block_layer(module: Any, kernel: Any) -> Any:
    from genkern.engines.layers import Layer
    from genkern.engines.products import IN_BLOCKS, Product
    from genkern.engines.winner_or_own import quantised_product, scaled_product, served_product

    config = kernel.config
    params = kernel._get_layer_params(module)
    weight = params.weight
    # Fp8LinearMethod names the scale weight_scale_inv, compressed-tensors names it weight_scale.
    scale = params.weight_scale if params.weight_scale_inv is None else params.weight_scale_inv
    blocks = tuple(-(-size // _BLOCK) for size in weight.shape)
    if tuple(weight.shape) != tuple(config.weight_shape) or not weight.is_contiguous():
        return Layer.of(module, None, "vLLM lays its weight out anew")
    if (
        tuple(scale.shape) != blocks
        or not scale.is_contiguous()
        or scale.dtype.itemsize != 4
        or not scale.is_floating_point()
    ):
        return Layer.of(module, None, "vLLM lays its scales out anew")
    product = Product(IN_BLOCKS, weight, config.activation_quant_key.dtype, config.out_dtype)
    found = replace(Layer.of(module, product), target=kernel)
    if not found.served:
        return found
    before = _before(kernel, _BLOCKS)
    if kernel.apply_input_quant:
        hook = scaled_product(IN_BLOCKS, config.out_dtype, {})

        def own(x: Any, weight: Any, scale_a: Any, scale_b: Any) -> Any:
            return before(kernel, A=x, B=weight, As=scale_a, Bs=scale_b)
    else:
        quantise = resolved(f"{_QUANT}.fp8_utils.per_token_group_quant_fp8")
        hook = quantised_product(
            IN_BLOCKS, lambda x: quantise(x, _BLOCK, column_major_scales=True, use_ue8m0=False), {}
        )

        def own(x: Any, weight: Any, scale_b: Any) -> Any:  # type: ignore[misc]
            return before(kernel, A=x, B=weight, As=x.new_empty(1), Bs=scale_b)

    made = served_product(_name(kernel, product), hook, own)
    return replace(found, product=made, prepare=functools.partial(_unpad_scales, kernel, found.served))


def _unpad_scales(kernel: Any, served: tuple[int, ...]) -> None:
    """Makes vLLM quantise x without padding the scales for TMA: winners would have to copy padded scales.

    vLLM pads them to a multiple of four rows, so nothing changes if every M in `served` is one. DeepGEMM pads the
    scales itself if necessary. VLLM_USE_DEEP_GEMM_TMA_ALIGNED_SCALES=0 turns the padding off for all layers.
    """
    if any(m % 4 for m in served):
        kernel.quant_fp8.tma_aligned_scales = False


def _before(kernel: Any, method: str) -> Callable[..., Any]:
    """Returns vLLM's own method of a kernel, as a function of the kernel and its operands."""
    from genkern.engines.hooks import unhooked

    return unhooked(getattr(type(kernel), method))


def _scaled(before: Callable[..., Any]) -> Callable[..., Any]:
    from genkern.engines.layers import MARK

    @functools.wraps(before)
    def apply_scaled_mm(
        self: Any, *, A: Any, B: Any, out_dtype: Any, As: Any, Bs: Any, bias: Any, output_shape: list[int]
    ) -> Any:
        product = getattr(self, MARK, None)
        # vLLM may pad x with rows for PyTorch's kernels; its own method then computes the product.
        if product and A.shape[0] == _rows(output_shape):
            of_weight = getattr(self, _COLUMNS, Bs)
            tensors = [A, B.t(), As, of_weight] if bias is None else [A, B.t(), As, of_weight, bias]
            return product(tensors, B.shape[1], self.config.out_dtype).view(*output_shape)
        named = {"A": A, "B": B, "As": As, "Bs": Bs, "bias": bias}
        return before(self, out_dtype=out_dtype, output_shape=output_shape, **named)

    return apply_scaled_mm


def _rows(output_shape: list[int]) -> int:
    rows = 1
    for size in output_shape[:-1]:
        rows *= size
    return rows


def _in_blocks(before: Callable[..., Any]) -> Callable[..., Any]:
    from genkern.engines.layers import MARK

    @functools.wraps(before)
    def apply_block_scaled_mm(self: Any, A: Any, B: Any, As: Any, Bs: Any) -> Any:
        product = getattr(self, MARK, None)
        if product:
            tensors = [A, B, As, Bs] if self.apply_input_quant else [A, B, Bs]
            return product(tensors, B.shape[0], self.config.out_dtype)
        return before(self, A=A, B=B, As=As, Bs=Bs)

    return apply_block_scaled_mm
