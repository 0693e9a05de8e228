"""genkern's winners against torch.compile(mode="max-autotune-no-cudagraphs") and torch.mm, in the same rounds.

    python -m benchmarks.kernels.max_autotune SIZES.yaml RESULTS.yaml [--limit N] [-o FULL.jsonl]

torch.compile chooses a kernel for x @ w.T by its own timer; what it chose is then captured in CUDA graphs as genkern's
winner and the vendor library are, and all three are timed by genkern's finals, with the same cold weights in rotation.
Sizes of SIZES.yaml without a result, of another op than a16w16 or with a bias or an activation are left out. What it
chooses from is Inductor's to set: TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS=TRITON leaves torch.mm itself out.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.figures import DataFile, figure, geomean, spread_order, table
from benchmarks.common.workbench import Bench, argument_parser, said, say, until, versions_line, workbench
from genkern.formats.kind import read_results
from genkern.formats.sizes import GemmDefaults, read_sizes
from genkern.gemm.problem import GemmProblem
from genkern.profiling.finals import Rounds
from genkern.profiling.loaded_gemm import Call
from genkern.result.result import Result
from genkern.timing.libraries import VENDOR
from genkern.timing.statistics import TIE_RATIO, estimate

COMPILED = "max-autotune"
LEAST_ROUNDS, MOST_ROUNDS, RACE_S = 15, 60, 1.5


@dataclass(frozen=True)
class Duel:
    """One size: the three times in microseconds, and what torch.compile chose how long."""

    size: str
    genkern_us: float
    compiled_us: float
    vendor_us: float
    chosen: str
    autotune_s: float


def taken(rows: Sequence[Result], wanted: Sequence[GemmProblem]) -> list[Result]:
    """The results for the wanted sizes that a plain x @ w.T computes."""

    def plain(problem: GemmProblem) -> bool:
        return problem.op == "a16w16" and not problem.bias and problem.activation == "none"

    return [row for row in rows if row.problem in wanted and plain(row.problem)]


def report(duels: Sequence[Duel]) -> str:
    """Markdown: a line per size, then geometric means; a ratio above 1 is genkern's win, within 0.5 % a tie."""
    rows = [
        (
            d.size,
            f"{d.genkern_us:.2f}",
            f"{d.compiled_us:.2f}",
            f"{d.vendor_us:.2f}",
            f"{d.compiled_us / d.genkern_us:.3f}",
            f"{d.vendor_us / d.genkern_us:.3f}",
            f"{d.autotune_s:.1f}",
            d.chosen,
        )
        for d in duels
    ]
    columns = ("size", "genkern us", "max-autotune us", "torch.mm us", "max-autotune / genkern", "torch.mm / genkern")
    lines = [table((*columns, "autotune s", "chosen"), rows), ""]
    summaries = []
    for name, us_of in (("max-autotune / genkern", compiled_us), ("torch.mm / genkern", vendor_us)):
        ratios = [us_of(d) / d.genkern_us for d in duels]
        if ratios:
            wins = sum(ratio > TIE_RATIO for ratio in ratios)
            losses = sum(ratio * TIE_RATIO < 1 for ratio in ratios)
            cells = [f"{value:.3f}" for value in (geomean(ratios), min(ratios), max(ratios))]
            summaries.append((name, len(ratios), *cells, wins, len(ratios) - wins - losses, losses))
    lines.append(table(("ratio", "sizes", "geomean", "least", "most", "won", "tied", "lost"), summaries))
    return "\n".join([*lines, *figure("maxautotune_chosen_over", [compiled_us(d) / d.genkern_us for d in duels])])


def compiled_us(duel: Duel) -> float:
    return duel.compiled_us


def vendor_us(duel: Duel) -> float:
    return duel.vendor_us


def fastest(timings: Mapping[Any, float]) -> str:
    """The name of the choice with the shortest time; "?" for none."""
    if not timings:
        return "?"
    choice = min(timings, key=lambda choice: timings[choice])
    name, description = str(getattr(choice, "name", choice)), str(getattr(choice, "description", ""))
    # The number at the end counts the choices of a process.
    return " ".join([re.sub(r"_\d+$", "", name)[:80], *re.findall(r"(?:BLOCK_[MNK]|num_\w+)=\d+", description)])


def listen(chosen: list[str]) -> None:
    """Add what Inductor's autotuning finds fastest to `chosen`, where this PyTorch tells."""
    with said("the names of Inductor's choices"):
        from torch._inductor.select_algorithm import add_feedback_saver

        def heard(timings: Mapping[Any, float], *_: object, **__: object) -> None:
            with said("the name of Inductor's choice"):
                chosen.append(fastest(timings))

        add_feedback_saver(heard)


def backends() -> str:
    """What Inductor's autotuning chooses from, in words."""
    from torch._inductor import config

    return f"choosing from {config.max_autotune_gemm_backends}"


def product(row_major_b: bool) -> Callable[[Any, Any], Any]:
    """The function to compile, of x [M, K] and the weights as they are stored."""
    if row_major_b:
        return lambda x, w: x @ w
    return lambda x, w: x @ w.T


def compiled_call(bench: Bench) -> Call:
    """torch.compile's kernel as a call on the same operands and copies of the weights; compiles and autotunes."""
    import torch

    torch._dynamo.reset()
    row_major_b = bench.problem.row_major_b
    function = torch.compile(product(row_major_b), mode="max-autotune-no-cudagraphs", dynamic=False)
    x = bench.gemm.operands["a"]
    weights = [copy["b"] if row_major_b else copy["b"].T for copy in bench.gemm._weights]
    with torch.no_grad():
        function(x, weights[0])
    torch.cuda.synchronize()

    def call(copy: int) -> None:
        with torch.no_grad():
            function(x, weights[copy % len(weights)])

    return call


def duel(bench: Bench, row: Result, chosen: list[str]) -> Duel:
    """Raises whatever torch.compile raises, KeyError when one of the three cannot be timed."""
    started_s = time.monotonic()
    chosen.clear()
    compiled = compiled_call(bench)
    took_s = time.monotonic() - started_s
    samplers = bench.samplers({**bench.calls(), COMPILED: compiled})
    finals = bench.race(samplers, Rounds(LEAST_ROUNDS, MOST_ROUNDS, RACE_S, 0))
    us = {name: estimate(samples).median_us for name, samples in finals.samples_us.items() if samples}
    name = chosen[-1] if chosen else "?"
    return Duel(row.problem.size, us[row.config.name], us[COMPILED], us[VENDOR], name, took_s)


def main(argv: Sequence[str]) -> None:
    arguments = argument_parser(__doc__, sizes=True).parse_args(argv)
    data = DataFile(arguments.output)
    duels: list[Duel] = []
    chosen: list[str] = []
    with tempfile.TemporaryDirectory(prefix="inductor-", ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        with workbench(arguments) as at:
            # Inductor leaves one that is set alone, and its binaries have no place in genkern's cache.
            os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
            sizes = read_sizes(arguments.sizes, GemmDefaults(), at.setting.target.arch)
            rows = spread_order(taken(read_results(arguments.results), sizes.problems), arguments.limit)
            say(f"{len(rows)} sizes")
            listen(chosen)
            for row in until(arguments.seconds, rows):
                with said(row.problem.size), at.open(row.problem, [row.config]) as bench:
                    duels.append(duel(bench, row, chosen))
                    data.add({**vars(duels[-1]), "config": row.config.name})
            print(f"{versions_line(at)}, {backends()}\n")
    print(report(duels))


if __name__ == "__main__":
    main(sys.argv[1:])
