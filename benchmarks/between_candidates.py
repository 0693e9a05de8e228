"""Which kernels to try between tuned M, packed: no GPU and no PyTorch needed, but Triton, since they are compiled.

    python benchmarks/between_candidates.py RESULTS... -o CANDIDATES.genkern      # 200 s on two cores

Candidates for one N and K are the configs that won there for any M; these and usual ones with tiles cut so that they
cover M without rows to spare, and so that they fill one to four waves. Of each M the predictor's first ones are taken,
at both ends of what the same tiles cover. between.py times them.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from genkern.command.target import versions
from genkern.errors import GenkernError, ResultsError
from genkern.farm.cache import BinaryCache, Failure
from genkern.farm.farm import Farm
from genkern.files import cache_folder
from genkern.formats.kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch, gpu_for_device, triton_target
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.gemm.records import Resources
from genkern.journal.run_folder import run_folder
from genkern.kernels.catalogue import form_of
from genkern.kernels.kernel import Target
from genkern.kernels.legality import legal
from genkern.packing.any_m import reach
from genkern.packing.packer import Packer, Wanted
from genkern.packing.rows import rows_of
from genkern.runtime.bundle import write_bundle
from genkern.runtime.packed import Contents, PackedWinner
from genkern.search.predict import predict_us

# The last M of each stretch; the next one begins behind it.
ENDS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
ARCH = "sm_90"
LEAST_WIDTH, STEP, MOST_WAVES = 64, 16, 4


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
        if config.family == "warp_specialized" and config.swapped:
            most = -(-problem.M // config.BLOCK_SIZE_M)
            for tiles in {1, max(most - 1, 1), most}:
                add(replace(config, BLOCK_SIZE_M=rows_of_a_tile(problem.M, tiles)))
    for waves in range(1, MOST_WAVES + 1):
        programs = waves * gpu.compute_units
        if tiles := programs // -(-problem.N // 128):
            rows = rows_of_a_tile(problem.M, tiles)
            add(Config("warp_specialized", rows, 128, 64, 4, 1, 4 if rows <= 192 else 8, 8, swapped=1))
        for block_m in (64, 128, 256):
            if columns := programs // -(-problem.M // block_m):
                width = max(rows_of_a_tile(problem.N, columns), LEAST_WIDTH)
                add(Config("warp_specialized", block_m, width, 64, 4, 1, 8 if max(width, block_m) > 192 else 4, 8))
    return list(found)


def spare(problem: GemmProblem, config: Config) -> bool:
    """Whether TMA would fill most of the last tile with zeros, which is slow (genkern.runtime.untuned)."""
    beyond = -problem.M % config.BLOCK_SIZE_M
    return form_of(config).uses_tma and beyond > max(config.BLOCK_SIZE_M / 2, STEP)


def rows_of_a_tile(size: int, tiles: int) -> int:
    """The least multiple of STEP by which so many tiles cover `size`."""
    return -(-size // (tiles * STEP)) * STEP


def promising(problem: GemmProblem, configs: Iterable[Config], gpu: Gpu, count: int) -> list[Config]:
    """The first ones by the predictor."""
    there = (config for config in configs if not legal(problem, config, gpu) and not spare(problem, config))
    return sorted(there, key=lambda config: predict_us(problem, config, Resources(), gpu))[:count]


def write(paths: Sequence[str], output: str, least_m: int, most_m: int, count: int) -> str:
    """A bundle with the candidates: of one problem of each N and K, many winners, each serving any M.

    Raises GenkernError where there is nothing to start from, or the files cannot be read or written.
    """
    rows = rows_of((row for path in paths for row in read_results(path)), None, False).packed
    kinds: dict[GemmProblem, list[PackedWinner]] = {}
    for row in rows:
        kind = replace(row.winner.problem, M=1)
        if kind == GemmProblem(1, kind.N, kind.K, DEFAULT_OP, *[kind.dtype_a] * 3) and row.winner.arch == ARCH:
            kinds.setdefault(kind, []).append(row.winner)
    if not kinds:
        raise ResultsError(f"{', '.join(paths)}: hold no {DEFAULT_OP} of one type without more, tuned on {ARCH}")
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


def least_and_most(parser: argparse.ArgumentParser) -> None:
    """Options that writing and timing share."""
    parser.add_argument("--least_m", type=int, default=17, help="(default: 17)")
    parser.add_argument("--most_m", type=int, default=1024, help="(default: 1024)")
    parser.add_argument("--count", type=int, default=6, help="candidates for each M (default: 6)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="results files of one device")
    parser.add_argument("-o", "--output", required=True, help="the bundle to write")
    least_and_most(parser)
    arguments = parser.parse_args()
    try:
        print(write(arguments.results, arguments.output, arguments.least_m, arguments.most_m, arguments.count))
    except GenkernError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
