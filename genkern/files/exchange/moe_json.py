"""JSON of vLLM and SGLang for mixtures of experts: for some numbers of tokens, a config for both products.

`E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json`: E experts of width N; files of 16-bit
experts have no dtype. In vLLM, gate and up are one product with 2 N columns; in genkern they are two products side by
side, so the file's BLOCK_SIZE_N is twice that of genkern's stage gate_up, and equal to that of stage down. Source:
vllm/model_executor/layers/fused_moe/fused_moe.py (get_config_file_name, get_moe_configs) with the files in configs/
beside it; sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py, which also uses such a file for its
second product if that has no file of its own (_down).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from genkern.files.peer_config import plain_values
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import is_full
from genkern.ops.fields import own_values
from genkern.ops.op import get_op

OP = "fused_moe"
_NAME = re.compile(
    r"E=(?P<E>[0-9]{1,6}),N=(?P<N>[0-9]{1,10}),device_name=[^,/]{1,100}(?:,dtype=\w+)?"
    r"(?:,block_shape=.*|,per_channel_quant=True)?\.json"
)
_GATES = 2
# The end of a file's name, by the experts' scales.
Endings = Mapping[str, str]


def is_named(name: str) -> bool:
    """Return True if a file of this kind may have this name."""
    return bool(_NAME.fullmatch(name))


def obstacle(problem: GemmProblem) -> str:
    """Return why a file of this kind cannot express the problem; "" if it can."""
    own: Any = own_values(get_op(OP).fields, problem)
    if not problem.row_major_a or problem.row_major_b or problem.dtype_a != problem.dtype_b:
        return "another layout than row-major A and [N, K] weights, or operands of two types"
    if own.routing != "balanced":
        return "skewed routing, which these files cannot express"
    if is_full(problem):
        return "full sums of fp8, which the kernels of these files do not compute"
    return "" if problem.activation in ("none", "silu") else "another activation than silu"


def render(sizes: Collection[TimedSize], name_of_size: Callable[[GemmProblem, str], str]) -> dict[str, str]:
    """Return a file for each kind of experts on a device; `name_of_size(problem, device)` returns its name.

    A number of tokens gets the config with the least sum of both stages' times among the configs that were timed for
    both; if there is none, the best config of stage gate_up, which has two thirds of the work; and if that was not
    tuned, the best config of stage down. Raises InputError if a size has no device.
    """
    stages: dict[str, dict[int, dict[str, TimedSize]]] = {}
    for size in sizes:
        own: Any = own_values(get_op(OP).fields, size.problem)
        by_tokens = stages.setdefault(name_of_size(size.problem, size.device), {})
        known = by_tokens.setdefault(size.problem.M, {})
        if own.stage not in known or size.best_us < known[own.stage].best_us:
            known[own.stage] = size
    files = {}
    for name, by_tokens in stages.items():
        chosen = {str(tokens): plain_values(_both(of_stage)) for tokens, of_stage in sorted(by_tokens.items())}
        files[name] = json.dumps(chosen, indent=4) + "\n"
    return files


def _both(of_stage: Mapping[str, TimedSize]) -> Config:
    """Return the config for both stages, in vLLM's terms."""
    gate, down = (of_stage.get(stage) for stage in ("gate_up", "down"))
    theirs = {_widened(config): us for config, us in gate.times_us.items()} if gate else {}
    both = {config: us + theirs[config] for config, us in down.times_us.items() if config in theirs} if down else {}
    if both:
        return min(both, key=lambda config: (both[config], config.name))
    if gate is not None:
        return _widened(gate.best)
    assert down is not None
    return down.best


def _widened(config: Config) -> Config:
    return replace(config, BLOCK_SIZE_N=config.BLOCK_SIZE_N * _GATES)


def name_of(problem: GemmProblem, device: str, endings: Endings) -> str:
    """Return the name of the file for the problem; `device` is spelled as the file's reader spells it."""
    own: Any = own_values(get_op(OP).fields, problem)
    width = problem.N if own.stage == "gate_up" else problem.K
    kind = "int8_w8a8" if problem.dtype_a == "int8" else "fp8_w8a8" if DTYPES[problem.dtype_a].is_float8 else ""
    dtype = f",dtype={kind}" if kind else ""
    ending = endings.get(own.scales, "") if kind else ""
    return f"E={own.experts},N={width},device_name={device}{dtype}{ending}.json"
