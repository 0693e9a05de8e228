"""Lanes: how many sizes a run has under way on each GPU."""

from __future__ import annotations

from collections.abc import Sequence

from genkern.command.setting import Setting
from genkern.command.target import shares_device
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op

# CPUs of each, which has a driver, a measured process and its share of the compiles.
_CPUS = 4
# What operands and checks of all lanes may take of a GPU's memory together; what a lane takes whatever its size, and
# how many times its operands it takes: copies of the weights, and the inputs and references of a check.
_SHARE, _LANE_BYTES, _TIMES = 0.8, 4 * 2**30, 5


def lanes_of(setting: Setting, problems: Sequence[GemmProblem]) -> int:
    """As many as --lanes says and there are CPUs for, and memory for the largest of the sizes so many times. One where
    others would take of a size's limited seconds, and where everything is measured: then one waits for the GPU. No more
    than a GPU has sizes: of a single one all cores compile.
    """
    alone = setting.limit.seconds is not None or setting.budget.every
    if alone or not shares_device(setting.target, setting.options.profiler):
        return 1
    largest = max(sum(operand.size_bytes for operand in get_op(each.op).operands(each)) for each in problems)
    room = _SHARE * setting.target.gpu.memory_gb * 1e9
    most: int = setting.options.lanes
    cpus: int = setting.options.jobs // len(setting.device_indices)
    sizes = -(-len(problems) // len(setting.device_indices))
    return max(1, min(most, sizes, cpus // _CPUS, int(room / (_TIMES * largest + _LANE_BYTES))))
