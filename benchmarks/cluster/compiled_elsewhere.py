"""Whether a folder of `genkern compile`, measured where nothing is compiled, has the winners of a run that compiles.

    genkern compile --arch sm_90 -i SIZES -o work                           # anywhere
    python -m benchmarks.cluster.compiled_elsewhere work [--rounds 2]       # on a GPU machine; FOLDER work is read only

The folder is measured with an empty cache (`genkern measure`), then the same sizes are tuned with the same search by
compiling here, in turns; no round begins after --limit_s. The tables have the seconds and binaries of each run, and how
often the two of a round had the same winner, one within 3 %, or another; beside that the same of two runs of one kind,
which are all that chance does.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.common.figures import geomean, table
from benchmarks.common.workbench import say
from genkern.cluster.work_folder import WorkFolder
from genkern.formats.kind import read_results
from genkern.formats.tuned_row import TunedRow
from genkern.gemm.problem import GemmProblem

_ALIKE = 1.03
Rows = dict[GemmProblem, TunedRow]


def run(command: list[str]) -> tuple[float, str]:
    """Seconds of the command, and its line on binaries; it ends this program where it fails."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "genkern", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    binaries = next((line for line in done.stdout.splitlines() if line.startswith("binaries: ")), "")
    return time.perf_counter() - started, binaries


def rows_of(path: Path) -> Rows:
    return {row.problem: row for row in read_results(str(path))}


def compared(name: str, pairs: Sequence[tuple[Rows, Rows]]) -> list[object]:
    """A row of the table: how often winners are the same in two runs, and the times of the first over the second's."""
    both = [(one[problem], other[problem]) for one, other in pairs for problem in one.keys() & other.keys()]
    ratios = [one.duration_us / other.duration_us for one, other in both]
    same = sum(one.config == other.config for one, other in both)
    another = sum(
        one.config != other.config and not 1 / _ALIKE < ratio < _ALIKE
        for (one, other), ratio in zip(both, ratios, strict=True)
    )
    counts = same, len(both) - same - another, another
    return [name, *counts, f"{geomean(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit_s", type=float, default=120.0)
    options = parser.parse_args()
    folder = WorkFolder(Path(options.folder))
    manifest = folder.manifest()
    started, lines = time.perf_counter(), []
    runs: dict[str, list[Rows]] = {"measured": [], "compiled": []}
    for number in range(options.rounds):
        if time.perf_counter() - started > options.limit_s:
            break
        with tempfile.TemporaryDirectory(prefix="genkern-elsewhere-") as name:
            at = Path(name)
            shutil.copytree(folder.path, at / "work", ignore=shutil.ignore_patterns("results"))
            # Kernels of one size may be another's too, and are measured for both as a rule: not where a search is said.
            measure = ["measure", str(at / "work"), "--search", manifest.search]
            here = ["-i", str(folder.sizes), "--arch", manifest.arch, "--search", manifest.search, "--ngpus", "1"]
            here += ["--libtype", manifest.libraries]
            space = str(folder.own_space) if manifest.space == folder.own_space.name else manifest.space
            here += ["--space", space] if space else []
            for kind in ("measured", "compiled") if number % 2 == 0 else ("compiled", "measured"):
                own = ["--cache_dir", str(at / kind), "-o", str(at / f"{kind}.yaml")]
                took_s, binaries = run([*(measure if kind == "measured" else here), *own])
                say(f"{kind}: {took_s:.0f} s; {binaries}")
                lines.append([kind, number + 1, f"{took_s:.0f}", binaries])
                runs[kind].append(rows_of(at / f"{kind}.yaml"))
    print(table(["run", "round", "seconds", "binaries"], lines))
    pairs = {"measured over compiled": [*zip(runs["measured"], runs["compiled"], strict=True)]}
    pairs |= {f"{kind}, two rounds": [*pairwise(found)] for kind, found in runs.items() if len(found) > 1}
    print(f"\n{len(runs['measured'][0])} sizes\n")
    columns = ["winners", "same config", "within 3 %", "another", "time over time", "from, to"]
    print(table(columns, [compared(name, of) for name, of in pairs.items()]))


if __name__ == "__main__":
    main()
