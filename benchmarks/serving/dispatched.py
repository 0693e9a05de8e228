"""Device time of dispatched calls over torch.mm and over the best of cuBLASLt, in CUDA graphs, in the same rounds.

    python -m benchmarks.serving.dispatched BUNDLE --sizes input_sizes/anchors.yaml --more input_sizes/*_tp*.yaml

All sizes of --sizes, and --count drawn from --more, in an order of which every beginning is spread over all. Weights
rotate through 400 MiB. Of cuBLASLt all that the heuristic returns are launched, and the fastest are timed beside
torch.mm and what the dispatcher calls, be that a winner or the library; the best is the least of their medians. Each
output is compared with torch.mm's. The keys are those of results/figures.yaml.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from benchmarks.common.figures import geomean, spread_order, table
from benchmarks.common.kept import Kept
from benchmarks.common.rounds import Limit, alternate
from benchmarks.common.workbench import errors_end, said, say
from benchmarks.serving.dispatching import Place, Rotated, argument_parser, dispatcher, distinct, gpu_place, key_lines
from genkern.files.sizes import GemmDefaults, read_sizes
from genkern.gemm.problem import GemmProblem
from genkern.profiling.loaded_gemm import Call
from genkern.runtime.backends import cublaslt, lt_matmul
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.bundles.table import Choice

GENKERN, TORCH, LT = "genkern", "torch.mm", "cublaslt"
# Who serves what no winner of genkern's does.
LIBRARY, LT_ALGORITHM = "the library", "cuBLASLt's algorithm"
RACING = 4
# Of the sum of magnitudes: bf16 keeps 8 bits, and both sides round once.
AGREES = 2.0**-7


@dataclass(frozen=True)
class Timed:
    """One size: medians in microseconds by contender, and who serves the dispatched call. `agrees` with torch.mm."""

    m: int
    n: int
    k: int
    served: str
    why: str
    agrees: bool
    times_us: Mapping[str, float]

    @property
    def size(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def over_torch(self) -> float:
        """torch.mm's time over the dispatched call's."""
        return self.times_us[TORCH] / self.times_us[GENKERN]

    @property
    def over_lt(self) -> float | None:
        """The best algorithm's time over the dispatched call's; None where cuBLASLt had none."""
        of_lt = [us for name, us in self.times_us.items() if name.startswith(LT)]
        return min(of_lt) / self.times_us[GENKERN] if of_lt else None


def chosen_sizes(sizes: Sequence[str], more: Sequence[str], count: int, seed: int) -> list[GemmProblem]:
    """All of `sizes` and `count` drawn from `more`, each once. Raises InputError."""

    def read(paths: Sequence[str]) -> list[GemmProblem]:
        return distinct(problem for path in paths for problem in read_sizes(path, GemmDefaults(), None).problems)

    whole = read(sizes)
    others = [problem for problem in read(more) if problem not in set(whole)]
    return spread_order([*whole, *random.Random(seed).sample(others, min(count, len(others)))])


def lt_calls(rotated: Rotated, workspace: torch.Tensor, racing: int = RACING) -> dict[str, Call]:
    """Of what cuBLASLt's heuristic returns the `racing` fastest by three launches each, by their place in it."""
    gpu, timer = rotated.place.gpu, rotated.place.timer
    matmul = cublaslt.BACKEND.prepare(rotated.problem, gpu.index)
    c = rotated.x.new_empty((rotated.problem.M, rotated.problem.N))
    bias = rotated.more["bias"].data_ptr() if "bias" in rotated.more else 0
    pointers = [
        lt_matmul.Pointers(rotated.x.data_ptr(), each.data_ptr(), c.data_ptr(), bias) for each in rotated.weights
    ]
    calls: dict[str, Call] = {}
    for place, algorithm in enumerate(matmul.heuristic(pointers[0], lt_matmul.WORKSPACE_BYTES, cublaslt.BACKEND.asked)):
        bound = [matmul.bind(algorithm, each, workspace.data_ptr(), workspace.numel()) for each in pointers]

        def call(copy: int, bound: Sequence[object] = tuple(bound), _keep: torch.Tensor = c) -> None:
            bound[copy](gpu.stream())  # type: ignore[operator]

        with said(f"{rotated.problem.size} {LT} {place}"):
            call(0)
            calls[f"{LT} {place}"] = call
    rotated.place.synchronize()
    least_us = {
        name: min(timer.launch_us(call, copy % rotated.copies) for copy in range(3)) for name, call in calls.items()
    }
    return {name: calls[name] for name in sorted(least_us, key=lambda name: least_us[name])[:racing]}


