"""Public reports that were tried on genkern: how many, and how many of their tests fail.

    python -m benchmarks.checking.reports

Reads the lines of tests/reports/README.md and runs the tests that they name.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "tests" / "reports" / "README.md"
_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def named_tests(page: str) -> dict[str, list[str]]:
    """Returns the tests of each line by its source and situation, as pytest names them from the root of the project."""
    paths = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    found = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "source":
            named = _TEST.findall(cells[-1])
            found[f"{cells[0]}: {cells[2]}"] = [f"{paths[file].relative_to(ROOT)}::{test}" for file, test in named]
    return found


def main() -> int:
    """Returns 1 if a test fails."""
    reports = named_tests(PAGE.read_text(encoding="utf-8"))
    names = sorted({test for tests in reports.values() for test in tests})
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", *names],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode not in (0, 1):
        sys.exit(ran.stdout)
    failed = set(re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", ran.stdout, re.MULTILINE))
    still_open = [report for report, tests in reports.items() if failed & {*tests}]
    for report in still_open:
        print(f"fails: {report}")
    print(f"reports_tried: {len(reports)}")
    print(f"reports_failed_open: {len(still_open)}")
    return 1 if still_open else 0


if __name__ == "__main__":
    sys.exit(main())
