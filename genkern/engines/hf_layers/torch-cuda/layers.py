"""The layers that kernelize takes from here: without state, and with the arguments of those that they replace."""

import torch

from genkern.engines.hf_kernels import linear_of

_linear = linear_of()


class Linear(torch.nn.Module):
    """nn.Linear by winners."""

    can_torch_compile = True
    has_backward = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _linear(self, input)
