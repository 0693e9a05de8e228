"""Which kernels are fast between tuned M: a race of the likely ones at both ends of what the same tiles cover.

    python benchmarks/between.py RESULTS... --write CANDIDATES.genkern      # no GPU needed; compiles
    python benchmarks/between.py CANDIDATES.genkern -o FILE --limit_s 110

Candidates for one N and K are the configs that won there for any M; these and usual ones with tiles cut so that they
cover M without rows to spare, and so that they fill one to four waves. Of each M the predictor's first ones are timed
with torch.mm, weights cold, in CUDA graphs: three rounds of all, then nine of those within 5 % of the best. Times of
both stages are kept by the config's name; figures are the judgement of nobody, but data to choose a rule by.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import random
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from dispatching import Place, Rotated, dispatcher, gpu_place, is_plain
from figures import geomean
from kept import Kept
from rounds import Limit
from workbench import errors_end, said

from genkern.command.target import versions
from genkern.farm.cache import BinaryCache, Failure
from genkern.farm.farm import Farm
from genkern.files import cache_folder
from genkern.formats.kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch, gpu_for_device, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.journal.run_folder import run_folder
from genkern.kernels.family import FAMILIES
from genkern.kernels.kernel import Target
from genkern.kernels.legality import legal
from genkern.packing.any_m import reach
from genkern.packing.packer import Packer, Wanted
from genkern.packing.rows import rows_of
from genkern.profiling.cuda.timers import Sampler
from genkern.profiling.loaded_gemm import Call
from genkern.runtime.bundle import Bundle, read_bundle, write_bundle
from genkern.runtime.context import Context
from genkern.runtime.launch.prepared import Gpu as DispatchGpu
from genkern.runtime.packed import Contents, PackedWinner
from genkern.runtime.table import Choice
from genkern.search.predict import predict_us

TORCH = "torch.mm"
# The last M of each stretch; the next one begins behind it.
ENDS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
ARCH = "sm_90"
LEAST_WIDTH, STEP, MOST_WAVES = 64, 16, 4
SCREEN_ROUNDS, WITHIN = 3, 1.05


def lengths(ms: Sequence[int], least_m: int, most_m: int) -> list[int]:
    """The M to time between tuned `ms`: both ends of each stretch, but for what is tuned or lies outside."""
    ends = {m for end, after in itertools.pairwise(ENDS) for m in (end + 1, after)}
    return sorted(m for m in ends if max(ms[0], least_m) <= m <= min(ms[-1], most_m) and m not in ms)


def fitted(problem: GemmProblem, tuned: Iterable[Config], gpu: Gpu) -> list[Config]:
    """The configs for this M, each once: `tuned` as they are and cut to M, and usual ones for one to four waves."""
    found: dict[Config, None] = {}

    def add(config: Config) -> None:
        # As many stages as fit: a taller tile leaves room for fewer.
        for stages in range(config.num_stages, 1, -1):
            staged = replace(config, num_stages=stages)
            if not legal(problem, staged, gpu):
                found[staged] = None
                return

    for config in tuned:
        add(config)
        if config.family.startswith("warp_specialized_swapped"):
            most = -(-problem.M // config.BLOCK_SIZE_M)
            for tiles in {1, max(most - 1, 1), most}:
                add(replace(config, BLOCK_SIZE_M=rows_of_a_tile(problem.M, tiles)))
    for waves in range(1, MOST_WAVES + 1):
        programs = waves * gpu.compute_units
        if tiles := programs // -(-problem.N // 128):
            rows = rows_of_a_tile(problem.M, tiles)
            add(Config("warp_specialized_swapped", rows, 128, 64, 4, 1, 4 if rows <= 192 else 8, 8))
        for block_m in (64, 128, 256):
            if columns := programs // -(-problem.M // block_m):
                width = max(rows_of_a_tile(problem.N, columns), LEAST_WIDTH)
                add(Config("warp_specialized", block_m, width, 64, 4, 1, 8 if max(width, block_m) > 192 else 4, 8))
    return list(found)


def spare(problem: GemmProblem, config: Config) -> bool:
    """Whether TMA would fill most of the last tile with zeros, which is slow (genkern.runtime.untuned)."""
    beyond = -problem.M % config.BLOCK_SIZE_M
    return FAMILIES[config.family].uses_tma and beyond > max(config.BLOCK_SIZE_M / 2, STEP)


def rows_of_a_tile(size: int, tiles: int) -> int:
    """The least multiple of STEP by which so many tiles cover `size`."""
    return -(-size // (tiles * STEP)) * STEP


def promising(problem: GemmProblem, configs: Iterable[Config], gpu: Gpu, count: int) -> list[Config]:
    """The first ones by the predictor."""
    there = (config for config in configs if not legal(problem, config, gpu) and not spare(problem, config))
    return sorted(there, key=lambda config: predict_us(problem, config, Resources(), gpu))[:count]


def write(paths: Sequence[str], output: str, least_m: int, most_m: int, count: int) -> str:
    """A bundle with the candidates: of one problem of each N and K, many winners, each serving any M."""
    rows = rows_of((row for path in paths for row in read_results(path)), None, False).packed
    kinds: dict[GemmProblem, list[PackedWinner]] = {}
    for row in rows:
        if is_plain(row.winner.problem) and row.winner.arch == ARCH:
            kinds.setdefault(replace(row.winner.problem, M=1), []).append(row.winner)
    first = next(iter(kinds.values()))[0]
    gpu = gpu_for_device(first.device, ARCH)
    wanted: dict[tuple[PackedWinner, Config], Wanted] = {}
    for kind, winners in kinds.items():
        winners.sort(key=lambda winner: winner.problem.M)
        tuned = dict.fromkeys(Config.parse(winner.config) for winner in winners)
        for m in lengths([winner.problem.M for winner in winners], least_m, most_m):
            problem = replace(kind, M=m)
            for config in promising(problem, fitted(problem, tuned, gpu), gpu, count):
                one = replace(winners[-1], problem=kind, choice="config", config=config.name, time_us=None, code="")
                reached = reach(problem, config, gpu, (1, most_m))
                known = wanted.get((one, config))
                if known is None or reached.most_m - reached.least_m > known.reach.most_m - known.reach.least_m:
                    wanted[one, config] = Wanted(config, gpu, reached)
    folder = cache_folder(None)
    with run_folder(folder / "modules") as modules:
        target = Target(*triton_target(gpu_for_arch(ARCH)))
        farm = Farm(BinaryCache(folder / "binaries"), target, versions()["triton"], jobs=-1, timeout_s=60.0)
        try:
            packer = Packer(farm, ARCH, modules)
            calls = packer.pack(list(wanted.values()))
        finally:
            farm.close()
    made = [
        replace(one, calls=(call,))
        for (one, _), call in zip(wanted, calls, strict=True)
        if not isinstance(call, Failure)
    ]
    # Who is tuned for which M is said by rows without calls.
    made += [replace(winner, calls=()) for winners in kinds.values() for winner in winners]
    size = write_bundle(output, Contents(tuple(made), packer.binaries), packer.images)
    return f"{len(wanted)} candidates for {len(kinds)} N and K, {len(packer.binaries)} binaries, {size} bytes"


class Fixed(Context):
    """What serves calls here: one winner, whatever the problem."""

    def __init__(self, place: Place, bundle: Bundle, winner: PackedWinner) -> None:
        super().__init__(lambda op: [bundle], lambda index: place.gpu)
        self._choice = Choice("a candidate", winner, winner.calls[0], bundle)
        self.failed = ""

    def find(self, gpu: DispatchGpu, problem: GemmProblem) -> Choice:
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
        call = rotated.by(dispatcher(context))
        call(0)
        if not context.failed:
            calls[winner.config] = call
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
    (path,) = arguments.files
    limit, kept, bundle = Limit(arguments.limit_s), Kept(arguments.output), read_bundle(path)
    setting = place.setting(__file__, path)
    gpu = gpu_for_device(place.gpu.identity.name, place.gpu.identity.arch)
    candidates: dict[GemmProblem, list[PackedWinner]] = {}
    tuned: dict[GemmProblem, list[int]] = {}
    for winner in bundle.winners:
        kind = replace(winner.problem, M=1)
        if winner.calls:
            candidates.setdefault(kind, []).append(winner)
        else:
            tuned.setdefault(kind, []).append(winner.problem.M)
    entries = []
    with torch.no_grad():
        for kind in limit.until(sorted(candidates, key=lambda kind: zlib.crc32(kind.name.encode()))):
            shared: Rotated | None = None
            for m in limit.until(lengths(sorted(tuned[kind]), arguments.least_m, arguments.most_m)):
                problem = replace(kind, M=m)
                key = f"{setting} {problem.name}"
                if (entry := kept.of(key)) is None:
                    shared = shared or Rotated(replace(kind, M=arguments.most_m), place)
                    rotated = copy.copy(shared)
                    rotated.problem, rotated.x = problem, shared.x[:m].clone()
                    here = likely(problem, candidates[kind], gpu, arguments.count)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="the bundle of candidates; with --write results files")
    parser.add_argument("-o", "--output", help="JSON lines, added at once; what it has already is not timed again")
    parser.add_argument("--limit_s", type=float, default=float("inf"), help="begin nothing after so many seconds")
    parser.add_argument("--rounds", type=int, default=9, help="of which medians are taken (default: 9)")
    parser.add_argument(
        "--write", metavar="BUNDLE", help="write candidates for what these results are for; time nothing"
    )
    parser.add_argument("--least_m", type=int, default=17, help="(default: 17)")
    parser.add_argument("--most_m", type=int, default=1024, help="(default: 1024)")
    parser.add_argument("--count", type=int, default=6, help="candidates for each M (default: 6)")
    arguments = parser.parse_args(sys.argv[1:])
    with errors_end():
        if arguments.write:
            print(write(arguments.files, arguments.write, arguments.least_m, arguments.most_m, arguments.count))
        else:
            print(run(gpu_place(), arguments))


if __name__ == "__main__":
    main()
