"""Whether what binaries say of themselves orders AMD's candidates better than what is known before they are compiled.

    python -m benchmarks.search.amd_second_level FOLDER [FOLDER ...] [--sizes N] [--tiles N]

The folders are as for published_amd. Of sizes on gfx942 and gfx950, drawn by a digest of their names, the first tiles
of the predicted order are compiled, one binary each; where a published winner's tile is among them, its place is told
by three orders (0: first): of the model without binaries, with their registers, LDS and scratch, and with the
instructions of their main loop besides (all but matrix ones, four clocks each of a wave's SIMD, in shares). Compiles
some second a binary; nothing here runs on a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from benchmarks.common.figures import table
from benchmarks.search.published_amd import Tile, kept_of, tile_of, winners
from genkern.cli.options import parse
from genkern.cli.setting import make_setting
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.cost_model.predict import predicted_us, promising_first

ARCHS = ("gfx942", "gfx950")
_CLOCKS = 4
# Of the instructions' clocks so much is not hidden behind matrix instructions.
SHARES = (0.25, 0.5, 1.0)
Places = dict[str, float]


def winners_of(folders: Sequence[Path]) -> dict[tuple[str, GemmProblem], list[Tile]]:
    """The published tiles by target and size, in an order that follows from their names alone."""
    found: dict[tuple[str, GemmProblem], list[Tile]] = defaultdict(list)
    for path in sorted(path for folder in folders for path in folder.glob("*.json")):
        for arch, problem, winner, _ in winners(path):
            if arch in ARCHS and problem is not None and winner is not None:
                found[arch, problem].append(winner[0])
    keys = sorted(found, key=lambda key: hashlib.sha256(f"{key[0]} {key[1].name}".encode()).hexdigest())
    return {key: found[key] for key in keys}


def first_tiles(problem: GemmProblem, arch: str, most: int) -> dict[Tile, Config]:
    """The most promising config of each of the first tiles."""
    by_tile: dict[Tile, Config] = {}
    for config in promising_first(problem, kept_of(problem, arch), gpu_for_arch(arch)):
        if len(by_tile) == most and tile_of(problem, config) not in by_tile:
            break
        by_tile.setdefault(tile_of(problem, config), config)
    return by_tile


def compiled(problem: GemmProblem, arch: str, configs: Sequence[Config]) -> dict[str, Resources]:
    """What the binaries of those that compile need, by name of the config."""
    setting = make_setting(parse(["-m", "1", "-n", "1", "-k", "1", "--arch", arch]))
    with (
        setting.build_environment(Console(quiet=True)) as build_environment,
        build_environment.open(problem, configs, 0) as builder,
    ):
        return {each.config.name: each.binaries[0].resources for each in builder.candidates(configs)}


def places_of(
    problem: GemmProblem, arch: str, configs: Sequence[Config], needs: Sequence[Resources], winner: int
) -> Places:
    """The winner's place by each order."""
    gpu = gpu_for_arch(arch)
    without, with_needs = (np.array(predicted_us(problem, configs, gpu, of)) for of in (None, needs))
    orders: dict[str, npt.NDArray[np.float64]] = {"no binaries": without, "binaries": with_needs}
    for share in SHARES:
        orders[f"loops, {share}"] = with_needs + share * issued_us(problem, arch, configs, needs)
    return {name: float((times < times[winner]).mean()) for name, times in orders.items()}


def issued_us(
    problem: GemmProblem, arch: str, configs: Sequence[Config], needs: Sequence[Resources]
) -> npt.NDArray[np.float64]:
    """[configs] microseconds in which the busiest unit issues what its loops have besides matrix instructions."""
    gpu, found = gpu_for_arch(arch), []
    for config, binary in zip(configs, needs, strict=True):
        tiles = -(-problem.M // config.BLOCK_SIZE_M) * -(-problem.N // config.BLOCK_SIZE_N) * problem.batch
        steps = -(-problem.K // config.BLOCK_SIZE_K // config.SPLIT_K)
        others = max(0, (binary.loop_instructions or 0) - (binary.loop_matrix or 0))
        of_step = _CLOCKS * others * config.num_warps / gpu.simds_per_unit / gpu.clock_mhz
        found.append(-(-tiles * config.SPLIT_K // gpu.compute_units) * steps * of_step)
    return np.array(found)


def judged(folders: Sequence[Path], sizes: int, tiles: int) -> Iterator[Places]:
    """Places of the winners that are among the first tiles of a size."""
    for (arch, problem), won in list(winners_of(folders).items())[:sizes]:
        by_tile = first_tiles(problem, arch, tiles)
        tile = next((each for each in won if each in by_tile), None)
        if tile is None:
            continue
        resources = compiled(problem, arch, list(by_tile.values()))
        made = [(each, config) for each, config in by_tile.items() if config.name in resources]
        if tile in dict(made):
            configs, place = [config for _, config in made], [each for each, _ in made].index(tile)
            yield places_of(problem, arch, configs, [resources[config.name] for config in configs], place)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--sizes", type=int, default=48)
    parser.add_argument("--tiles", type=int, default=24)
    options = parser.parse_args(argv)
    found = list(judged(options.folders, options.sizes, options.tiles))
    rows = []
    for name in found[0] if found else ():
        places = [each[name] for each in found]
        rows.append(
            (name, len(places), *(f"{value:.3f}" for value in (np.mean(places), *np.quantile(places, (0.5, 0.9)))))
        )
    print(table(("order by", "winners", "mean place", "median", "p90"), rows))


if __name__ == "__main__":
    main()
