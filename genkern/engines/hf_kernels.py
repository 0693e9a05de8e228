"""Hugging Face kernels: a folder of layers that `kernelize` takes, and the mapping that names it.

    from genkern.engines import hf_kernels
    from kernels import Mode, kernelize

    hf_kernels.register()
    model = kernelize(model, mode=Mode.INFERENCE)

Written for kernels 0.17. The folder, hf_layers, has a build for CUDA, one for ROCm and one for CPUs, which are one file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from genkern.engines.seam import install, is_on, require

LAYER = "GenkernLinear"
FOLDER = Path(__file__).parent / "hf_layers"
# As kernels names devices, for which it looks layers up.
_DEVICES = "cuda", "rocm", "cpu"


def register() -> None:
    """Let `kernelize` give winners to those nn.Linear layers that have any; nothing without a bundle."""
    if is_on():
        install("kernels", {"nn.Linear layers": _put})


def _put() -> None:
    import torch
    from kernels import register_kernel_mapping, replace_kernel_forward_from_hub

    require(replace_kernel_forward_from_hub, "replace_kernel_forward_from_hub", ("cls", "layer_name", "condition"))
    if getattr(torch.nn.Linear, "kernel_layer_name", LAYER) == LAYER:
        replace_kernel_forward_from_hub(torch.nn.Linear, LAYER, condition=is_tuned)
        register_kernel_mapping(mapping())


def mapping() -> dict[str, dict[str, Any]]:
    """The layer's folder for each device, for `use_kernel_mapping` too."""
    from kernels import LocalLayerRepository

    return {LAYER: {device: LocalLayerRepository(FOLDER, layer_name="Linear") for device in _DEVICES}}


def is_tuned(layer: Any) -> bool:
    """Whether a layer's weight has winners: asked of each by `kernelize`."""
    import torch

    from genkern.engines.called import WIDE, Product

    # A subclass, or a weight that is one, does something else.
    plain = type(layer) is torch.nn.Linear and type(layer.weight) in (torch.nn.Parameter, torch.Tensor)
    if not plain:
        return False
    bias = layer.bias is not None
    return bool(Product(WIDE, layer.weight, layer.weight.dtype, layer.weight.dtype, bias).tuned())


def linear_of() -> Callable[[Any, Any], Any]:
    """What the folder's layer does: one operator, which looks at M when it runs; PyTorch under autocast."""
    import torch

    from genkern.engines.called import WIDE, operator

    product = operator(WIDE)

    def linear(layer: Any, input: Any) -> Any:
        if torch.is_autocast_enabled(input.device.type) or input.dtype != layer.weight.dtype:
            return torch.nn.functional.linear(input, layer.weight, layer.bias)
        return product(input, layer.weight, layer.bias)

    return linear
