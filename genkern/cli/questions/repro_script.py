"""The text of `genkern repro`'s scripts: a kernel of genkern's, or a call of the library, that runs without genkern."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from typing import Any

from genkern import __version__
from genkern.cli.report import format_text
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import language_of, traits_of
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.lowering import with_layouts
from genkern.kernels.specs import kernel_specs
from genkern.ops.op import get_op
from genkern.ops.templates import environment_of
from genkern.result.result import Result
from genkern.runtime.backends import lt_api
from genkern.runtime.backends.cublaslt_api import DIALECT
from genkern.runtime.backends.lt_matmul import WORKSPACE_BYTES
from genkern.runtime.backends.lt_operation import NotCovered, Operation, operation_of
from genkern.timing.libraries import AITER, CUBLASLT, TORCH, StoredAlgorithm, library_of, stored_algorithm

# First function of a generated module that a script replaces by its own.
_PROGRAM = "test_gemm"
_LINE = 116
# Samples of each call: as genkern's finals, if the times do not settle earlier.
_ROUNDS = 60


def kernel_script(row: Result, config: Config, gpu: Gpu, place: str, file_name: str) -> str:
    """Return a script that checks and times a kernel. Raises InputError for kernels in CuTe DSL and illegal configs."""
    problem = row.problem
    if language_of(config) != "triton":
        raise InputError(
            f"{config.name} is written in CuTe DSL, and scripts are for Triton, Gluon and library calls: give --config "
            "of another config, or --library for the library's call"
        )
    module = generate(problem, [config], gpu.arch, gpu)
    specs = kernel_specs(problem, config, get_op(problem.op), module.source_sha256, gpu.arch)
    is_gluon = not traits_of(config).interpreted
    interpreted = "" if is_gluon else "; without a GPU under TRITON_INTERPRET=1 (needs NumPy, may take minutes)"
    without = (
        "--compile compiles this kernel, which Triton's interpreter cannot run"
        if is_gluon
        else "set TRITON_INTERPRET=1 to check, or give --compile"
    )
    return _rendered(
        "kernel",
        problem,
        gpu,
        head=_head(row, config.name, config, place),
        file_name=file_name,
        body=_without_program(module.text),
        arch=gpu.arch,
        interpreted=interpreted,
        without_gpu=without,
        is_gluon=is_gluon,
        specs=[_spec_text(spec) for spec in specs],
        target=triton_target(gpu),
        has_vendor=not get_op(problem.op).no_vendor(problem),
    )


def library_script(row: Result, call: str, gpu: Gpu, place: str, file_name: str) -> str:
    """Return a script that checks and times a call of the library beside PyTorch's own.

    Raises InputError for libraries other than PyTorch and cuBLASLt, and for problems that they do not compute.
    """
    problem = row.problem
    if reason := get_op(problem.op).no_vendor(problem):
        raise InputError(f"no library computes this: {reason}")
    library = library_of(call)
    if library not in (TORCH, CUBLASLT):
        advice = "AITER's own scripts run its kernels" if library == AITER else "its API is not written into scripts"
        raise InputError(f"{call.partition(' ')[0]}: {advice}: give --config, or --torch for PyTorch's call")
    kept = stored_algorithm(call)
    operation = None
    if kept is not None:
        try:
            operation = operation_of(problem, DIALECT)
        except NotCovered as error:
            raise InputError(f"cuBLASLt: {error}") from None
    return _rendered(
        "library",
        problem,
        gpu,
        head=_head(row, call if kept is None else f"{CUBLASLT} {kept.version}", None, place),
        file_name=file_name,
        body=_without_docstring(generate(problem, (), gpu.arch, gpu).measured_text),
        operation=operation,
        **(_algorithm(kept, operation) if kept is not None and operation is not None else {}),
    )


def _rendered(kind: str, problem: GemmProblem, gpu: Gpu, **values: Any) -> str:
    template = environment_of(()).get_template(f"repro/{kind}.py.j2")
    cache_bytes = round(2 * gpu.last_level_cache_mib * 2**20)
    return template.render(values, flops=problem.flops, cache_bytes=cache_bytes, rounds=_ROUNDS)


def _head(row: Result, called: str, config: Config | None, place: str) -> str:
    """Return the docstring's beginning: what the script runs, and what was measured where."""
    problem = row.problem
    lines = [f"GEMM {problem.size}, {format_text(problem)}: {called}", ""]
    written = f"Written by genkern {__version__} from {place}."
    is_own = config is not None and config == row.config
    said = []
    if row.measured and row.duration_us is not None and row.config is not None:
        name = "this kernel" if is_own else f"{row.config.name}"
        said.append(f"{name} {row.duration_us:.2f} us")
    if row.measured and row.vendor_us is not None:
        said.append(
            f"the library's best call ({library_of(row.vendor) if row.vendor else 'vendor'}) {row.vendor_us:.2f} us"
        )
    if row.measured and row.torch_us is not None:
        said.append(f"PyTorch's own call {row.torch_us:.2f} us")
    if said:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(row.versions) if name != "genkern")
        where = row.device or row.arch or "an unnamed GPU"
        source = f" (medians by {row.time_source})" if row.time_source else ""
        written += f" Measured on {where} with {versions or 'unknown versions'}: {', '.join(said)}{source}."
    else:
        written += " Nothing was measured."
    return "\n".join([*lines, *textwrap.wrap(_safe(written), _LINE)])


