"""vLLM's and SGLang's JSON for mixtures of experts: a config for each of some numbers of tokens, which both products
take.

`E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json`: E experts of width N; 16-bit ones
without dtype. Gate and up are one product of 2 N columns there, and here two side by side: BLOCK_SIZE_N of theirs is
twice that of genkern's stage gate_up, and that of stage down as it is. Source:
vllm/model_executor/layers/fused_moe/fused_moe.py (get_config_file_name, get_moe_configs) with the files in configs/
beside it; sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py, which takes such a file for its
second product too where there is none of its own (_down).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from genkern.formats.exchange.peer_config import plain_values
from genkern.formats.exchange.timed_size import TimedSize
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
# How a file's name ends, by the experts' scales.
Endings = Mapping[str, str]


def is_named(name: str) -> bool:
    """Whether it is a name of such a file."""
    return bool(_NAME.fullmatch(name))


def obstacle(problem: GemmProblem) -> str:
    """Why such a file cannot speak of the problem; "" when it can."""
    own: Any = own_values(get_op(OP).fields, problem)
    if not problem.row_major_a or problem.row_major_b or problem.dtype_a != problem.dtype_b:
        return "another layout than row-major A and [N, K] weights, or operands of two types"
    if own.routing != "balanced":
        return "skewed routing, of which these files know nothing"
    if is_full(problem):
        return "full sums of fp8, which the kernels of these files do not make"
    return "" if problem.activation in ("none", "silu") else "another activation than silu"


def render(sizes: Collection[TimedSize], name_of_size: Callable[[GemmProblem, str], str]) -> dict[str, str]:
    """A file for each kind of experts on a device; `name_of_size` makes its name of a problem and a device. Raises
    InputError if a size does not say its device.

    A config is that with the least sum of both stages' times among those that were timed for both; where none was, that
    of stage gate_up, which has two thirds of the work.
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
    """The config in vLLM's terms."""
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
    """The name of the file that speaks of the problem; `device` is its reader's word for the device."""
    own: Any = own_values(get_op(OP).fields, problem)
    width = problem.N if own.stage == "gate_up" else problem.K
    kind = "int8_w8a8" if problem.dtype_a == "int8" else "fp8_w8a8" if DTYPES[problem.dtype_a].is_float8 else ""
    dtype = f",dtype={kind}" if kind else ""
    ending = endings.get(own.scales, "") if kind else ""
    return f"E={own.experts},N={width},device_name={device}{dtype}{ending}.json"
