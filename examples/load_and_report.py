"""Load results, and show them as a table, a picture and a report.

    python examples/load_and_report.py [RESULTS] [FOLDER]

Without arguments it shows results that genkern ships, measured on an H100, and writes into the current folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import geometric_mean

import matplotlib.pyplot as plt

import genkern

SHIPPED = Path(__file__).resolve().parent.parent / "results" / "nvidia_h100" / "llama-3.1-8b_tp1_bf16.yaml"


def main() -> None:
    path = sys.argv[1] if len(sys.argv) > 1 else str(SHIPPED)
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else ".")
    result = genkern.load(path)
    table = result.to_pandas()
    print(table[["M", "N", "K", "time_us", "library_us", "speedup"]].to_string(float_format="{:.3f}".format))
    print(f"geometric mean of the speed over the library: {geometric_mean(table.speedup):.3f}")
    figure, ax = plt.subplots(figsize=(10, 4), layout="constrained")
    result.plot(ax)
    figure.savefig(folder / "speed.png")
    print("report:", result.report(folder / "report.html").name)


if __name__ == "__main__":
    main()
