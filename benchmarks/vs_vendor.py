"""A table of tuned results against the vendor library, from the times that one run took of both, round by round.

python benchmarks/vs_vendor.py results/nvidia_h200/anchors_bf16.yaml
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from genkern.errors import GenkernError
from genkern.formats.tune_gemm_yaml import read_winners
from genkern.formats.tuned_row import TunedRow


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(rows: Sequence[TunedRow]) -> str:
    """Markdown: one line a size, then geometric means by M and over all."""
    compared = [row for row in rows if row.duration_us and row.vendor_us]
    lines = ["| M | N | K | genkern us | vendor us | vendor / genkern | config |", "|---|---|---|---|---|---|---|"]
    ratios: dict[int, list[float]] = {}
    for row in sorted(compared, key=lambda row: (row.problem.M, row.problem.N, row.problem.K)):
        p, us, vendor_us = row.problem, row.duration_us or 0.0, row.vendor_us or 0.0
        ratio = vendor_us / us
        ratios.setdefault(p.M, []).append(ratio)
        lines.append(f"| {p.M} | {p.N} | {p.K} | {us:.2f} | {vendor_us:.2f} | {ratio:.3f} | {row.config.name} |")
    lines += ["", "| M | sizes | geomean | least | most |", "|---|---|---|---|---|"]
    every = [ratio for group in ratios.values() for ratio in group]
    for name, group in [*((str(m), group) for m, group in sorted(ratios.items())), ("all", every)]:
        lines.append(f"| {name} | {len(group)} | {geomean(group):.3f} | {min(group):.3f} | {max(group):.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        try:
            print(f"{path}\n\n{table(read_winners(path))}\n")
        except GenkernError as error:
            print(error, file=sys.stderr)
            sys.exit(2)
