"""Whether a folder of `genkern compile`, measured where nothing is compiled, has the winners of a run that compiles.

    genkern compile --arch sm_90 -i SIZES -o work                           # anywhere
    python -m benchmarks.cluster.compiled_elsewhere work [--rounds 2]       # on a GPU machine; FOLDER work is read only

The folder is measured with an empty cache (`genkern measure`), then the same sizes are tuned with the same search by
compiling here, in turns. A winner of one run that the other's beat by less than 3 % counts as the same: two runs of one
kind differ by as much (benchmarks/timing/repeatability). The table says how often each happened, and seconds of both.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.figures import geomean, table
from benchmarks.common.workbench import say
from genkern.cluster.work_folder import WorkFolder
from genkern.formats.kind import read_results
from genkern.formats.tuned_row import TunedRow
from genkern.gemm.problem import GemmProblem

_ALIKE = 1.03


def run(command: list[str]) -> tuple[float, str]:
    """Seconds of the command, and its line on binaries; it ends this program where it fails."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "genkern", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    binaries = next((line for line in done.stdout.splitlines() if line.startswith("binaries: ")), "")
    return time.perf_counter() - started, binaries


def rows_of(path: Path) -> dict[GemmProblem, TunedRow]:
    return {row.problem: row for row in read_results(str(path))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    folder = WorkFolder(Path(options.folder))
    manifest = folder.manifest()
    counts = {"same config": 0, "within 3 %": 0, "another": 0}
    ratios, lines = [], []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="genkern-elsewhere-") as name:
            at = Path(name)
            shutil.copytree(folder.path, at / "work", ignore=shutil.ignore_patterns("results"))
            measure = ["measure", str(at / "work"), "--cache_dir", str(at / "cold"), "-o", str(at / "there.yaml")]
            here = ["-i", str(folder.sizes), "--arch", manifest.arch, "--search", manifest.search, "--ngpus", "1"]
            here += ["--libtype", manifest.libraries, "--cache_dir", str(at / "own"), "-o", str(at / "here.yaml")]
            space = str(folder.own_space) if manifest.space == folder.own_space.name else manifest.space
            here += ["--space", space] if space else []
            took = {}
            for kind in ("measured", "compiled") if number % 2 == 0 else ("compiled", "measured"):
                took[kind] = run(measure if kind == "measured" else here)
                say(f"{kind}: {took[kind][0]:.0f} s; {took[kind][1]}")
            there, own = rows_of(at / "there.yaml"), rows_of(at / "here.yaml")
            for problem in there.keys() & own.keys():
                ratio = there[problem].duration_us / own[problem].duration_us
                alike = 1 / _ALIKE < ratio < _ALIKE
                same = there[problem].config == own[problem].config
                counts["same config" if same else "within 3 %" if alike else "another"] += 1
                ratios.append(ratio)
            lines += [[kind, number + 1, f"{seconds:.0f}", binaries] for kind, (seconds, binaries) in took.items()]
    print(table(["run", "round", "seconds", "binaries"], lines))
    print(f"\nwinners: {', '.join(f'{count} {name}' for name, count in counts.items())}")
    print(f"time there over time here: {geomean(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
