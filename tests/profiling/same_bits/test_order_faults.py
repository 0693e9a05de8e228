"""Faults of the order of sums (benchmarks/checking/faults_of_kernels.py) in kernels that are interpreted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from small_gemms import needs_interpreter

from benchmarks.checking.faults_of_kernels import ORDER_FAULTS
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate

TESTS = Path(__file__).parents[2]
PROBLEM = GemmProblem(20, 32, 320, "a16w16", "fp16", "fp16", "fp32")
CONFIG = Config("tiled", 16, 16, 32, SPLIT_K=4, num_warps=4)


@needs_interpreter
def test_another_order_is_found_by_rows_alone(tmp_path: Path) -> None:
    """No check of a product finds it; comparing rows does, and finds nothing in the kernel as it is generated."""
    text = generate(PROBLEM, [CONFIG], "sm_90").text
    mutants = {fault.name: re.sub(fault.pattern, fault.replacement, text, flags=re.MULTILINE) for fault in ORDER_FAULTS}
    assert all(mutant != text for mutant in mutants.values())
    files = {"good.py": text} | {f"mutant_{number}.py": each for number, each in enumerate(mutants.values())}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    good, *others = files
    case = {"problem": asdict(PROBLEM), "config": CONFIG.name, "module": good, "others": others}
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
    }
    argv = [sys.executable, str(TESTS / "interpreted_rows.py"), str(tmp_path), json.dumps(case)]
    ran = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found.pop(good) == ["", ""]
    assert len(found) == len(ORDER_FAULTS)
    for product, rows in found.values():
        assert product == ""
        assert rows.startswith("rows have other bits than the reference of this order of sums")
