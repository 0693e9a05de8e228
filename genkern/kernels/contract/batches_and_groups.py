"""Calls that compute several products: the products of a batch, or groups of rows with one weight each."""

from __future__ import annotations

from dataclasses import replace

from genkern.kernels.contract.argument import (
    Argument,
    Constant,
    Counters,
    Integer,
    Pointer,
    Stride,
    Workspace,
    alignment_of,
)
from genkern.kernels.contract.call import Call, Kernel
from genkern.kernels.contract.expression import cdiv, least
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.symbols import BATCH, BLOCK_SIZE_M, BLOCK_SIZE_N, TILES_OF_C, M, N


def for_batch(product: Product, call: Call) -> Call:
    """Return the call that computes all products of a batch; `call` itself if the format has no batches.

    The products lie along the third dimension of the grid, or the programs walk over them (`Kernel.walks_batch`).
    """
    if len(product.operands[0].shape) == 2:
        return call
    return replace(
        call,
        kernels=tuple(_for_batch(product, call, kernel) for kernel in call.kernels),
        workspace=call.workspace and BATCH * call.workspace,
        counters=call.counters and BATCH * call.counters,
    )


def _for_batch(product: Product, call: Call, kernel: Kernel) -> Kernel:
    steps: dict[str, Argument] = {}
    for argument in kernel.arguments:
        step = f"{argument.name.removesuffix('_ptr')}_step"
        if isinstance(argument, Workspace):
            # The step is a number of whole tiles, or of matrices with N columns: N's divisor divides both.
            steps[argument.name] = Integer(step, call.workspace, alignment_of(product.problem.N))
        elif isinstance(argument, Counters):
            steps[argument.name] = Integer(step, call.counters)
        elif isinstance(argument, Pointer) and len((operand := product.by_name[argument.operand]).shape) == 3:
            # A batch step without gaps is a multiple of the row length, whatever M is.
            multiple_of = 1 if kernel.walks_batch else alignment_of(operand.storage_shape[-1])
            steps[argument.name] = Stride(step, argument.operand, multiple_of)
    constants = tuple(argument for argument in kernel.arguments if isinstance(argument, Constant))
    arguments = tuple(argument for argument in kernel.arguments if not isinstance(argument, Constant))
    x, y, z = kernel.grid
    return replace(
        kernel,
        arguments=(*arguments, *steps.values(), *constants),
        grid=(x, y, z if kernel.walks_batch else BATCH),
        steps=tuple((pointer, step.name) for pointer, step in steps.items()),
    )


def for_groups(product: Product, call: Call) -> Call:
    """Return the call for rows in groups; `call` itself if the format has no groups.

    The grid covers the largest number of tiles that the groups can have. For each operand of which every group has a
    matrix, kernels get a step: the elements from one group's matrix to the next.
    """
    groups = product.groups
    if groups is None:
        return call
    rows = M * groups.top_k if groups.top_k > 1 else M
    tiles_m = (rows + least(groups.count, rows) * (BLOCK_SIZE_M - 1)) // BLOCK_SIZE_M
    if groups.capacity:
        tiles_m = cdiv(groups.capacity, BLOCK_SIZE_M) * groups.count
    tiles = TILES_OF_C[0], tiles_m * cdiv(N, BLOCK_SIZE_N)
    return replace(
        call,
        kernels=tuple(_for_groups(product, kernel) for kernel in call.kernels),
        definitions=tuple(tiles if definition == TILES_OF_C else definition for definition in call.definitions),
    )


def _for_groups(product: Product, kernel: Kernel) -> Kernel:
    steps: dict[str, Argument] = {}
    for argument in kernel.arguments:
        if isinstance(argument, Pointer) and len((operand := product.by_name[argument.operand]).shape) == 3:
            step = f"{argument.name.removesuffix('_ptr')}_step"
            steps[argument.name] = Stride(step, argument.operand, alignment_of(operand.storage_shape[-1]))
    constants = tuple(argument for argument in kernel.arguments if isinstance(argument, Constant))
    arguments = tuple(argument for argument in kernel.arguments if not isinstance(argument, Constant))
    return replace(
        kernel,
        arguments=(*arguments, *steps.values(), *constants),
        steps=tuple((pointer, step.name) for pointer, step in steps.items()),
    )
