"""A launch plan on a device: what each argument of a launch is, of these tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.kernels.argument import Argument, Constant, Counters, Descriptor, Integer, Leading, Pointer
from genkern.kernels.expression import evaluate
from genkern.kernels.lowering import gluon_layout
from genkern.kernels.plan import Launch


def arguments_of(launch: Launch, tensors: Mapping[str, Any], units: int) -> tuple[Any, ...]:
    """What Triton's launcher takes, in order: tensors, descriptors and numbers.

    `tensors` are the operands by name, and the "workspace" and the "counters" where the plan has them.
    """
    return tuple(_given(argument, tensors, units) for argument in launch.arguments)


def _given(argument: Argument, tensors: Mapping[str, Any], units: int) -> Any:
    if isinstance(argument, Pointer):
        return tensors[argument.operand]
    if isinstance(argument, Descriptor):
        return _descriptor(argument, tensors[argument.operand])
    if isinstance(argument, Integer):
        return evaluate(argument.value, {"units": units})
    if isinstance(argument, Leading):
        # As A, B and C lie (check_operands in generated modules), the other dimension's is 1.
        return max(tensors[argument.operand].stride())
    if isinstance(argument, Constant):
        return argument.value
    return tensors["counters" if isinstance(argument, Counters) else "workspace"]


def _descriptor(argument: Descriptor, tensor: Any) -> Any:
    matrix = tensor.T if argument.transposed else tensor
    outer, inner = (evaluate(size, {}) for size in argument.box)
    if not argument.swizzled:
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor.from_tensor(matrix, [outer, inner])
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    (dtype,) = (each.triton for each in DTYPES.values() if f"torch.{each.torch}" == str(tensor.dtype))
    return GluonDescriptor.from_tensor(matrix, [outer, inner], gluon_layout(dtype, (outer, inner), argument.cluster))
