"""vLLM's fp8 linear layers: two kernels in its registry, before its own, for layers that have winners."""

from __future__ import annotations

from typing import Any

from genkern.engines.seam import Misfit, require

_OPERANDS = ("self", "A", "B", "out_dtype", "As", "Bs", "bias", "output_shape")
_BLOCK_OPERANDS = ("self", "A", "B", "As", "Bs")
# Kernels of vLLM that leave weights of [N, K] as they are, where both are multiples of 16.
_OWN_SCALED = (
    "CutlassFP8ScaledMMLinearKernel",
    "PerTensorTorchFP8ScaledMMLinearKernel",
    "ChannelWiseTorchFP8ScaledMMLinearKernel",
)
_OWN_BLOCKS = "DeepGemmFp8BlockScaledMMKernel", "CutlassFp8BlockScaledMMKernel", "TritonFp8BlockScaledMMKernel"
_CONFIG = ("weight_quant_key", "activation_quant_key", "weight_shape", "input_dtype", "out_dtype")


def kernels() -> None:
    """Put both first among what vLLM may choose on CUDA, where it does not keep to what --linear-backend names."""
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    require(linear.FP8ScaledMMLinearLayerConfig, "FP8ScaledMMLinearLayerConfig", _CONFIG)
    require(linear.FP8ScaledMMLinearKernel.apply_scaled_mm, "apply_scaled_mm", _OPERANDS)
    require(linear.Fp8BlockScaledMMLinearKernel.apply_block_scaled_mm, "apply_block_scaled_mm", _BLOCK_OPERANDS)
    require(linear.FP8ScaledMMLinearKernel.is_supported, "is_supported", ("compute_capability",))
    require(linear.FP8ScaledMMLinearKernel._get_layer_params, "_get_layer_params", ("self", "layer"))
    possible = linear._POSSIBLE_FP8_KERNELS, linear._POSSIBLE_FP8_BLOCK_KERNELS
    lists = [each.get(PlatformEnum.CUDA) for each in possible]
    if not all(isinstance(each, list) for each in lists):
        raise Misfit("vLLM keeps its fp8 kernels in other lists")
    # Both are made before one is put in: all or none.
    for each, kernel in zip(lists, (_scaled(), _in_blocks()), strict=True):
        if kernel.__name__ not in [known.__name__ for known in each]:
            # What register_linear_kernel adds comes last, and the first that can do it is chosen.
            each.insert(0, kernel)


def _tuned(op: str, config: Any, scales: str) -> tuple[int, ...]:
    """For which M a layer of such a config has winners on this process's GPU; vLLM chooses kernels where it loads."""
    import torch

    from genkern.engines.called import Product

    weight = torch.empty(tuple(config.weight_shape), dtype=config.weight_quant_key.dtype, device="meta")
    own = (("scales", scales),) if scales else ()
    product = Product(op, weight, config.activation_quant_key.dtype, config.out_dtype, own=own)
    return product.tuned_on(_device())


def _device() -> int:
    import torch

    return torch.cuda.current_device() if torch.cuda.is_available() else -1


def _scales(config: Any) -> str:
    """How a layer's operands are scaled, as the format has it; "" where it is another way.

    A scale for each row of x and one for all of the weight is the first of these with N equal scales.
    """
    of_x, of_weight = (key.scale for key in (config.activation_quant_key, config.weight_quant_key))
    by_rows = of_x.group_shape.is_per_token() and not of_x.static
    if by_rows and (of_weight.group_shape.is_per_channel() or of_weight.group_shape.is_per_tensor()):
        return "per_token"
    return "per_tensor" if of_x.group_shape.is_per_tensor() and of_weight.group_shape.is_per_tensor() else ""


