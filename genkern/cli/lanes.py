"""The number of sizes that a run has under way on each GPU (lanes)."""

from __future__ import annotations

from collections.abc import Sequence

from genkern.cli.setting import Setting
from genkern.cli.target import shares_device
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op

# CPUs per lane, for its driver process, its measured process and its share of the compiles.
_CPUS = 4
# The share of a GPU's memory that all lanes may take. A lane takes _LANE_BYTES, and _TIMES the bytes of its operands:
# for copies of the weights, and for the inputs and references of a check.
_SHARE, _LANE_BYTES, _TIMES = 0.8, 4 * 2**30, 5


def lanes_of(setting: Setting, problems: Sequence[GemmProblem]) -> int:
    """Return the number of lanes: at most --lanes, and as many as there are CPUs, memory and sizes for.

    Returns 1 if a size's search has a limit in seconds, which other lanes would use up; if every candidate is measured,
    since the GPU then is the bottleneck; and if the profiler cannot share a GPU. There are no more lanes than sizes per
    GPU, so that a single size is compiled on all cores.
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
