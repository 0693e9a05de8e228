"""What Triton's launcher passes to the kernel of a plan: the oracle of launches that are made without it.

Tensors and descriptors are given as the functions of a generated module give them; Triton's own driver takes them
apart. It has no device, and its tensor maps are records of what they would be encoded from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from recording_gpu import Encoded

from genkern.gemm.dtypes import dtype_of
from genkern.kernels.contract.argument import (
    Argument,
    Copied,
    Counters,
    Descriptor,
    Integer,
    Leading,
    Pointer,
    Stride,
    launch_arguments,
)
from genkern.kernels.contract.expression import evaluate
from genkern.kernels.lowering import gluon_layout
from genkern.kernels.plan import PlannedLaunch

# The addresses of two areas that Triton's kernels may ask for, and none of ours does.
_HIDDEN = 2


def arguments_of(launch: PlannedLaunch, tensors: Mapping[str, Any], known: Mapping[str, int]) -> tuple[Any, ...]:
    """What Triton's launcher takes before the constants, in order: tensors, descriptors and numbers.

    `tensors` are the operands by name, and the "workspace" and the "counters" where the plan has them. `known` has what
    its numbers hang on.
    """
    return tuple(_given(argument, tensors, known) for argument in launch_arguments(launch.arguments))


def parameters_by_triton(
    launch: PlannedLaunch, tensors: Mapping[str, Any], known: Mapping[str, int], said: Mapping[str, Any]
) -> list[bytes | Encoded]:
    """The parameters in order; of maps what they are encoded from. `said` is Triton's metadata of the binary."""
    with pytest.MonkeyPatch.context() as patch:
        _without_a_device(patch)
        described = iter(said.get("tensordesc_meta") or [])
        return [
            *(each for value in arguments_of(launch, tensors, known) for each in _parameters(value, described)),
            *[bytes(8)] * _HIDDEN,
        ]


def _without_a_device(patch: pytest.MonkeyPatch) -> None:
    from triton.runtime import driver

    utils = SimpleNamespace(fill_tma_descriptor=_encoded, fill_tma_descriptor_tiled=_encoded)
    # Not set_active, whose counterpart looks for a real driver.
    name = "_active" if hasattr(driver, "_active") else "active"
    patch.setattr(driver, name, SimpleNamespace(utils=utils))


def _encoded(address: int, swizzle: int, element_bytes: int, element_type: int, *rest: Any) -> Encoded:
    (box_rows, box_columns), (rows, columns), (pitch, along), padding = rest
    assert (along, padding) == (1, 0)
    return Encoded(element_type, address, (columns, rows), pitch * element_bytes, (box_columns, box_rows), swizzle)


def _parameters(value: Any, described: Iterator[Mapping[str, Any]]) -> Iterator[bytes | Encoded]:
    from triton.backends.nvidia import driver

    if isinstance(value, int):
        yield value.to_bytes(4, "little")
    elif hasattr(value, "data_ptr"):
        yield value.data_ptr().to_bytes(8, "little")
    else:
        # From Triton 3.9 on there is one more argument.
        more = [None] * (driver.make_tensordesc_arg.__code__.co_argcount - 2)
        encoded, *numbers = driver.make_tensordesc_arg(value, next(described), *more)
        yield encoded
        for number, size in zip(numbers, (4, 4, 8, 8), strict=True):
            yield number.to_bytes(size, "little")


def _given(argument: Argument, tensors: Mapping[str, Any], known: Mapping[str, int]) -> Any:
    if isinstance(argument, Pointer):
        return tensors[argument.operand]
    if isinstance(argument, Copied):
        matrix = tensors[argument.operand]
        return _descriptor(argument, _copy_of(argument, matrix, tensors["workspace"], known))
    if isinstance(argument, Descriptor):
        return _descriptor(argument, tensors[argument.operand])
    if isinstance(argument, Integer):
        return evaluate(argument.value, known)
    if isinstance(argument, Leading):
        # As A, B and C lie (check_operands in generated modules), the other dimension's is 1.
        return max(tensors[argument.operand].stride()[-2:])
    if isinstance(argument, Stride):
        return tensors[argument.operand].stride(0)
    return tensors["counters" if isinstance(argument, Counters) else "workspace"]


def _copy_of(argument: Copied, matrix: Any, workspace: Any, known: Mapping[str, int]) -> Any:
    """The operand's copy in the workspace, as a matrix that lies as the operand does."""
    first, pitch = evaluate(argument.first, known), evaluate(argument.pitch, known)
    strides = (1, pitch) if argument.transposed else (pitch, 1)
    return workspace.view(matrix.dtype)[first:].as_strided(matrix.shape, strides)


def _descriptor(argument: Descriptor, tensor: Any) -> Any:
    matrix = tensor.mT if argument.transposed else tensor
    if matrix.dim() > 2:
        # Not of a matrix: a view of a single row that is padded loses the row's pitch.
        matrix = matrix.view(-1, matrix.shape[-1])
    outer, inner = (evaluate(size, {}) for size in argument.box)
    if not argument.swizzled:
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor.from_tensor(matrix, [outer, inner])
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    layout = gluon_layout(dtype_of(tensor.dtype).triton, (outer, inner))
    return GluonDescriptor.from_tensor(matrix, [outer, inner], layout)
