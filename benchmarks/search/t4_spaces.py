"""Replay every recorded space in Kernel Tuner's simulation mode, from the files of `genkern record --to t4`.

Needs `pip install kernel-tuner==1.5.0`. For each problem it validates the T4 results and the T1 spaces with Kernel
Tuner's schemas, lets Kernel Tuner search each space whole, and compares the best time with genkern's recorded best.

    python -m benchmarks.search.t4_spaces results/recorded
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path

import jsonschema
from kernel_tuner.file_utils import output_file_schema
from kernel_tuner.interface import tune_kernel_T1

from genkern.file_io import write_whole
from genkern.gemm.records import Outcome
from genkern.recorded.load import provenance_of, recorded_problems
from genkern.recorded.problem import RecordedProblem
from genkern.recorded.t4 import RESULTS_END, files_of


def best_ms(recorded: RecordedProblem) -> float:
    """The best time of a measured config whose output was not wrong, in milliseconds."""
    measured = zip(recorded.configs, recorded.outcomes, strict=True)
    right = (config for config, outcome in measured if outcome is Outcome.MEASURED and config not in recorded.wrong)
    return min(recorded.us[config] for config in right if config in recorded.us) / 1e3


def replayed(folder: Path) -> tuple[int, int, float]:
    """The number of spaces and configs in a problem's folder, and the best time that Kernel Tuner finds in them."""
    spaces = configs = 0
    times = []
    for results in sorted(folder.glob(f"*{RESULTS_END}")):
        jsonschema.validate(said := json.loads(results.read_text()), output_file_schema("results")[1])
        stem = results.name.removesuffix(RESULTS_END)
        found, _ = tune_kernel_T1(
            folder / f"{stem}_T1.json",
            cache_filepath=folder / f"{stem}_cache.json",
            simulation_mode=True,
            output_T4=False,
        )
        if len(found) != len(said["results"]):
            raise SystemExit(f"{results}: {len(said['results'])} configs, of which Kernel Tuner has {len(found)}")
        spaces, configs = spaces + 1, configs + len(found)
        times += [each["time"] for each in found if "__error__" not in each]
    return spaces, configs, min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", help="a recorded table, or a folder of tables")
    recorded = parser.parse_args().recorded
    warnings.simplefilter("ignore")
    provenance = provenance_of(recorded)
    problems = spaces = configs = differing = size = 0
    for problem in recorded_problems(recorded):
        if not problem.whole:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files_of(problem, provenance[problem.run]):
                write_whole(str(Path(folder, name)), text)
            (of_problem,) = Path(folder).glob("*/*/")
            size += sum(file.stat().st_size for file in of_problem.iterdir())
            some, more, best = replayed(of_problem)
        problems, spaces, configs = problems + 1, spaces + some, configs + more
        if abs(best - best_ms(problem)) > 1e-9:
            differing += 1
            print(f"{problem.problem.name}: {best} ms by Kernel Tuner, {best_ms(problem)} ms recorded", flush=True)
        print(f"{problems} problems, {spaces} spaces, {configs:,} configs", end="\r", flush=True)
    print(f"{problems} problems in {spaces} spaces, {configs:,} configs, {size / 2**20:.0f} MiB")
    print(f"another best time than the recorded one: {differing} problems")


if __name__ == "__main__":
    main()
