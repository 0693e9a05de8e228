"""A GEMM by the machine of ptx_machine: what a kernel for sm_100 leaves in C, and what it should."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from cute_binary import Compiled
from ptx_machine import Machine
from ptx_tensor import E4M3, E5M2, TensorMap, numbers
from ptx_text import read_program
from ptx_warp import LANES, to_bf16

from genkern.compile.binary.code_object import read_resources
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import Constant, Integer, Leading, Map, Pointer, Stride, Workspace
from genkern.ops.op import get_op


def stored(values: Any, dtype: str) -> Any:
    """Bytes [rows, bytes] of float32 [rows, columns], to the nearest number of the type."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype in ("fp8e4m3fn", "fp8e5m2"):
        table = E4M3 if dtype == "fp8e4m3fn" else E5M2
        different, which = np.unique(values, return_inverse=True)
        far = np.abs(np.where(np.isnan(table), np.inf, table) - different.reshape(-1, 1))
        return far.argmin(axis=1).astype(np.uint8)[which].reshape(values.shape)
    if dtype == "bf16":
        return to_bf16(values).view(np.uint8)
    return values.astype(np.float16 if dtype == "fp16" else np.float32).view(np.uint8)


def spread(scales: Any, shape: tuple[int, ...]) -> Any:
    """The scale of each element of a matrix, of 128 columns and of one row or 128."""
    rows = 1 if len(scales) == shape[0] else 128
    return scales.repeat(rows, 0).repeat(128, 1)[: shape[0], : shape[1]]


def shows(run: Callable[[int], tuple[Any, Any]], seeds: int) -> bool:
    """Whether a fault shows with one of so many seeds: the machine refuses a step, or C is not what is wanted."""
    for seed in range(seeds):
        try:
            got, wanted = run(seed)
        except (AssertionError, KeyError, IndexError):
            return True
        if not np.array_equal(got, wanted):
            return True
    return False


def computed(problem: GemmProblem, config: Config, made: Compiled, *, seed: int, units: int) -> tuple[Any, Any]:
    """C as the kernel leaves it on a device of so many SMs, and as it should be: of small integers, to the bit.

    What lies around and what C was before is NaN. Scales are powers of two. Of a batch the rows of all products, one
    below the other; of a split K those of its parts' sums, in float32.
    """
    rng = np.random.default_rng(seed)
    operands = get_op(problem.op).operands(problem)
    a, b = (rng.integers(-2, 3, each.shape).astype(np.float32) for each in operands[:2])
    extras = operands[3:]
    scales = {
        each.name: (2.0 ** rng.integers(-1, 2, each.shape)).astype(np.float32)
        for each in extras
        if each.role == "scale"
    }
    in_step = {each.scales: scales[each.name] for each in extras if each.in_step}
    wanted = a @ b if not in_step else spread(in_step["a"], a.shape) * a @ (spread(in_step["b"], b.T.shape).T * b)
    split = config.SPLIT_K > 1
    if split:
        blocks = -(-problem.K // config.BLOCK_SIZE_K)
        ends = [part * blocks // config.SPLIT_K * config.BLOCK_SIZE_K for part in range(config.SPLIT_K + 1)]
        wanted = np.stack([a[:, at:end] @ b[at:end] for at, end in itertools.pairwise(ends)])
    dtype_c, copies = ("fp32", config.SPLIT_K) if split else (problem.dtype_c, problem.batch)
    c = np.full((copies * problem.M, problem.N * DTYPES[dtype_c].size_bytes), 0xFF, np.uint8)
    matrices = {
        "a": stored(_rows(a, problem.row_major_a), problem.dtype_a),
        "b": stored(_rows(b, problem.row_major_b), problem.dtype_b),
        "c": c,
    }
    memory, address = {1 << 33: c.reshape(-1)}, {"c": 1 << 33}
    for number, operand in enumerate(() if split else extras, 2):
        address[operand.name] = number << 33
        if operand.role == "scale":
            scale = scales[operand.name]
            wanted = wanted if operand.in_step else wanted * scale
            raw = stored(_rows(scale, operand.row_major).reshape(1, -1), "fp32")
        else:
            bias = rng.integers(-3, 4, (1, problem.N)).astype(np.float32)
            wanted, raw = wanted + bias, stored(bias, problem.dtype_c)
        memory[address[operand.name]] = raw.reshape(-1)
    if problem.activation == "relu" and not split:
        wanted = np.maximum(wanted, 0)
    sizes = {"M": problem.M, "N": problem.N, "K": problem.K, "BATCH": problem.batch, "ldc": problem.N}
    sizes |= {"GROUP_SIZE_M": config.GROUP_SIZE_M, "SPLIT_K": config.SPLIT_K}
    by_name = {each.name: each for each in operands}
    arguments: list[Any] = []
    for argument in made.launch.arguments:
        if isinstance(argument, Map):
            size = DTYPES[getattr(problem, f"dtype_{argument.operand}")].size_bytes
            rows, columns = (int(side) for side in argument.box)  # type: ignore[arg-type]
            arguments.append(TensorMap(matrices[argument.operand], rows, columns * size, size, argument.swizzle))
        elif isinstance(argument, Pointer):
            arguments.append(address[argument.operand])
        elif isinstance(argument, Workspace):
            arguments.append(address["c"])
        elif isinstance(argument, Leading):
            arguments.append(problem.N)
        elif isinstance(argument, Stride):
            arguments.append(by_name[argument.operand].elements // problem.batch)
        elif isinstance(argument, Integer):
            arguments.append(sizes[argument.name])
        else:
            assert isinstance(argument, Constant)
    program, cluster = read_program(made.ptx), made.launch.cluster
    constants = dict(made.spec.constants)
    programs = made.launch.programs({"units": units})[0] * cluster
    for first in range(0, programs, cluster):
        Machine(
            program,
            arguments,
            cluster=cluster,
            first=first,
            programs=programs,
            threads=LANES * int(constants["warps"]),
            shared_bytes=int(constants["shared_bytes"]),
            registers=read_resources(made.image, "cuda", 0).registers,
            memory=memory,
            random=Random(f"{seed} {first}"),
        ).run()
    wanted = wanted.reshape(-1, problem.N)
    return numbers(c, dtype_c), numbers(stored(wanted, dtype_c), dtype_c)


def _rows(values: Any, row_major: bool) -> Any:
    """A matrix as it is stored; those of a batch one below the other."""
    turned = values if row_major else values.swapaxes(-1, -2)
    return turned.reshape(-1, turned.shape[-1])
