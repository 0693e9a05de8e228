"""What the processes of a traced run were at: seconds by activity, and how busy GPUs and cores were.

    python -m benchmarks.timeline.table FOLDER...     of benchmarks.timeline.traced

Spans contain others (a `tune` its stages), and processes work at the same time, so the columns do not add up to the
run's seconds. `gpu` spans are of measured processes. Of several GPUs the busy seconds are added up. Before that: when
the first size that was finished reached each step, in seconds from the command's start.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.figures import table

# Requests of measured processes that use the GPU.
_ON_GPU = tuple(f"gpu {command}" for command in ("open", "screen", "semifinal", "retime", "check", "alike", "rows"))


# What a process has noted: what it did, begin and end in seconds, CPU seconds, and more.
Span = tuple[str, float, float, float, dict[str, Any]]


def main() -> None:
    for name in sys.argv[1:]:
        spans = [
            (what, begin_s, end_s, cpu_s, more)
            for path in Path(name).glob("*.jsonl")
            for what, begin_s, end_s, cpu_s, more in map(json.loads, path.read_text().splitlines())
        ]
        print_first(Path(name), spans)
        print_folder(Path(name), spans)


def print_first(folder: Path, spans: Sequence[Span]) -> None:
    """The way to the first winner. A measured process that was started for nobody yet has no size."""
    whole = json.loads((folder / "whole.json").read_text())
    begun_s = whole["begin"]
    won_s, size = min((end_s, more["size"]) for what, _, end_s, _, more in spans if what == "tune")

    def of(name: str, **said: object) -> list[Span]:
        return [span for span in spans if span[0] == name and said.items() <= span[4].items() and span[1] <= won_s]

    steps = [
        ("genkern is imported", [span[1] for span in of("setting")]),
        ("the GPU is known", [span[2] for span in of("which GPU")]),
        ("the run's setting is made", [span[2] for span in of("setting")]),
        ("a measured process starts", [span[1] for span in of("process") if "harness" in " ".join(span[4]["argv"])]),
        ("it has imported PyTorch", [span[2] for span in of("import", module="torch")]),
        ("it has its device", [span[2] for span in of("gpu start")]),
        ("the size is pruned", [span[2] for span in of("prune", size=size)]),
        ("it has ordered", [span[2] for span in of("prepare", size=size)]),
        ("a worker can compile", [span[2] for span in of("fork compile process")]),
        ("a kernel begins to compile", [span[1] for span in of("compile")]),
        ("one is there", [span[2] for span in of("compile")]),
        ("a time is there", [span[1] for span in of("told", size=size)]),
        ("the last kernel of the size's search is there", [max((s[2] for s in of("made", size=size)), default=won_s)]),
        ("the finals begin", [span[1] for span in of("stage re-time", size=size)]),
        ("they end", [span[2] for span in of("stage re-time", size=size)]),
        ("the winner is checked, timed anew and told", [won_s]),
        ("the run has ended", [span[2] for span in spans if span[0] == "run"]),
        ("its process has ended", [whole["end"]]),
    ]
    print(table([f"until {size} is won", "s"], [[what, f"{min(at) - begun_s:.2f}"] for what, at in steps if at]))
    print()


def print_folder(folder: Path, spans: Sequence[Span]) -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    cpu_s: dict[str, float] = defaultdict(float)
    for what, begin_s, end_s, cpu, more in spans:
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
