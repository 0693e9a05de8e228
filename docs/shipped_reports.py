"""Reports of the shipped results: pictures for docs/report.md (`make docs`), or whole pages for a site.

python docs/shipped_reports.py              writes docs/report_DEVICE.svg
python docs/shipped_reports.py FOLDER       writes FOLDER/DEVICE.html, with candidates of results/recorded (minutes)
"""

from __future__ import annotations

import sys
from pathlib import Path

from genkern.results_report import write

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
DEVICES = ("nvidia_h200", "nvidia_h100")


def pictures(folder: Path = HERE) -> None:
    """Write a picture for each device."""
    for device in DEVICES:
        write(RESULTS / device, folder / f"report_{device}.svg")


def pages(folder: Path) -> None:
    """Write a page for each device."""
    folder.mkdir(parents=True, exist_ok=True)
    for device in DEVICES:
        recorded = RESULTS / "recorded"
        tables = [*sorted(recorded.glob(f"{device}_*.parquet")), *sorted(recorded.glob(f"searched/{device}_*.parquet"))]
        write(RESULTS / device, folder / f"{device}.html", candidates=[str(table) for table in tables])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        pages(Path(sys.argv[1]))
    else:
        pictures()
