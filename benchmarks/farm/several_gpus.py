"""Sizes per minute with one, two and four GPUs of a node, once everything is compiled.

    python -m benchmarks.farm.several_gpus SIZES.yaml [--limit 32] [--each] [-o FULL.jsonl] [-- --space nvidia_quick]

Tunes the sizes of the list, which may be a results file, with the command itself, into throwaway results files; what
follows `--` goes to it. Give the --cache_dir of a tuning, so that nothing is compiled; with --warm, a run that is not
counted comes first. The table says how much was compiled in a counted run all the same.

Any number of GPUs gets the same sizes, so that two have half of the list each. But a GPU's first sizes take longer than
its later ones, since its process starts, opens the device and loads each kernel when it is first used: that weighs more
the shorter the list of each GPU is. With --each the list of each GPU is as long as one GPU's alone: for every size, so
many as there are GPUs, with 0, 128, 256 ... columns of C more. Then the ratio is what a list of any length tends to.

What is counted:

    seconds    the whole command, from its start to its end; "sizes/min" and its ratio are of that
    start      its part before the first device was given a size: imports, looking for devices. It is the same for any
               number of GPUs; "tuning/min" and its ratio are without it, and nothing else is left out: that each
               measured process imports PyTorch and opens its device is in them
    idle       the share of the tuning's GPU time in which a GPU had no size any more and others had: the tail, which
               a list of many sizes makes small

The times come from the run's own journal, to a few milliseconds (the moment when a size is begun is after its pruning).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

from benchmarks.common.figures import DataFile, spread_order, table
from benchmarks.common.workbench import errors_end, say
from genkern.formats.gemm_entry import GemmDefaults
from genkern.formats.sizes import read_sizes
from genkern.gemm.gpus import detect_devices
from genkern.gemm.problem import GemmProblem
from genkern.journal.run_files import RunFiles

GPU_COUNTS = (1, 2, 4)
# With fewer the tail is a large part of a run.
_SIZES_A_GPU = 8
# Whole tiles of most widths, so that a sibling has the kernels of its size.
_SIBLING_COLUMNS = 128
_LOOK_S = 0.02
_DONE = re.compile(r"^(\d+x\d+x\d+): (?!no winner)")
_COMPILED = re.compile(r"^binaries: ([\d,]+) compiled")


@dataclass(frozen=True)
class Run:
    """One run of the command: sizes with a winner, binaries that it had to compile (None: it did not say).

    `start_s` and `idle_s` as above, the latter summed over the GPUs.
    """

    gpus: int
    sizes: int
    seconds: float
    compiled: int | None
    status: int
    start_s: float = 0.0
    idle_s: float = 0.0

    @property
    def per_minute(self) -> float:
        return 60 * self.sizes / self.seconds

    @property
    def tuning_s(self) -> float:
        return max(self.seconds - self.start_s, 1e-9)

    @property
    def tuning_per_minute(self) -> float:
        return 60 * self.sizes / self.tuning_s

    @property
    def idle(self) -> float:
        """Share of the GPUs' time."""
        return self.idle_s / (self.gpus * self.tuning_s)


def size_list(problems: Sequence[GemmProblem]) -> str:
    """The problems as a list of sizes for genkern, YAML."""
    entries = []
    for p in problems:
        layout = {"rowMajorA": "NT"[p.row_major_a], "rowMajorB": "NT"[p.row_major_b]}
        types = {"op": p.op, "dtype_a": p.dtype_a, "dtype_b": p.dtype_b, "dtype_c": p.dtype_c, **dict(p.own)}
        entries.append({"M": p.M, "N": p.N, "K": p.K, **layout, **types, "bias": p.bias, "activation": p.activation})
    return yaml.safe_dump(entries, default_flow_style=None, sort_keys=False)


def siblings(problems: Sequence[GemmProblem], count: int) -> list[GemmProblem]:
    """`count` of each problem, which differ in N: about the same work, and no two the same."""
    return [replace(p, N=p.N + _SIBLING_COLUMNS * number) for p in problems for number in range(count)]


def read_run(gpus: int, lines: Sequence[str], seconds: float, status: int) -> Run:
    """What the command said, line by line."""
    compiled = next((int(m[1].replace(",", "")) for line in lines if (m := _COMPILED.match(line))), None)
    return Run(gpus, len({m[1] for line in lines if (m := _DONE.match(line))}), seconds, compiled, status)


def start_and_idle_s(events: Sequence[tuple[float, str, int]], gpus: int) -> tuple[float, float]:
    """When the first size was begun, and how long GPUs in all had nothing to do while others had.

    `events` are (seconds since the start of the command, "began" or "ended", device), in order of time.
    """
    began = [at_s for at_s, what, _ in events if what == "began"]
    ended = {device: at_s for at_s, what, device in events if what == "ended"}
    if not began or not ended:
        return 0.0, 0.0
    end_s = max(ended.values())
    # A GPU without any size was idle from the beginning.
    never = (gpus - len(ended)) * (end_s - began[0])
    return began[0], never + sum(end_s - at_s for at_s in ended.values())


