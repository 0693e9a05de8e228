"""How near the first launch of a call is to its time later on.

    python benchmarks/first_launch.py RESULTS.yaml [--configs 60]

Where the best takes over 0.5 ms the screening takes a candidate's first launch as its sample (profiling/server.py).
Here configs of each tuned size, chosen at random among those that pruning keeps, are launched three times, then sampled
as a graph of two calls, all with cold weights. The table has the first and the second launch over the sample.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from figures import percentile, table
from workbench import Bench, argument_parser, rows_of, said, until, versions_line, workbench

from genkern.profiling.loaded_gemm import Launchable
from genkern.space.prune import prune
from genkern.space.space import load_space

# The sample follows a third launch.
LAUNCHES = 3
SHARES = (0.0, 0.05, 0.5, 0.95, 1.0)


@dataclass(frozen=True)
class Launches:
    """One config: its launches in their order, and the sample taken after them, in microseconds."""

    launches_us: Sequence[float]
    sample_us: float


def measure(bench: Bench) -> list[Launches]:
    """The launches of each candidate of the bench, one after another."""
    import torch

    found = []
    for name, candidate in bench.candidates.items():
        with said(f"{bench.problem.size} {name}"):
            paths = tuple(binary.path for binary in candidate.binaries)
            call = bench.gemm.bind(Launchable(name, paths, candidate.plan, dict(candidate.run_time)))
            torch.cuda.synchronize()
            launches_us = [bench.timer.launch_us(call, copy) for copy in range(LAUNCHES)]
            found.append(Launches(launches_us, bench.timer.prepare(call, [LAUNCHES, LAUNCHES + 1])()))
    return found


def report(sizes: Sequence[tuple[str, Sequence[Launches]]]) -> str:
    """Markdown: for each size the spread of the first and of the second launch over the sample."""
    rows = []
    for size, found in sizes:
        if not found:
            continue
        best_us = min(one.sample_us for one in found)
        for number, name in enumerate(("first", "second")):
            ratios = [one.launches_us[number] / one.sample_us for one in found]
            rows.append(
                (size, len(found), f"{best_us:.0f}", name, *(f"{percentile(ratios, share):.3f}" for share in SHARES))
            )
    return table(("size", "configs", "best us", "launch", "least", "p5", "median", "p95", "most"), rows)


def main(argv: Sequence[str]) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--configs", type=int, default=60, help="configs of each size (default: 60)")
    arguments = parser.parse_args(argv)
    if arguments.configs < 1:
        parser.error("--configs: at least 1")
    sizes: list[tuple[str, Sequence[Launches]]] = []
    with workbench(arguments) as at:
        arch, gpu = at.setting.target.arch, at.setting.target.gpu
        for row in until(arguments.seconds, rows_of(arguments)):
            problem = row.problem
            kept = prune(load_space(None, arch, problem.op), problem, gpu).kept
            configs = random.Random(0).sample(kept, min(arguments.configs, len(kept)))
            with said(problem.size), at.open(problem, configs) as bench:
                sizes.append((problem.size, measure(bench)))
        print(f"{versions_line(at)}\n")
    print(report(sizes))


if __name__ == "__main__":
    main(sys.argv[1:])
