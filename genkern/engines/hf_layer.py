"""The layer of hf_kernels' folder: kernelize takes its forward, so it has no state and the arguments of nn.Linear's."""

from __future__ import annotations

import torch

from genkern.engines.called import WIDE, operator

_product = operator(WIDE)


class Linear(torch.nn.Module):  # type: ignore[misc]
    """nn.Linear by one operator, which looks at M when it runs; by PyTorch under autocast."""

    can_torch_compile = True
    has_backward = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`input` [..., K], as nn.Linear."""
        weight: torch.Tensor = self.weight
        bias: torch.Tensor | None = self.bias
        if torch.is_autocast_enabled(input.device.type) or input.dtype != weight.dtype:
            return torch.nn.functional.linear(input, weight, bias)
        made: torch.Tensor = _product(input, weight, bias)
        return made