def agree(found: torch.Tensor, expected: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether two products are as near to each other as roundings and orders of additions let them."""
    scale = x.float().abs().sum(1).mean() * weight.float().abs().mean()
    return bool((found.float() - expected.float()).abs().max() <= AGREES * scale)


def timed(bundle: Bundle, place: Place, problem: GemmProblem, rounds: int, workspace: torch.Tensor | None) -> Timed:
    """One size; without a workspace there is no cuBLASLt."""
    context = place.context([bundle])
    gemm, choice = dispatcher(context), context.find(place.gpu, problem)
    rotated = Rotated(problem, place)
    weight = rotated.weights[0]
    fits = agree(gemm(rotated.x, weight), torch.mm(rotated.x, weight.mT), rotated.x, weight)
    calls = {GENKERN: rotated.by(gemm), TORCH: rotated.by_torch()}
    if workspace is not None:
        calls |= lt_calls(rotated, workspace)
    times = alternate(rotated.samplers(calls), rounds)
    return Timed(problem.M, problem.N, problem.K, served_by(choice), choice.why, fits, times)


def served_by(choice: Choice) -> str:
    """The config that serves a problem; else PyTorch's call of the library, or an algorithm of cuBLASLt's that won."""
    if choice.winner is not None and choice.call is not None:
        return choice.winner.config_name
    return LT_ALGORITHM if choice.algorithm else LIBRARY


def report(found: Sequence[Timed]) -> str:
    """Markdown: means by M, the worst sizes, what is wrong; then the keys."""
    by_m: dict[object, list[Timed]] = {}
    for each in sorted(found, key=lambda each: each.m):
        by_m.setdefault(each.m, []).append(each)
    by_m["all"] = list(found)
    by_m["a winner serves"] = [each for each in found if each.served not in (LIBRARY, LT_ALGORITHM)]
    rows = [(name, *_means(group)) for name, group in by_m.items() if group]
    lines = [table(("M", "sizes", "over torch.mm", "least", "over cuBLASLt", "least"), rows), ""]
    for each in sorted(found, key=lambda each: each.over_lt or each.over_torch)[:8]:
        best = "-" if each.over_lt is None else f"{each.over_lt:.3f}"
        lines.append(f"{each.size}: {best} of cuBLASLt's best, {each.over_torch:.3f} of torch.mm ({each.served})")
    lines += [f"{each.size}: {each.served} is WRONG" for each in found if not each.agrees]
    over_lt = [each.over_lt for each in found if each.over_lt is not None]
    figures = {
        "dispatched_over_torch": geomean([each.over_torch for each in found]) if found else None,
        "dispatched_over_lt": geomean(over_lt) if over_lt else None,
        "dispatched_least_over_lt": min(over_lt, default=None),
    }
    return "\n".join([*lines, "", key_lines(figures)])


def _means(group: Sequence[Timed]) -> tuple[object, ...]:
    cells: list[object] = [len(group)]
    for ratios in ([each.over_torch for each in group], [each.over_lt for each in group if each.over_lt is not None]):
        cells += [f"{geomean(ratios):.3f}", f"{min(ratios):.3f}"] if ratios else ["-", "-"]
    return tuple(cells)


def run(place: Place, argv: Sequence[str]) -> str:
    """What is printed, once all is timed or the time is over. Raises ResultsError or InputError."""
    parser = argument_parser(__doc__)
    parser.add_argument("--sizes", nargs="+", required=True, help="lists of sizes, all of which are timed")
    parser.add_argument("--more", nargs="+", default=[], help="lists of sizes to draw from")
    parser.add_argument("--count", type=int, default=60, help="how many are drawn from --more (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="by which they are drawn (default: 0)")
    arguments = parser.parse_args(argv)
    limit, kept = Limit(arguments.limit_s), Kept(arguments.output)
    problems = chosen_sizes(arguments.sizes, arguments.more, arguments.count, arguments.seed)
    bundle, setting = read_bundle(arguments.bundle), place.setting(__file__, arguments.bundle)
    workspace = None
    if why := cublaslt.BACKEND.available():
        say(f"no cuBLASLt: {why}")
    else:
        workspace = torch.empty(lt_matmul.WORKSPACE_BYTES, dtype=torch.uint8, device=place.device)
    known = {problem: kept.of(f"{setting} {problem.name}") for problem in problems}
    with torch.no_grad():
        for problem in limit.until([problem for problem, entry in known.items() if entry is None]):
            with said(problem.size):
                found = timed(bundle, place, problem, arguments.rounds, workspace)
                known[problem] = kept.add(f"{setting} {problem.name}", asdict(found))
            place.release()
    entries = [Timed(**entry) for entry in known.values() if entry is not None]
    return f"{report(entries)}\n{len(entries)} of {len(problems)} sizes on {place}"


def main() -> None:
    with errors_end():
        print(run(gpu_place(), sys.argv[1:]))


if __name__ == "__main__":
    main()
