"""Seconds of a further size from what `genkern -v` printed of several.

    time python -m genkern -i SIZES.yaml --compare -o RESULTS.yaml -v > LOG
    python -m benchmarks.timing.stages LOG --wall_s SECONDS

Several sizes are under way at a time: a further one's seconds are what the stages of the first leave of the run's, by
as many sizes. With --kernels the log is of a run that started from a file of kernels. What somebody waits for one
size alone is benchmarks.timing.first_size's.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# As `genkern -v` prints them behind the counts of a size.
_STAGES = re.compile(r"; (prune [0-9.]+ s, compile and screen [^;]*? s)(?:;|$)", re.MULTILINE)
_STAGE = re.compile(r"([a-z][a-z -]*?) ([0-9.]+) s")


def stages_of(log: str) -> list[dict[str, float]]:
    """The seconds of each stage, by size in the order of the log."""
    return [{name: float(seconds) for name, seconds in _STAGE.findall(text)} for text in _STAGES.findall(log)]


def figures(sizes: Sequence[Mapping[str, float]], wall_s: float, kernels: bool) -> dict[str, float | None]:
    """By their keys in results/figures.yaml; None of what the log does not have."""
    further_s = wall_s - sum(sizes[0].values()) if len(sizes) > 1 else None
    per_size = None if further_s is None else further_s / (len(sizes) - 1)
    return {"kernels_file_s_per_size" if kernels else "guided_s_per_size": per_size}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="what genkern -v printed")
    parser.add_argument("--wall_s", type=float, required=True, help="what the whole run took")
    parser.add_argument("--kernels", action="store_true", help="of a run with a file of kernels")
    options = parser.parse_args(argv)
    sizes = stages_of(options.log.read_text(encoding="utf-8", errors="replace"))
    print(f"{len(sizes)} sizes: " + ", ".join(f"{sum(each.values()):.1f}" for each in sizes))
    for key, value in figures(sizes, options.wall_s, options.kernels).items():
        print(f"{key}: {'-' if value is None else format(value, '.3f')}")
    return 0 if sizes else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
