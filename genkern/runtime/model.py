"""`genkern.patch(model)` and `genkern.report(model)`, which use the bundles that the environment names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from genkern.gemm.problem import DEFAULT_OP
from genkern.runtime.process.default_context import default_context

# PyTorch is imported by calls: help(genkern) shows these functions where it is not installed.
if TYPE_CHECKING:
    import torch

    from genkern.runtime.linear import LayerReport, Patch
    from genkern.runtime.routed.experts import Experts


@dataclass(frozen=True)
class WorkspaceReport:
    """The bytes that calls keep on GPU `gpu` outside of PyTorch's allocator, and their limit `most_bytes`."""

    gpu: int
    kept_bytes: int
    most_bytes: int

    def __str__(self) -> str:
        return f"GPU {self.gpu}: {self.kept_bytes / 2**20:.1f} of at most {self.most_bytes >> 20} MiB of workspaces"


class ModelReport(list["LayerReport"]):
    """A list of LayerReport; `workspaces` has what calls keep on each GPU. As text, one line for each."""

    def __init__(self, layers: Iterable[LayerReport], workspaces: Iterable[WorkspaceReport]) -> None:
        super().__init__(layers)
        self.workspaces = tuple(workspaces)

    def __str__(self) -> str:
        return "\n".join(map(str, (*self, *self.workspaces)))


def patch(model: torch.nn.Module, *, gated: bool = True) -> Patch:
    """Let the linear layers of a model, and the experts modules of transformers, call tuned kernels.

    Args:
        model (torch.nn.Module): a model on its device; it is changed in place. Layers that are nn.Linear and have
            winners for their N and K are patched; quantised and sharded weights, layers with hooks or with another
            forward are not. Calls that are not plain (autocast, sparse, nested and subclassed tensors) stay PyTorch's.
        gated (bool): compute silu(gate) * up after a common product of gate and up by one kernel, if bundles have it.
            Default: True.

    Returns:
        Patch: `layers` names the patched layers, `merged` the groups of layers that are one product; `undo()`, or the
        end of a `with` block, restores the model's own forwards. Merged weights stay in their buffers.
    """
    from genkern.runtime.experts_modules import patch_experts
    from genkern.runtime.linear import Patch, patch_model
    from genkern.runtime.merged_layers.linears import linears_of
    from genkern.runtime.process.torch_ops import gemm_of
    from genkern.runtime.routed.functions import routed_of, staged_op

    context, op = default_context(), staged_op()
    gemm = gemm_of(DEFAULT_OP)
    linear = patch_model(model, gemm, context, lambda: linears_of(gemm), gated=gated)
    experts = patch_experts(model, op, lambda: cast("Experts", routed_of(op)), context)

    def undo() -> None:
        linear.undo()
        experts.undo()

    return Patch(undo, (*linear.layers, *experts.layers), linear.merged, linear.merged_bytes, linear.gated)


def report(model: torch.nn.Module) -> ModelReport:
    """Return what each linear layer, and each product of an experts module, of a model would call.

    Args:
        model (torch.nn.Module): a model on its device; it is not changed.

    Returns:
        ModelReport: a list of LayerReport: name, N, K, type, and by M the config that won, "vendor" or "tie". Its
            `workspaces` say how many bytes calls keep on each GPU. `print(report(model))` has a line for each.
    """
    from genkern.runtime.experts_modules import report_experts
    from genkern.runtime.linear import report_model
    from genkern.runtime.routed.functions import staged_op

    context = default_context()
    layers = [*report_model(model, context), *report_experts(model, staged_op(), context)]
    workspaces = (WorkspaceReport(gpu, kept.bytes, kept.most_bytes) for gpu, kept in context.workspaces())
    return ModelReport(layers, workspaces)
