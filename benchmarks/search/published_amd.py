"""How much of what others found best on AMD's GPUs the default spaces hold, and how early it would be tried.

    python -m benchmarks.search.published_amd FOLDER [FOLDER ...] [--each]

The folders have configs that others publish by size, under their own names: AITER's Triton GEMMs
(`gfx942-GEMM-A8W8-N=128-K=2048.json`; ROCm/aiter, aiter/ops/triton/configs/gemm) and vLLM's and SGLang's for scales of
blocks (`N=1536,K=7168,device_name=AMD_Instinct_MI300X,...json`). None is part of genkern. Of each, for the largest M
that it is for: whether a config with its tile and SPLIT_K is left in the default space after pruning, at which place
among the distinct tiles the predicted order has it (0: first, 1: last), and whether it is among the first 64 binaries.
SPLIT_K counts by how many K-blocks a program has: 8 of 12 blocks are six programs of two, as 6 are, and two of nothing.
A winner comes out of a search with near ties, so being early is what counts. Nothing here runs on a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.common.figures import percentile, table
from genkern.errors import InputError
from genkern.formats.exchange.peers import read_peer
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import op_names
from genkern.search.predict import promising_first
from genkern.search.strategy import units_of
from genkern.space.prune import prune
from genkern.space.space import load_space

FIRST = 64
ARCHS = ("gfx942", "gfx950", "gfx1201")
Tile = tuple[int, int, int, int]


@dataclass
class Found:
    """Of the winners of one target and format.

    `published`: how many there are. `places` of those that are kept, `early` of these are among the first binaries.
    `missing`: those that are not kept. `slowest_s`: the longest time in which a size was pruned.
    """

    published: int = 0
    places: list[float] = field(default_factory=list)
    early: int = 0
    missing: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


def tile_of(problem: GemmProblem, config: Config) -> Tile:
    """What a published config and one of genkern's must have in common: blocks, and K-blocks of a program."""
    blocks = -(-problem.K // config.BLOCK_SIZE_K)
    return config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K, -(-blocks // config.SPLIT_K)


def place_of(problem: GemmProblem, tile: Tile, order: Iterable[Config]) -> float | None:
    """Where the tile stands among the distinct ones of `order`, from 0 to 1; None where it is not there."""
    tiles = list(dict.fromkeys(tile_of(problem, config) for config in order))
    return tiles.index(tile) / max(1, len(tiles) - 1) if tile in tiles else None


def judge(found: Found, problem: GemmProblem, tiles: Sequence[Tile], arch: str) -> None:
    """Add what becomes of a size's winners."""
    started_s = time.perf_counter()
    try:
        kept = prune(load_space(None, arch, problem.op), problem, gpu_for_arch(arch)).kept
    except InputError:
        kept = []
    found.slowest_s = max(found.slowest_s, time.perf_counter() - started_s)
    order = promising_first(problem, kept, gpu_for_arch(arch))
    first = {tile_of(problem, config) for unit in units_of(order)[:FIRST] for config in unit.configs}
    for tile in tiles:
        place = place_of(problem, tile, order)
        if place is None:
            found.missing.append(f"{arch} {problem.name}: {'x'.join(map(str, tile[:3]))}, {tile[3]} K-blocks a program")
        else:
            found.places.append(place)
            found.early += tile in first


def winners(folders: Iterable[Path]) -> Iterator[tuple[str, GemmProblem | None, Tile | None, int]]:
    """Of each file its target and a size with its winner's tile, or Nones and how many configs genkern has not."""
    for path in sorted(path for folder in folders for path in folder.glob("*.json")):
        try:
            imported = read_peer(str(path), None)
        except InputError:
            # Of other kernels, or devices.
            continue
        for candidate in imported.candidates:
            if candidate.config is not None:
                yield imported.arch, candidate.problem, tile_of(candidate.problem, candidate.config), 1
        for why, count in imported.left_out.items():
            # Files that are no GEMM's of genkern's are no winners that it lost.
            if not why.startswith(("of another format", "of no one N and K", "of fused MoE")):
                yield imported.arch, None, None, count


def judged(folders: Iterable[Path]) -> dict[tuple[str, str], Found]:
    """All winners, by target and format; those that genkern's kernels do not have count as another format, "none"."""
    found: dict[tuple[str, str], Found] = defaultdict(Found)
    sizes: dict[tuple[str, GemmProblem], list[Tile]] = defaultdict(list)
    for arch, problem, tile, count in winners(folders):
        if arch in ARCHS:
            found[arch, problem.op if problem else "none"].published += count
            if problem is not None and tile is not None:
                sizes[arch, problem].append(tile)
    for (arch, problem), tiles in sizes.items():
        judge(found[arch, problem.op], problem, tiles, arch)
    return dict(found)


def formats_with_space() -> list[str]:
    """Formats for which each of the targets has a default space."""
    having = []
    for op in op_names():
        try:
            having.append([load_space(None, arch, op) for arch in ARCHS] and op)
        except InputError:
            continue
    return having


def _kept(of: Iterable[Found]) -> str:
    of = list(of)
    kept, published = sum(len(each.places) for each in of), sum(each.published for each in of)
    return f"{kept / published:.3f} ({kept} of {published})" if published else "-"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--each", action="store_true", help="also print each winner that is not kept")
    options = parser.parse_args(argv)
    found = judged(options.folders)
    rows = []
    for (arch, op), of in sorted(found.items()):
        places = [f"{percentile(of.places, share):.2f}" if of.places else "-" for share in (0.5, 0.9)]
        early = f"{of.early / of.published:.2f}" if of.published else "-"
        rows.append((arch, op, of.published, len(of.places), *places, early, f"{of.slowest_s:.2f}"))
    print(table(("target", "format", "published", "kept", "median", "p90", "first 64", "slowest prune, s"), rows))
    if options.each:
        print("\n".join(line for of in found.values() for line in of.missing))
    cdna = [of for (arch, _), of in found.items() if arch != "gfx1201"]
    places = [place for of in cdna for place in of.places]
    published = sum(of.published for of in cdna)
    figures = {
        "amd_published_kept": _kept(cdna),
        "gfx1201_published_kept": _kept(of for (arch, _), of in found.items() if arch == "gfx1201"),
        "amd_median_place": f"{median(places):.2f}" if places else "-",
        "amd_p90_place": f"{percentile(places, 0.9):.2f}" if places else "-",
        "amd_predicted64_found": f"{sum(of.early for of in cdna) / published:.2f}" if published else "-",
        "amd_formats_with_space": f"{len(formats_with_space())} of {len(op_names())}",
    }
    print("\n".join(f"{key}: {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
