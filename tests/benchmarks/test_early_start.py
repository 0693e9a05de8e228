"""What starting early saves: the contender that does not, and the table."""

from __future__ import annotations

import json

from early_start import BEHIND, EARLY, LATE, LIBRARY, Size, late_plan, report

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.families.call import product_of
from genkern.kernels.specs import launch_plan
from genkern.ops.op import get_op


def test_the_late_plan_differs_in_that_alone() -> None:
    """All of its launches wait as any other; nothing else is changed."""
    problem, config = GemmProblem(100, 1000, 1024), Config("tiled", 64, 64, 64, 1, 4, 4, 3)
    early = launch_plan(product_of(problem, get_op("a16w16"), "sm_90"), config, gpu_for_arch("sm_90")).to_json()
    late = late_plan(early)
    assert '"starts_early": true' in json.dumps(json.loads(early))
    assert json.dumps(json.loads(late)) == json.dumps(json.loads(early)).replace('early": true', 'early": false')


def test_report() -> None:
    """Times alone and their ratios, and behind another kernel the differences, which its own time is no part of."""
    times = {EARLY: 10.0, LATE: 11.0, LIBRARY: 12.0}
    behind = {EARLY + BEHIND: 13.0, LATE + BEHIND: 13.5, LIBRARY + BEHIND: 14.25}
    lines = report([Size("1x2x3", "gemv", times | behind)]).splitlines()
    assert lines[2] == "| 1x2x3 | 10.00 | 11.00 | 12.00 | 1.100 | 1.200 | 0.50 | 1.25 | gemv |"
    assert lines[-1] == "1 sizes, geometric means: late / early 1.1000, library / early 1.2000"
