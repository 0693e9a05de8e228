"""Size and time to open of a report with 500 sizes and 30,000 candidates, in a headless Chromium.

    python -m benchmarks.results.report_page [-o report.html] [--times 5]

The sizes are rows of results/nvidia_h100, and those of results/nvidia_h200 are the older results; the candidates come
from results/recorded. Reading these tables takes half a minute, and generating the sources of 1,000 kernels as long.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.browser import browser, browser_or_reason, opened
from benchmarks.common.figures import median, spread_order
from benchmarks.common.workbench import errors_end
from genkern.files.file_kind import read_results
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result
from genkern.results_report import write

ROOT = Path(__file__).resolve().parents[2]
SIZES, CANDIDATES = 500, 30_000
RECORDED = [
    *sorted((ROOT / "results" / "recorded" / "searched").glob("nvidia_h100*.parquet")),
    *sorted((ROOT / "results" / "recorded").glob("nvidia_h100*.parquet")),
]


def rows_of(folder: Path) -> list[Result]:
    """The rows of a folder of results, one for each problem."""
    by_problem: dict[GemmProblem, Result] = {}
    for path in sorted(folder.glob("*.yaml")):
        for row in read_results(str(path)):
            by_problem.setdefault(row.problem, row)
    return list(by_problem.values())


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", help="keep the page in this file")
    parser.add_argument("--times", type=int, default=5, help="times to open it (default: 5)")
    arguments = parser.parse_args(argv)
    executable, reason = browser_or_reason()
    if not executable:
        sys.exit(reason)
    with errors_end(), tempfile.TemporaryDirectory() as folder:
        path = Path(arguments.output or Path(folder, "report.html"))
        rows = spread_order(rows_of(ROOT / "results" / "nvidia_h100"), SIZES)
        old = rows_of(ROOT / "results" / "nvidia_h200")
        record = write(rows, path, old, candidates=[str(file) for file in RECORDED], most_candidates=CANDIDATES)
        shown = sum(len(each.config) for each in record.candidates)
        print(f"{len(record.sizes)} sizes, {shown:,} candidates of {len(record.candidates)} sizes one by one")
        version = subprocess.run([executable, "--version"], capture_output=True, text=True, check=False).stdout.strip()
        seconds, cpu = [], []
        for _ in range(arguments.times):
            with browser() as chromium, opened(chromium, path, 1400) as page:
                seconds.append(page.opened_s)
                cpu.append(page.cpu_s)
        print(f"opened in {', '.join(f'{each:.2f}' for each in seconds)} s; {version}; load {os.getloadavg()[0]:.1f}")
        print(f"report_mib: {path.stat().st_size / 2**20:.2f}")
        print(f"report_open_s: {median(seconds):.2f}")
        print(f"report_open_cpu_s: {median(cpu):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