def _scaled() -> type:
    """The kernel of layers with a scale for all of an operand, or for each row and column."""
    from vllm import envs
    from vllm.model_executor.kernels.linear import FP8ScaledMMLinearKernel

    from genkern.engines.called import SCALED
    from genkern.engines.choice import opaque, winner_or

    class GenkernFP8ScaledMMLinearKernel(FP8ScaledMMLinearKernel):  # type: ignore[misc]
        genkern_tuned: tuple[int, ...] = ()

        def __init__(self, c: Any, layer_param_names: Any) -> None:
            super().__init__(c, layer_param_names)
            self.genkern_tuned = _tuned(SCALED, c, _scales(c))
            # What vLLM would have chosen, for the M that have no winner.
            self.own = _vllms_own(c, _OWN_SCALED, layer_param_names)
            # vLLM's CUTLASS kernels add up fast (KernelTmaWarpSpecializedPingpongFP8FastAccum).
            by_own = None if self.own is None else self._by_own
            self.product = opaque(winner_or(by_own, SCALED, c.out_dtype, {"accumulate": "fast"}))

        @classmethod
        def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
            if envs.VLLM_BATCH_INVARIANT:
                return False, "leaves fp8 to vLLM's own batch-invariant kernels"
            return True, None

        @classmethod
        def can_implement(cls, c: Any) -> tuple[bool, str | None]:
            if (scales := _scales(c)) == "":
                return False, "has no products with such scales"
            if any(size % 16 for size in c.weight_shape):
                return False, "has no weights that vLLM pads"
            return bool(_tuned(SCALED, c, scales)), "has no winner for this N and K"

        def input_quant_key(self) -> Any:
            """A static scale may be applied before, as vLLM's CUTLASS kernel has it."""
            key = self.config.activation_quant_key
            return key if key.scale.static and key.scale.group_shape.is_per_tensor() else None

        def _by_own(self, x: Any, weight: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> Any:
            given = {"A": x, "B": weight.t(), "As": scale_a, "Bs": scale_b, "bias": bias}
            return self.own.apply_scaled_mm(
                out_dtype=self.config.out_dtype, output_shape=[x.shape[0], weight.shape[0]], **given
            )

        def process_weights_after_loading(self, layer: Any) -> None:
            if self.own is not None:
                # These leave weights of such sizes as they are.
                self.own.process_weights_after_loading(layer)
            if _scales(self.config) == "per_token":
                weight, scale, *_ = super()._get_layer_params(layer)
                # Of a weight with one scale a copy for each column: kernels read one for each.
                columns = scale.detach().float().reshape(-1).expand(weight.shape[1])
                layer.genkern_scale = columns.contiguous().view(-1, 1)

        def _get_layer_params(self, layer: Any) -> Any:
            weight, scale, *others = super()._get_layer_params(layer)
            return weight, getattr(layer, "genkern_scale", scale), *others

        def apply_scaled_mm(
            self, *, A: Any, B: Any, out_dtype: Any, As: Any, Bs: Any, bias: Any, output_shape: list[int]
        ) -> Any:
            tensors = [A, B.t(), As, Bs, *([] if bias is None else [bias])]
            return self.product(tensors, B.shape[1], self.config.out_dtype).view(*output_shape)

    return GenkernFP8ScaledMMLinearKernel


def _in_blocks() -> type:
    """The kernel of layers with scales of 1 x 128 and 128 x 128."""
    from vllm import envs
    from vllm.model_executor.kernels.linear import Fp8BlockScaledMMLinearKernel
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8

    from genkern.engines.called import IN_BLOCKS
    from genkern.engines.choice import opaque, winner_or

    class GenkernFp8BlockScaledMMKernel(Fp8BlockScaledMMLinearKernel):  # type: ignore[misc]
        genkern_tuned: tuple[int, ...] = ()

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.genkern_tuned = _tuned(IN_BLOCKS, config, "")
            # What vLLM would have chosen, for the M that have no winner; x is quantised as that wants it.
            self.own = _vllms_own(config, _OWN_BLOCKS)
            self.elsewhere = False
            if self.own is not None:
                self.quant_fp8, self.use_triton = self.own.quant_fp8, self.own.use_triton
            else:
                # Column by column, as kernels read them.
                shape = config.activation_quant_key.scale.group_shape
                self.quant_fp8 = QuantFP8(static=False, group_shape=shape, column_major_scales=True, use_ue8m0=False)
            by_own = None if self.own is None else self._by_own
            self.product = opaque(winner_or(by_own, IN_BLOCKS, config.out_dtype, {}))

        @classmethod
        def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
            if envs.VLLM_BATCH_INVARIANT:
                return False, "leaves fp8 to vLLM's own batch-invariant kernels"
            return True, None

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, str | None]:
            can, reason = super().can_implement(config)
            shapes = [key.scale.group_shape for key in (config.activation_quant_key, config.weight_quant_key)]
            if not can or shapes != [(1, 128), (128, 128)]:
                return False, reason or "has scales of 1 x 128 and 128 x 128 only"
            return bool(_tuned(IN_BLOCKS, config, "")), "has no winner for this N and K"

        def process_weights_after_loading(self, layer: Any) -> None:
            before = _form(self._get_layer_params(layer))
            if self.own is None:
                super().process_weights_after_loading(layer)
            else:
                self.own.process_weights_after_loading(layer)
            # vLLM multiplies by some weights elsewhere, and some kernels lay them or their scales out anew.
            if self.own is not None and (
                getattr(layer, "is_bmm", False) or _form(self._get_layer_params(layer)) != before
            ):
                self.elsewhere, self.genkern_tuned = True, ()

        def _by_own(self, x: Any, weight: Any, scale_a: Any, scale_b: Any) -> Any:
            return self.own.apply_block_scaled_mm(A=x, B=weight, As=scale_a, Bs=scale_b)

        def apply_block_scaled_mm(self, A: Any, B: Any, As: Any, Bs: Any) -> Any:
            if self.elsewhere:
                return self.own.apply_block_scaled_mm(A=A, B=B, As=As, Bs=Bs)
            return self.product([A, B, As, Bs], B.shape[0], self.config.out_dtype)

    return GenkernFp8BlockScaledMMKernel


def _form(params: Any) -> tuple[object, ...]:
    """How a layer's weight and scales lie."""
    return tuple((each.shape, each.stride(), each.dtype) for each in (params.weight, params.block_scale))


def _vllms_own(config: Any, names: tuple[str, ...], layer_param_names: Any = None) -> Any:
    """The kernel that vLLM chooses among those that leave weights as they are loaded; None where none of them can."""
    from vllm.model_executor.kernels import linear

    lists = linear._POSSIBLE_FP8_KERNELS if layer_param_names else linear._POSSIBLE_FP8_BLOCK_KERNELS
    possible = {place: [kernel for kernel in listed if kernel.__name__ in names] for place, listed in lists.items()}
    quantization = "fp8_w8a8" if layer_param_names else "fp8_block_w8a8"
    try:
        kind = linear.choose_scaled_mm_linear_kernel(config, possible, quantization=quantization)
    except (ValueError, AttributeError):
        # None can, or vLLM was built without what one asks for.
        return None
    return kind(config, layer_param_names=layer_param_names) if layer_param_names else kind(config)
