"""Hugging Face kernels: a folder of layers for `kernelize`, and the mapping that names it.

    from genkern.engines import hf_kernels
    from kernels import Mode, kernelize

    hf_kernels.register()
    model = kernelize(model, mode=Mode.INFERENCE)

Written for kernels 0.17. The folder has a build of a few lines for each backend.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from genkern import __version__
from genkern.engines.hooks import EngineAttribute, IncompatibleEngine, PluginPart, install, is_on

LAYER = "GenkernLinear"
# Device names of kernels, by which it looks up layers.
_DEVICES = "cuda", "rocm", "cpu"
_BUILD = (
    '"""Layers that call winners of genkern."""\n\n'
    "from genkern.engines.hf_kernels import layers_of\n\nlayers = layers_of()\n"
)


def register() -> None:
    """Let `kernelize` replace nn.Linear layers that have winners. Does nothing without a bundle."""
    if is_on():
        touches = (
            EngineAttribute("kernels.replace_kernel_forward_from_hub", ("cls", "layer_name", "condition")),
            EngineAttribute("kernels.register_kernel_mapping"),
        )
        install("kernels", [PluginPart("nn.Linear layers", touches, _put)])


def _put() -> None:
    import torch
    from kernels import register_kernel_mapping, replace_kernel_forward_from_hub

    if (name := getattr(torch.nn.Linear, "kernel_layer_name", LAYER)) != LAYER:
        raise IncompatibleEngine(f"nn.Linear has the kernel layer {name} already")
    replace_kernel_forward_from_hub(torch.nn.Linear, LAYER, condition=is_tuned)
    register_kernel_mapping(mapping())


def mapping() -> dict[str, dict[str, Any]]:
    """Return the layer's folder for each device, as `use_kernel_mapping` takes it."""
    from kernels import LocalLayerRepository

    repository = LocalLayerRepository(folder(), layer_name="Linear")
    return {LAYER: dict.fromkeys(_DEVICES, repository)}


def folder() -> Path:
    """Return the folder for LocalLayerRepository; write its files if they are missing or differ.

    Its files are imported, so no other user may be able to write to it: it is in genkern's cache folder if that is
    private, else in another private folder. Raises OutputError.
    """
    from genkern.errors import OutputError
    from genkern.file_io import cache_folder, write_whole
    from genkern.private_folders import private_subfolder

    try:
        found = private_subfolder(cache_folder(None), "hf_kernels") / __version__
    except OSError as error:
        raise OutputError(f"no folder for genkern's layer: {error.strerror}") from None
    for device in _DEVICES:
        said = {"id": f"genkern_{device}", "name": "genkern", "version": 1, "license": "MIT", "python-depends": []}
        texts = {"metadata.json": json.dumps({**said, "backend": {"type": device}}), "__init__.py": _BUILD}
        for name, text in texts.items():
            path = found / f"torch-{device}" / name
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                write_whole(str(path), text)
    return found


def is_tuned(layer: Any) -> bool:
    """Returns True if a layer has winners for its weight; `kernelize` asks for each layer."""
    import torch

    from genkern.engines.products import WIDE, Product

    # Subclasses of nn.Linear, or of its weight's type, may compute something else.
    if type(layer) is not torch.nn.Linear or type(layer.weight) not in (torch.nn.Parameter, torch.Tensor):
        return False
    bias = layer.bias is not None
    return bool(Product(WIDE, layer.weight, layer.weight.dtype, layer.weight.dtype, bias).tuned())


def layers_of() -> SimpleNamespace:
    """Return the layers of the folder. kernelize uses only their forward, so they have no state."""
    import torch

    from genkern.engines.products import WIDE, operator

    product = operator(WIDE)

    class Linear(torch.nn.Module):  # type: ignore[misc]
        can_torch_compile = True
        has_backward = True

        def forward(self, input: Any) -> Any:
            if torch.is_autocast_enabled(input.device.type) or input.dtype != self.weight.dtype:
                return torch.nn.functional.linear(input, self.weight, self.bias)
            return product(input, self.weight, self.bias)

    return SimpleNamespace(Linear=Linear)
