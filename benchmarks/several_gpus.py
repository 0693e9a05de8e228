"""Sizes per minute with one, two and four GPUs of a node, once everything is compiled.

    python benchmarks/several_gpus.py RESULTS.yaml [--limit 16] [-o FULL.jsonl] [-- --space nvidia_quick]

Tunes the sizes of the results file again, with the command itself, into throwaway results files; what follows `--`
goes to it. Give the --cache_dir of the tuning, so that nothing is compiled; with --warm, a run that is not counted
comes first. The time is that of the whole command; the table says how much was compiled in it all the same.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from figures import DataFile, table
from workbench import rows_of, say

from genkern.gpus import detect_devices
from genkern.problem import GemmProblem

GPU_COUNTS = (1, 2, 4)
_DONE = re.compile(r"^(\d+x\d+x\d+): (?!no winner)")
_COMPILED = re.compile(r"^binaries: ([\d,]+) compiled")


@dataclass(frozen=True)
class Run:
    """One run of the command: sizes with a winner, binaries that it had to compile (None: it did not say)."""

    gpus: int
    sizes: int
    seconds: float
    compiled: int | None
    status: int

    @property
    def per_minute(self) -> float:
        return 60 * self.sizes / self.seconds


def size_list(problems: Sequence[GemmProblem]) -> str:
    """The problems as a list of sizes for genkern, YAML."""
    entries = []
    for p in problems:
        layout = {"rowMajorA": "NT"[p.row_major_a], "rowMajorB": "NT"[p.row_major_b]}
        types = {"op": p.op, "dtype_a": p.dtype_a, "dtype_b": p.dtype_b, "dtype_c": p.dtype_c}
        entries.append({"M": p.M, "N": p.N, "K": p.K, **layout, **types, "bias": p.bias, "activation": p.activation})
    return yaml.safe_dump(entries, default_flow_style=None, sort_keys=False)


def read_run(gpus: int, lines: Sequence[str], seconds: float, status: int) -> Run:
    """What the command said, line by line."""
    compiled = next((int(m[1].replace(",", "")) for line in lines if (m := _COMPILED.match(line))), None)
    return Run(gpus, len({m[1] for line in lines if (m := _DONE.match(line))}), seconds, compiled, status)


def report(runs: Sequence[Run]) -> str:
    """Markdown: sizes per minute, over those of the first counted run."""
    first = next((run for run in runs if run.sizes), None)
    rows = [
        (
            run.gpus,
            run.sizes,
            f"{run.seconds:.1f}",
            f"{run.per_minute:.2f}",
            f"{run.per_minute / first.per_minute:.2f}x" if first else "-",
            "?" if run.compiled is None else run.compiled,
            run.status,
        )
        for run in runs
    ]
    return table(
        ("GPUs", "sizes", "seconds", "sizes/min", f"of {first.gpus if first else 1}", "compiled", "status"), rows
    )


def tune(arguments: argparse.Namespace, sizes: Path, gpus: int, label: str) -> Run:
    """One run of the command on the first `gpus` GPUs."""
    results = sizes.with_name(f"{label}.yaml")
    argv = [sys.executable, "-m", "genkern", "-i", str(sizes), "-o", str(results), "--all"]
    argv += ["--gpu_ids", ",".join(map(str, range(gpus)))]
    argv += ["--cache_dir", arguments.cache_dir] if arguments.cache_dir else []
    argv += arguments.extra
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    started_s = time.monotonic()
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, text=True, env=environment, timeout=arguments.seconds, check=False
        )
        text, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        # What was done until then still has a rate.
        text, status = (error.stdout or b"").decode(errors="replace"), 124
    run = read_run(gpus, text.splitlines(), time.monotonic() - started_s, status)
    say(f"{label}: {run.sizes} sizes in {run.seconds:.1f} s, compiled {run.compiled}, status {run.status}")
    return run


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="results file whose sizes are tuned again")
    parser.add_argument("-o", "--output", help="full data as JSON lines")
    parser.add_argument("--cache_dir", help="genkern's --cache_dir, the tuning's own")
    parser.add_argument("--limit", type=int, help="so many sizes, spread over the file")
    parser.add_argument("--seconds", type=float, default=600.0, help="most time of one run (default: 600)")
    parser.add_argument("--warm", action="store_true", help="one run more, first, that is not counted")
    parser.add_argument("--gpus", type=int, nargs="+", help="numbers of GPUs (default: 1 2 4, as far as there are)")
    end = argv.index("--") if "--" in argv else len(argv)
    arguments = parser.parse_args(argv[:end])
    arguments.extra = list(argv[end + 1 :])
    there = len(detect_devices())
    counts = [count for count in arguments.gpus or GPU_COUNTS if count <= there]
    if not counts:
        raise SystemExit(f"this benchmark needs GPUs; this machine has {there}")
    data = DataFile(arguments.output)
    runs = []
    with tempfile.TemporaryDirectory(prefix="gpus-") as folder:
        sizes = Path(folder) / "sizes.yaml"
        sizes.write_text(size_list([row.problem for row in rows_of(arguments)]))
        if arguments.warm:
            tune(arguments, sizes, counts[-1], "warm")
        for count in counts:
            run = tune(arguments, sizes, count, f"gpus_{count}")
            runs.append(run)
            data.add(asdict(run))
    print(report(runs))


if __name__ == "__main__":
    main(sys.argv[1:])
