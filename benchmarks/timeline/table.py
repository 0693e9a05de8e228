"""What the processes of a traced run were at: seconds by activity, and how busy GPUs and cores were.

    python -m benchmarks.timeline.table FOLDER...     of benchmarks.timeline.traced

Spans contain others (a `tune` its stages), and processes work at the same time, so the columns do not add up to the
run's seconds. `gpu` spans are of measured processes. Of several GPUs the busy seconds are added up.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.common.figures import table

# Requests of measured processes that use the GPU.
_ON_GPU = tuple(f"gpu {command}" for command in ("open", "screen", "semifinal", "retime", "check", "alike", "rows"))


def main() -> None:
    for name in sys.argv[1:]:
        print_folder(Path(name))


def print_folder(folder: Path) -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    cpu_s: dict[str, float] = defaultdict(float)
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            what, begin_s, end_s, cpu, more = json.loads(line)
            if what == "gpu open" and "thread" in more:
                # The request's span has it.
                continue
            key = f"{what} {more['module']}" if what == "import" else what
            seconds[key].append(end_s - begin_s)
            cpu_s[key] += cpu
    rows = [
        [what, len(all_s), f"{sum(all_s):.2f}", f"{sum(all_s) / len(all_s):.3f}", f"{cpu_s[what]:.2f}"]
        for what, all_s in sorted(seconds.items(), key=lambda each: -sum(each[1]))
        if sum(all_s) > 0.01
    ]
    print(table(["activity", "times", "s", "s each", "CPU s"], rows))
    whole = json.loads((folder / "whole.json").read_text())
    took_s, sizes = whole["end"] - whole["begin"], len(seconds["tune"])
    samples = [tuple(map(float, line.split(","))) for line in (folder / "cores.csv").read_text().splitlines()]
    cores = (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])
    gpu_s = sum(sum(seconds[what]) for what in _ON_GPU)
    print(f"{folder.name}: {took_s:.1f} s, {sizes} sizes; GPUs busy {gpu_s:.1f} s, cores {cores:.1f} in the mean")


if __name__ == "__main__":
    main()
