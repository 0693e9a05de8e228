"""`genkern.patch(model)` and `genkern.report(model)`: models with what this process's environment names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from genkern.gemm.problem import DEFAULT_OP
from genkern.runtime.default import default_context
from genkern.runtime.linear import LayerReport, Patch, patch_model, report_model
from genkern.runtime.torch_ops import gemm_of

if TYPE_CHECKING:
    import torch


def patch(model: torch.nn.Module) -> Patch:
    """Let the model's linear layers call tuned kernels where there are any; undone by `with`, or by its `undo()`."""
    return patch_model(model, gemm_of(DEFAULT_OP), default_context())


def report(model: torch.nn.Module) -> list[LayerReport]:
    """What each linear layer of the model would call; print them a line each."""
    return report_model(model, default_context())