def _safe(text: str) -> str:
    """Return text of a file that can stand in a docstring: printable ASCII without quotes and backslashes."""
    return "".join(each if each.isprintable() and each.isascii() and each not in '"\\' else "?" for each in text)


def _without_program(text: str) -> str:
    """Return a generated module without its docstring and without the test and the program at its end."""
    tree = ast.parse(text)
    (program,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == _PROGRAM)
    return _without_docstring("\n".join(text.splitlines()[: program.lineno - 1]).rstrip() + "\n")


def _without_docstring(text: str) -> str:
    first = ast.parse(text).body[0]
    return "\n".join(text.splitlines()[first.end_lineno :]).rstrip()


def _spec_text(spec: KernelSpec) -> dict[str, Any]:
    """Return what --compile passes to Triton, as texts of Python literals."""
    return {
        "function": spec.function,
        "signature": with_layouts(spec.signature) if _has_descriptor(spec) else spec.signature,
        "constants": repr(dict(spec.constants)),
        "divisible": repr(dict(spec.divisible)),
        "options": repr(dict(spec.options)),
    }


def _has_descriptor(spec: KernelSpec) -> bool:
    return any(kind.startswith("tensordesc<") for _, kind in spec.signature)


def _algorithm(kept: StoredAlgorithm, operation: Operation) -> dict[str, Any]:
    """Return the template's values for a call of one algorithm."""
    digits = kept.data.hex()
    return {
        "algorithm_lines": textwrap.wrap(digits, 64),
        "version": kept.version,
        "workspace_bytes": WORKSPACE_BYTES,
        "attributes": _attributes(operation),
        "layouts": [
            (each.dtype, each.rows, each.columns, each.leading) for each in (operation.a, operation.b, operation.d)
        ],
        "compute": operation.compute,
        "scale_type": operation.scale_type,
        "scalar": "c_int32" if operation.scale_type == lt_api.R_32I else "c_float",
    }


def _attributes(operation: Operation) -> Sequence[tuple[int, int, str, str]]:
    """Return the attributes of the descriptor: number, bytes, value as Python text, meaning."""
    found: list[tuple[int, int, str, str]] = []

    def add(attribute: tuple[int, int], value: int | str, said: str) -> None:
        found.append((*attribute, repr(value), said))

    for name, attribute, transposed in zip(
        "AB", DIALECT.desc_trans, (operation.transposed_a, operation.transposed_b), strict=True
    ):
        add(attribute, DIALECT.operations[transposed], f"{name} is {'transposed' if transposed else 'not transposed'}")
    add(DIALECT.desc_epilogue, operation.epilogue, "epilogue")
    if operation.has_bias:
        add(DIALECT.desc_bias_pointer, "bias", "address of the bias")
        add(DIALECT.desc_bias_data_type, operation.d.dtype, "type of the bias")
    if operation.scales is not None:
        for attribute, name in zip(DIALECT.desc_scale_pointers, ("scale_b", "scale_a"), strict=True):
            add(attribute, name, f"address of {name}")
        if DIALECT.desc_fast_accum is not None:
            add(DIALECT.desc_fast_accum, int(operation.fast_accum), "fast accumulation")
        if operation.scales != (lt_api.SCALE_SCALAR, lt_api.SCALE_SCALAR):
            for attribute, mode in zip(DIALECT.desc_scale_modes, operation.scales, strict=True):
                add(attribute, mode, "scale mode")
    return found
