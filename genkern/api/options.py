"""Keyword arguments of `tune` and `explain`, and the command line that they mean.

A test compares `TuneOptions` with the parser of the command, name by name and value by value.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from genkern.errors import InputError

if TYPE_CHECKING:
    import torch

# Evaluated at run time, in Python 3.10 too.
DType = Union[str, "torch.dtype"]
StrPath = Union[str, "os.PathLike[str]"]

# Options of the command that are no keyword arguments, and what replaces each in Python.
NOT_IN_PYTHON = {
    "gemm_size_file": "give the file as `problems`",
    "model_dir": "give the folder as `problems`",
    "tuning_results_file": "give the file as `output`",
    "verbose": "genkern.tune(..., verbose=True)",
    "compare_wo_tuning": "only the command has it",
    "benchmark": "only the command has it",
    "explain": "call genkern.explain",
    "bucket": "only the command has it",
    "bucket_keys": "only the command has it",
    "predicted": "only the command has it",
    "progress_file": "genkern.tune(..., progress=True) shows a bar",
    "json": "use the returned object",
    "wide": "use to_pandas() of the returned object",
    "help": "see help(genkern.tune)",
    "help_all": "see help(genkern.tune)",
    "version": "see genkern.__version__",
}
# Options that are given once for each of their values.
_REPEATED = ("family",)


class TuneOptions(TypedDict, total=False):
    """Options of a run, by the names of the command's flags; docs/options.md describes each.

    None, False and a missing key all mean the flag's default. `dtype` is short for `dtype_a`.
    """

    # the sizes
    op: StrPath | None
    dtype: DType | None
    dtype_a: DType | None
    dtype_b: DType | None
    dtype_c: DType | None
    col_a: bool
    row_b: bool
    col_b: bool
    bias_vector: bool
    all_bias: bool
    activation: Literal["none", "relu", "gelu", "silu"] | None
    tp: int | None
    nsets: Sequence[int] | None
    family: StrPath | Sequence[StrPath] | None
    # fields of number formats
    precision: str | None
    weights: str | None
    scale_type: str | None
    group: int | None
    scales: str | None
    accumulate: str | None
    block_m: int | None
    block_n: int | None
    block_k: int | None
    layout: str | None
    batch_size: int | None
    stage: str | None
    experts: int | None
    top_k: int | None
    routing: str | None
    routing_seed: int | None
    groups: int | None
    capacity: int | None
    # the check
    compare: bool
    no_check: bool
    errRatio: float | None
    atol: float | None
    rtol: float | None
    # the device, and how it is measured
    arch: str | None
    device: str | None
    profiler: (
        Literal[
            "auto",
            "rocprofv3",
            "rocprof",
            "hipgraph",
            "hipevents",
            "cudagraph",
            "cudaevents",
            "cupti",
            "predict",
        ]
        | None
    )
    gpu_ids: Sequence[int] | None
    ngpus: int | None
    shared_gpu: bool
    protocol: Literal["genkern", "tune_gemm"] | None
    iters: int | None
    num_iters: int | None
    warmup: int | None
    timeout: float | None
    rotating_tensor: float | None
    libtype: str | Sequence[str] | None
    icache_flush: bool
    init_type: Literal["randn", "hpl", "trig_float", "zeros"] | None
    # search and compile
    space: StrPath | None
    jobs: int | None
    lanes: int | None
    cluster: str | None
    cache_dir: StrPath | None
    kernels: StrPath | None
    search: StrPath | None
    exhaustive: bool
    patience: int | None
    budget: str | int | None
    compile: bool
    batch_invariant: bool
    sums: Literal["least", "library"] | None
    m_weights: str | None
    deterministic: bool
    keep: bool
    # results
    profile_file: StrPath | None
    all: bool
    sort: bool
    batch: int | None


def option_names() -> tuple[str, ...]:
    """Return the names of all keyword arguments that are options of the command."""
    return tuple(TuneOptions.__annotations__)


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """Return the command line of these options, without the sizes and the output. Raises InputError for an unknown
    name."""
    arguments = []
    for name, value in options.items():
        if name not in TuneOptions.__annotations__:
            near = difflib.get_close_matches(name, option_names(), n=1)
            hint = f"did you mean {near[0]}?" if near else "docs/options.md lists the options"
            raise InputError(f"{name} is not a keyword argument: {NOT_IN_PYTHON.get(name) or hint}")
        flag = f"--{'dtype_a' if name == 'dtype' else name}"
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(flag)
        elif name in _REPEATED and not isinstance(value, (str, os.PathLike)):
            arguments += [f"{flag}={_text(name, each)}" for each in value]
        else:
            # One argument, so that a value may start with a dash.
            arguments.append(f"{flag}={_text(name, value)}")
    return arguments


def _text(name: str, value: object) -> str:
    """Return the value of an option as the command line has it. Raises InputError for a value of another type."""
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, (str, int, float)):
        return str(value)
    if name.startswith("dtype") and (text := str(value)).startswith("torch."):
        return text.removeprefix("torch.")
    if isinstance(value, Sequence) and all(isinstance(each, (str, int)) for each in value):
        return ",".join(map(str, value))
    raise InputError(f"{name} = {str(value)[:40]!r} is not usable: give a text, a number or a list of these")
