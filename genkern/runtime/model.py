"""`genkern.patch(model)` and `genkern.report(model)`: models with what this process's environment names."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from genkern.gemm.problem import DEFAULT_OP
from genkern.runtime.default import default_context
from genkern.runtime.linear import LayerReport, Patch, patch_model, report_model
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.modules import patch_experts, report_experts
from genkern.runtime.routed.routed import routed_of, staged_op
from genkern.runtime.torch_ops import gemm_of

if TYPE_CHECKING:
    import torch


def patch(model: torch.nn.Module) -> Patch:
    """Let the model's linear layers, and transformers' experts modules, call tuned kernels where there are any; undone
    by `with`, or by its `undo()`.
    """
    context, op = default_context(), staged_op()
    linear = patch_model(model, gemm_of(DEFAULT_OP), context)
    experts = patch_experts(model, op, lambda: cast(Experts, routed_of(op)), context)

    def undo() -> None:
        linear.undo()
        experts.undo()

    return Patch(undo, (*linear.layers, *experts.layers))


def report(model: torch.nn.Module) -> list[LayerReport]:
    """What each linear layer and each product of an experts module would call; print them a line each."""
    context = default_context()
    return [*report_model(model, context), *report_experts(model, staged_op(), context)]
