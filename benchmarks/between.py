"""How fast kernels are between tuned M: those that between_candidates.py packed, and torch.mm, in the same rounds.

    python benchmarks/between.py CANDIDATES.genkern -o FILE --limit_s 110

Weights are cold, and calls are in CUDA graphs: three rounds of the candidates that are promising for an M and of the
algorithms that cuBLASLt won with at the tuned M beside it, then nine of those within 5 % of the best. Times of both are
kept by the config's name, for whoever chooses a rule by them.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from between_candidates import ENDS, least_and_most, lengths, promising
from dispatching import Place, Rotated, argument_parser, gpu_place
from figures import geomean
from kept import Kept
from rounds import Limit
from workbench import errors_end, said

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_device
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.profiling.cuda.timers import Sampler
from genkern.profiling.loaded_gemm import Call
from genkern.runtime.bundle import Bundle, read_bundle
from genkern.runtime.context import Context
from genkern.runtime.dispatch import Gemm
from genkern.runtime.launch.prepared import LiveGpu
from genkern.runtime.packed import PackedWinner
from genkern.runtime.table import Choice
from genkern.timing.libraries import kept_algorithm

TORCH = "torch.mm"
SCREEN_ROUNDS, WITHIN = 3, 1.05


class Fixed(Context):
    """What serves calls here: one winner, whatever the problem."""

    def __init__(self, place: Place, bundle: Bundle, winner: PackedWinner) -> None:
        super().__init__(lambda op: [bundle], lambda index: place.gpu)
        if winner.calls:
            self._choice = Choice("a candidate", winner, winner.calls[0], bundle)
        else:
            self._choice = Choice("a neighbour's algorithm", algorithm=winner.vendor)
        self.failed = ""

    def find(self, gpu: LiveGpu, problem: GemmProblem) -> Choice:
        return self._choice

    def say(self, subject: object, line: str) -> None:
        self.failed = line


def raced(
    place: Place, bundle: Bundle, rotated: Rotated, winners: Sequence[PackedWinner], rounds: int
) -> dict[str, object]:
    """Medians in microseconds by config: of all, then of the best among all, torch.mm always with them."""
    calls: dict[str, Call] = {TORCH: rotated.by_torch()}
    for winner in winners:
        context = Fixed(place, bundle, winner)
        call = rotated.by(Gemm(DEFAULT_OP, context))
        call(0)
        if not context.failed:
            calls[winner.config if winner.calls else f"cublaslt of {winner.problem.M}"] = call
    samplers = rotated.samplers(calls)
    screened = in_turns(samplers, SCREEN_ROUNDS)
    limit_us = WITHIN * min(screened.values())
    best = {name: each for name, each in samplers.items() if screened[name] <= limit_us or name == TORCH}
    return {"screened_us": screened, "times_us": in_turns(best, rounds)}


def in_turns(samplers: Mapping[str, Sampler], rounds: int) -> dict[str, float]:
    """The median of so many samples of each, after one that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in samplers}
    for number in range(rounds + 1):
        for name in random.Random(number).sample(list(samplers), len(samplers)):
            us = samplers[name]()
            if number:
                found[name].append(us)
    return {name: median(samples) for name, samples in found.items()}


def run(place: Place, arguments: argparse.Namespace) -> str:
    """Time, and say how the best of each M compares. Raises ResultsError."""
    limit, kept = Limit(arguments.limit_s), Kept(arguments.output)
    bundle = read_bundle(arguments.bundle)
    setting = place.setting(__file__, arguments.bundle)
    gpu = gpu_for_device(place.gpu.identity.name, place.gpu.identity.arch)
    candidates: dict[GemmProblem, list[PackedWinner]] = {}
    tuned: dict[GemmProblem, list[PackedWinner]] = {}
    for winner in bundle.winners:
        kind = replace(winner.problem, M=1)
        if winner.calls:
            candidates.setdefault(kind, []).append(winner)
        else:
            tuned.setdefault(kind, []).append(winner)
    entries = []
    with torch.no_grad():
        for kind in limit.until(sorted(candidates, key=lambda kind: zlib.crc32(kind.name.encode()))):
            shared: Rotated | None = None
            for m in limit.until(
                lengths(sorted(winner.problem.M for winner in tuned[kind]), arguments.least_m, arguments.most_m)
            ):
                problem = replace(kind, M=m)
                key = f"{setting} {problem.name}"
                if (entry := kept.of(key)) is None:
                    shared = shared or Rotated(replace(kind, M=arguments.most_m), place)
                    rotated = copy.copy(shared)
                    rotated.problem, rotated.x = problem, shared.x[:m].clone()
                    here = likely(problem, candidates[kind], gpu, arguments.count) + algorithms(m, tuned[kind])
                    with said(problem.size):
                        found = raced(place, bundle, rotated, here, arguments.rounds)
                        entry = kept.add(key, {"m": m, "n": kind.N, "k": kind.K, "dtype": kind.dtype_a, **found})
                if entry is not None:
                    entries.append(entry)
            del shared
            place.release()
    return report(entries)


def likely(problem: GemmProblem, winners: Iterable[PackedWinner], gpu: Gpu, count: int) -> list[PackedWinner]:
    """Those whose kernels serve this M and whose config is promising there."""
    by_config = {
        Config.parse(winner.config): winner
        for winner in winners
        if winner.calls[0].least_m <= problem.M <= winner.calls[0].most_m
    }
    return [by_config[config] for config in promising(problem, by_config, gpu, count)]


def algorithms(m: int, tuned: Sequence[PackedWinner]) -> list[PackedWinner]:
    """Of both neighbours the rows that have an algorithm of cuBLASLt."""
    smaller = [winner for winner in tuned if m > winner.problem.M]
    larger = [winner for winner in tuned if m < winner.problem.M]
    both = max(smaller, key=lambda winner: winner.problem.M), min(larger, key=lambda winner: winner.problem.M)
    return [winner for winner in both if kept_algorithm(winner.vendor)]


def report(entries: Sequence[Mapping[str, Any]]) -> str:
    """A line for each stretch: torch.mm's time over the best candidate's, and how often that is faster by 2 %."""
    lines = []
    for first, end in zip((0, *ENDS), ENDS, strict=False):
        ratios = []
        for entry in entries:
            others = [us for name, us in entry["times_us"].items() if name != TORCH]
            if first < entry["m"] <= end and others:
                ratios.append(entry["times_us"][TORCH] / min(others))
        if ratios:
            best = geomean([max(ratio, 1.0) for ratio in ratios])
            won = sum(ratio > 1.02 for ratio in ratios)
            lines.append(f"M to {end}: {len(ratios)} sizes, best candidate {geomean(ratios):.3f} of torch.mm, ")
            lines[-1] += f"the better of both {best:.3f}, {won} faster by over 2 %"
    return "\n".join([*lines, f"{len(entries)} sizes"])


def main() -> None:
    parser = argument_parser(__doc__)
    parser.set_defaults(rounds=9)
    least_and_most(parser)
    arguments = parser.parse_args(sys.argv[1:])
    with errors_end():
        print(run(gpu_place(), arguments))


if __name__ == "__main__":
    main()
