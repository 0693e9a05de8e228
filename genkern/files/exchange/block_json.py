"""JSON of vLLM and SGLang for GEMMs with block scales: a config for some values of M; readers use the nearest M.

Source: vllm/model_executor/layers/quantization/utils/fp8_utils.py and int8_utils.py (get_w8a8_block_*_configs) with the
    files in configs/ beside them; sglang/srt/layers/quantization/fp8_kernel.py and its configs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection
from typing import Any

from genkern.errors import InputError
from genkern.files.exchange.flat_json import read_object
from genkern.files.peer_config import Imported, arch_of, plain_obstacle, plain_values
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.dtypes import parse_dtype
from genkern.gemm.gpus import NOT_PRESENT
from genkern.gemm.problem import MAX_DIMENSION, GemmProblem
from genkern.ops.fields import own_values, parse_own
from genkern.ops.op import get_op

_OP = "a8w8_blockscale"
_NAME = re.compile(
    r"N=(?P<N>[0-9]{1,10}),K=(?P<K>[0-9]{1,10}),device_name=(?P<device>[^,/]{1,100}),"
    r"dtype=(?P<dtype>fp8|int8)_w8a8,block_shape=\[(?P<n>[0-9]{1,5}), ?(?P<k>[0-9]{1,5})\]\.json"
)
# Files of fused MoE, and of GEMMs with other scales, which have the same contents.
_OTHERS = re.compile(r"(E|N)=[0-9]+,.*device_name=.*\.json")
# A key of newer files of fused MoE that is not an M.
_NO_SIZES = ("triton_version",)
# Some configs in SGLang's files split K.
_NAMES = {"SPLIT_K": "SPLIT_K"}


def is_named(name: str) -> bool:
    """Return True if a file of this kind, or of fused MoE, may have this name."""
    return bool(_NAME.fullmatch(name) or _OTHERS.fullmatch(name))


def read(text: str, where: str, name: str, arch: str | None) -> Imported:
    """Return a candidate for each M of the file, with C in bf16. Raises InputError if it is not a file of this kind."""
    base = os.path.basename(name)
    match = _NAME.fullmatch(base)
    if match is None:
        imported = Imported(arch or "")
        reason = "of fused MoE, which lack hidden size and top_k" if base.startswith("E=") else "of other scales"
        imported.left_out[f"files {reason}"] += 1
        return imported
    imported = Imported(arch_of(match["device"], arch, where))
    dtype = parse_dtype(match["dtype"], imported.arch).name
    try:
        own = parse_own(get_op(_OP).fields, {"block_n": match["n"], "block_k": match["k"]})
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    for key, values in read_object(text, where, InputError).items():
        if key in _NO_SIZES:
            continue
        if not re.fullmatch(r"[0-9]{1,10}", key) or not 1 <= int(key) <= MAX_DIMENSION:
            raise InputError(f"{where}: {key[:40]!r} is not a number of rows; the keys of such a file are M")
        try:
            problem = GemmProblem(int(key), int(match["N"]), int(match["K"]), _OP, dtype, dtype, own=own)
            imported.take(problem, values, _NAMES, ())
        except InputError as error:
            raise InputError(f"{where}: M = {key}: {error}") from None
    return imported


def obstacle(problem: GemmProblem) -> str:
    """Return why a file of this kind cannot express the problem; "" if it can."""
    if problem.op != _OP:
        return f"{problem.op}: these files are of {_OP}"
    if problem.bias or problem.activation != "none" or not problem.row_major_a or problem.row_major_b:
        return "a bias, an activation or another layout than row-major A and [N, K] weights"
    if _blocks(problem)[0] != 1 or problem.dtype_a != problem.dtype_b:
        return "scales of several rows of A, or A and B of two types"
    return ""


def config_obstacle(config: Config) -> str:
    """Return why vLLM's and SGLang's kernel cannot run the config; "" if it can."""
    if config.cache_modifier != "none" or config.xcd_remap:
        return "a config with xcd_remap or a cache_modifier"
    return plain_obstacle(config, splits=False)


def render(sizes: Collection[TimedSize], name_of_size: Callable[[GemmProblem, str], str]) -> dict[str, str]:
    """Return a file for each N, K, type and block shape on a device; `name_of_size(problem, device)` returns its
    name."""
    files: dict[str, dict[int, TimedSize]] = {}
    for size in sizes:
        problem, name = size.problem, name_of_size(size.problem, size.device)
        rows = files.setdefault(name, {})
        # Problems may differ in the type of C, which the file does not have: it gets the faster config.
        if problem.M not in rows or size.best_us < rows[problem.M].best_us:
            rows[problem.M] = size
    return {
        name: json.dumps({str(M): plain_values(rows[M].best) for M in sorted(rows)}, indent=4) + "\n"
        for name, rows in files.items()
    }


def name_of(problem: GemmProblem, device: str, file_name: Callable[[str, str, str, int, int], str]) -> str:
    """Return the name of the file for the problem; `device` is spelled as the file's reader spells it."""
    dtype = "int8_w8a8" if problem.dtype_a == "int8" else "fp8_w8a8"
    _, block_n, block_k = _blocks(problem)
    return file_name(f"N={problem.N},K={problem.K}", device, dtype, block_n, block_k)


def device_name(problem: GemmProblem, device: str) -> str:
    """Return the driver's name of the device on which a problem was tuned. Raises InputError if it is unknown."""
    device = device.removesuffix(NOT_PRESENT).strip()
    if not device or not re.fullmatch(r"[\w ./()+-]+", device):
        raise InputError(f"{problem.size} does not say on which device it was tuned; its file's name needs that")
    return device


def _blocks(problem: GemmProblem) -> tuple[int, int, int]:
    own: Any = own_values(get_op(_OP).fields, problem)
    return own.block_m, own.block_n, own.block_k
