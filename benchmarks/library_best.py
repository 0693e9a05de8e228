"""PyTorch's own call of the library over the best that cuBLASLt has, for every size of a list, in the same rounds.

    python benchmarks/library_best.py input_sizes/llama-3.1-8b_tp1.yaml

Of each size all algorithms are launched: those that the heuristic returns, and what enumeration finds beyond them. The
fastest are timed against PyTorch's call by genkern's timer and rounds, with cold weights in rotation, and checked.
Needs an NVIDIA GPU. Of genkern's own kernels one is compiled for the module that makes the operands, and not timed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from figures import DataFile, geomean, table
from rich.console import Console
from workbench import Bench, Workbench, errors_end, said, say, versions_line

from genkern.command.options import parse
from genkern.command.run import read_problems
from genkern.command.setting import make_setting
from genkern.gemm.config import Config
from genkern.ops.op import get_op
from genkern.profiling.algorithms import Algorithms
from genkern.profiling.checking.verdict import Checking
from genkern.profiling.finals import Rounds
from genkern.profiling.loaded_gemm import Call
from genkern.runtime.backends import cublaslt
from genkern.runtime.backends.cublaslt_search import config_of
from genkern.timing.libraries import CUBLASLT, VENDOR, kept_algorithm, library_of

CONFIG = Config("tiled", 64, 64, 64, 1, 1, 4, 3)
RACING = 6
ROUNDS = 60


@dataclass(frozen=True)
class Best:
    """One size: PyTorch's own call and the best algorithm, in microseconds.

    `source` is "heuristic" or "enumerated", `place` the algorithm's among all that were launched, from 0 on. `wrong`
    counts faster algorithms whose result is not right.
    """

    size: str
    torch_us: float
    best_us: float
    algorithm: str
    config: str
    source: str
    place: int
    launched: int
    wrong: int

    @property
    def ratio(self) -> float:
        """PyTorch's time over the best, which is PyTorch's own where no algorithm is faster."""
        return self.torch_us / min(self.best_us, self.torch_us)


def report(found: Sequence[Best]) -> str:
    """Markdown: a line a size, and the means."""
    cells = [
        (
            best.size,
            f"{best.torch_us:.2f}",
            f"{best.best_us:.2f}",
            f"{best.ratio:.3f}",
            f"{best.source} {best.place + 1} of {best.launched}",
            best.config,
        )
        for best in found
    ]
    lines = [table(("size", "torch us", "best us", "torch / best", "which", "algorithm"), cells), ""]
    enumerated = sum(best.source == "enumerated" and best.ratio > 1 for best in found)
    if found:
        lines.append(f"{len(found)} sizes: geomean {geomean([best.ratio for best in found]):.4f}")
    wrong = sum(best.wrong for best in found)
    lines.append(f"best that the heuristic does not return: {enumerated}; faster ones that are wrong: {wrong}")
    return "\n".join(lines)


def best_of(bench: Bench, arch: str) -> Best:
    """The best of one size. Raises CublasLtError where the library has none."""
    import torch

    algorithms = Algorithms(bench.gemm)
    names = algorithms.names()
    calls: dict[str, Call] = {}
    launch_us: dict[str, float] = {}
    for name in names:
        with said(f"{bench.problem.size} {name[:24]}"):
            call = algorithms.call(name)
            call(0)
            torch.cuda.synchronize()
            launch_us[name] = min(bench.timer.launch_us(call, copy) for copy in range(3))
            calls[name] = call
    if not calls:
        raise cublaslt.CublasLtError("the library supports no such product")
    nearest = sorted(launch_us, key=lambda name: launch_us[name])[:RACING]
    racing = {VENDOR: bench.gemm.vendor(), **{name: calls[name] for name in nearest}}
    finals = bench.race(bench.samplers(racing), Rounds(ROUNDS, ROUNDS, 60.0, 0))
    times = {name: median(samples) for name, samples in finals.samples_us.items() if samples}
    problem, module = bench.problem, bench.gemm.module
    checking = Checking(problem, get_op(problem.op), arch, module.reference, bench.gemm.operands)
    wrong = 0
    for name in sorted((name for name in times if library_of(name) == CUBLASLT), key=lambda name: times[name]):
        verdict = checking.check(algorithms.subject(name))
        if verdict.passed:
            break
        say(f"{problem.size} {config_text(algorithms, name)}: {verdict.message}")
        wrong += 1
    else:
        raise cublaslt.CublasLtError("no algorithm is right")
    place, source = names.index(name), algorithms.source(name)
    config = config_text(algorithms, name)
    return Best(problem.size, times[VENDOR], times[name], name, config, source, place, len(names), wrong)


def config_text(algorithms: Algorithms, name: str) -> str:
    """What an algorithm consists of, in the numbers of cublasLt.h."""
    kept = kept_algorithm(name)
    assert kept is not None
    return str(config_of(cublaslt.library(), cublaslt.Algorithm(kept.data, 0).algo))


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", help="list of sizes")
    parser.add_argument("-o", "--output", help="full data as JSON lines")
    parser.add_argument("--cache_dir", help="genkern's --cache_dir")
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no size after so long (default: 300)")
    arguments = parser.parse_args(argv)
    options = ["-i", arguments.sizes, *(["--cache_dir", arguments.cache_dir] if arguments.cache_dir else [])]
    found: list[Best] = []
    data = DataFile(arguments.output)
    with errors_end():
        setting = make_setting(parse(options))
        if not setting.target.measured or setting.target.gpu.vendor != "nvidia":
            raise SystemExit("this benchmark needs an NVIDIA GPU")
        problems = read_problems(setting, Console(stderr=True))
        with setting.workshop() as workshop:
            at = Workbench(setting, workshop, "cudagraph")
            if why := cublaslt.available():
                raise SystemExit(why)
            started_s = time.monotonic()
            for problem in problems:
                if time.monotonic() - started_s > arguments.seconds:
                    say(f"{len(found)} of {len(problems)} sizes done in {arguments.seconds:.0f} s, the others left out")
                    break
                with said(problem.size), at.open(problem, [CONFIG]) as bench:
                    found.append(best_of(bench, setting.target.arch))
                    data.add(vars(found[-1]))
            say(f"{versions_line(at)}, cuBLASLt {cublaslt.library().version}")
    print(report(found))


if __name__ == "__main__":
    main(sys.argv[1:])