def follow(journal: Path, finished: Path, started_s: float, ended: threading.Event) -> list[tuple[float, str, int]]:
    """The moments at which the facts "began" and "ended" appear in a journal, until `ended` is set."""
    events: list[tuple[float, str, int]] = []
    devices: dict[int, int] = {}
    file, rest = None, b""
    while True:
        last = ended.wait(_LOOK_S)
        if file is None:
            path = next((path for path in (journal, finished) if path.exists()), None)
            file = path.open("rb") if path else None
        at_s = time.monotonic() - started_s
        *lines, rest = (rest + (file.read() if file else b"")).split(b"\n")
        for line in lines:
            if line.startswith((b'{"fact":"began"', b'{"fact":"ended"')):
                entry = json.loads(line)
                if entry["fact"] == "began":
                    devices[entry["problem"]] = entry["value"]["device_index"]
                events.append((at_s, entry["fact"], devices[entry["problem"]]))
        if last:
            return events


def report(runs: Sequence[Run]) -> str:
    """Markdown: sizes per minute, over those of the first counted run; then the same without the start."""
    first = next((run for run in runs if run.sizes), None)
    rows = [
        (
            run.gpus,
            run.sizes,
            f"{run.seconds:.1f}",
            f"{run.per_minute:.2f}",
            f"{run.per_minute / first.per_minute:.2f}x" if first else "-",
            f"{run.start_s:.1f}",
            f"{run.tuning_per_minute:.2f}",
            f"{run.tuning_per_minute / first.tuning_per_minute:.2f}x" if first else "-",
            f"{run.idle:.0%}",
            "?" if run.compiled is None else run.compiled,
            run.status,
        )
        for run in runs
    ]
    of = f"of {first.gpus if first else 1}"
    columns = ("GPUs", "sizes", "seconds", "sizes/min", of, "start", "tuning/min", of, "idle", "compiled", "status")
    text = table(columns, rows)
    if few := [run.gpus for run in runs if run.sizes < _SIZES_A_GPU * run.gpus]:
        text += (
            f"\n\nFewer than {_SIZES_A_GPU} sizes a GPU with {', '.join(map(str, few))} GPUs: the last ones, "
            "during which GPUs are idle, weigh much. Take a larger --limit."
        )
    return text


def tune(arguments: argparse.Namespace, sizes: Path, gpus: int, label: str) -> Run:
    """One run of the command on the first `gpus` GPUs."""
    results = sizes.with_name(f"{label}.yaml")
    argv = [sys.executable, "-m", "genkern", "-i", str(sizes), "-o", str(results), "--all"]
    argv += ["--gpu_ids", ",".join(map(str, range(gpus)))]
    argv += ["--cache_dir", arguments.cache_dir] if arguments.cache_dir else []
    argv += arguments.extra
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    files, finished = RunFiles(str(results)), threading.Event()
    started_s = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, files.journal, files.finished_journal, started_s, finished)
        try:
            done = subprocess.run(
                argv, stdout=subprocess.PIPE, text=True, env=environment, timeout=arguments.seconds, check=False
            )
            text, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as error:
            # What was done until then still has a rate.
            text, status = (error.stdout or b"").decode(errors="replace"), 124
        finally:
            finished.set()
        seconds = time.monotonic() - started_s
    start_s, idle_s = start_and_idle_s(following.result(), gpus)
    run = replace(read_run(gpus, text.splitlines(), seconds, status), start_s=start_s, idle_s=idle_s)
    say(f"{label}: {run.sizes} sizes in {run.seconds:.1f} s, compiled {run.compiled}, status {run.status}")
    return run


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", help="list of sizes, or a results file whose sizes are tuned again")
    parser.add_argument("-o", "--output", help="full data as JSON lines")
    parser.add_argument("--cache_dir", help="genkern's --cache_dir, the tuning's own")
    parser.add_argument("--limit", type=int, help="so many sizes, spread over the file")
    parser.add_argument("--each", action="store_true", help="as many sizes for each GPU as for one alone")
    parser.add_argument("--seconds", type=float, default=600.0, help="most time of one run (default: 600)")
    parser.add_argument("--warm", action="store_true", help="one run more, first, that is not counted")
    parser.add_argument("--gpus", type=int, nargs="+", help="numbers of GPUs (default: 1 2 4, as far as there are)")
    end = argv.index("--") if "--" in argv else len(argv)
    arguments = parser.parse_args(argv[:end])
    arguments.extra = list(argv[end + 1 :])
    devices = detect_devices()
    counts = [count for count in arguments.gpus or GPU_COUNTS if count <= len(devices)]
    if not counts:
        raise SystemExit(f"this benchmark needs GPUs; this machine has {len(devices)}")
    with errors_end():
        listed = read_sizes(arguments.sizes, GemmDefaults(), devices[0].arch).problems
    problems = spread_order(listed, arguments.limit)
    data = DataFile(arguments.output)
    runs = []
    with tempfile.TemporaryDirectory(prefix="gpus-") as folder:

        def tune_on(count: int, label: str) -> Run:
            sizes = Path(folder) / f"{label}_sizes.yaml"
            sizes.write_text(size_list(siblings(problems, count if arguments.each else 1)))
            return tune(arguments, sizes, count, label)

        if arguments.warm:
            tune_on(max(counts), "warm")
        for count in counts:
            run = tune_on(count, f"gpus_{count}")
            runs.append(run)
            data.add(asdict(run))
    print(report(runs))


if __name__ == "__main__":
    main(sys.argv[1:])
