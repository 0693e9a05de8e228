"""How much of what others found best on AMD's GPUs the default spaces hold, and how early it would be tried.

    python -m benchmarks.search.published_amd FOLDER [FOLDER ...] [--each]

The folders have configs that others publish by size, under their own names: AITER's Triton GEMMs
(`gfx942-GEMM-A8W8-N=128-K=2048.json`; ROCm/aiter, aiter/ops/triton/configs/gemm) and vLLM's and SGLang's for scales of
blocks (`N=1536,K=7168,device_name=AMD_Instinct_MI300X,...json`). None is part of genkern. Of each, for the largest M
that it is for: whether a config with its tile and SPLIT_K is left in the default space after pruning, at which place
among the distinct tiles the predicted order has it (0: first, 1: last), whether it is among the first 64 binaries, and
whether one of these has the winner's number of warps too.
Places are among what the other program's kernel can run, which for vLLM and SGLang is no split K, and what its tuner
tries (SEARCHED): a winner says nothing of tiles that it never raced with. SPLIT_K counts by how
many K-blocks a program has: 8 of 12 blocks are six programs of two, as 6 are, and two of nothing. A winner comes out of
a search with near ties, so being early is what counts. Nothing here runs on a GPU.
"""

from __future__ import annotations

import argparse
import operator
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.common.figures import percentile, table
from genkern.errors import InputError
from genkern.files.exchange.peers import PEERS, read_peer
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import op_names
from genkern.search.cost_model.predict import promising_first
from genkern.search.strategy import units_of
from genkern.space.prune import prune
from genkern.space.space import load_space

FIRST = 64
# The least BLOCK_SIZE_M, BLOCK_SIZE_N and num_warps that tuners of kernels for scales of blocks try: vLLM's
# benchmarks/kernels/benchmark_w8a8_block_fp8.py, and on ROCm SGLang's tuning_block_wise_kernel.py (of
# benchmark/kernels/quantization). No file of theirs for gfx942 has less.
SEARCHED = {"vllm": (16, 32, 4), "sglang": (32, 16, 4)}
ARCHS = ("gfx942", "gfx950", "gfx1201")
Tile = tuple[int, int, int, int]
# A winner's tile, which configs its program's kernel can run, and its number of warps.
Winner = tuple[Tile, Callable[[Config], bool], int]


@dataclass
class Found:
    """Of the winners of one target and format.

    `published`: how many there are. `places` of those that are kept; of `early` of these the tile is among the first
    binaries, of `with_warps` one with the winner's number of warps. `missing`: those that are not kept. `slowest_s`:
    the longest time in which a size was pruned.
    """

    published: int = 0
    places: list[float] = field(default_factory=list)
    early: int = 0
    with_warps: int = 0
    missing: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


FoundBy = dict[tuple[str, str, str], Found]


def tile_of(problem: GemmProblem, config: Config) -> Tile:
    """What a published config and one of genkern's must have in common: blocks, and K-blocks of a program."""
    blocks = -(-problem.K // config.BLOCK_SIZE_K)
    return config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K, -(-blocks // config.SPLIT_K)


def place_of(problem: GemmProblem, tile: Tile, order: Iterable[Config]) -> float | None:
    """Where the tile stands among the distinct ones of `order`, from 0 to 1; None where it is not there."""
    tiles = list(dict.fromkeys(tile_of(problem, config) for config in order))
    return tiles.index(tile) / max(1, len(tiles) - 1) if tile in tiles else None


def kept_of(problem: GemmProblem, arch: str) -> list[Config]:
    """What pruning leaves of the default space."""
    try:
        return prune(load_space(None, arch, problem.op), problem, gpu_for_arch(arch)).kept
    except InputError:
        return []


def judge(problem: GemmProblem, arch: str, published: Mapping[str, Sequence[Winner]], found: FoundBy) -> None:
    """Add what becomes of a size's winners, by their source."""
    started_s = time.perf_counter()
    kept = kept_of(problem, arch)
    seconds = time.perf_counter() - started_s
    order = promising_first(problem, kept, gpu_for_arch(arch))
    units = units_of(order)[:FIRST]
    first = {(tile_of(problem, config), config.num_warps) for unit in units for config in unit.configs}
    tiles = {tile for tile, _ in first}
    for source, of_source in published.items():
        of = found[arch, problem.op, source]
        of.slowest_s = max(of.slowest_s, seconds)
        for tile, runs, warps in of_source:
            place = place_of(problem, tile, (config for config in order if runs(config)))
            if place is None:
                of.missing.append(
                    f"{arch} {problem.name}: {'x'.join(map(str, tile[:3]))}, {tile[3]} K-blocks a program"
                )
            else:
                of.places.append(place)
                of.early += tile in tiles
                of.with_warps += (tile, warps) in first


def winners(path: Path) -> Iterator[tuple[str, GemmProblem | None, Winner | None, int]]:
    """Of a file its target and a size with its winner, or Nones and how many configs genkern has not."""
    try:
        imported = read_peer(str(path), None)
    except InputError:
        # Of other kernels, or devices.
        return
    name, peer = next((name, peer) for name, peer in PEERS.items() if peer.is_named(path.name))
    splits = not peer.config_obstacle(Config("tiled", 64, 64, 64, SPLIT_K=2))
    least = SEARCHED.get(name, (1, 1, 1))

    def runs(config: Config) -> bool:
        has = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.num_warps
        return (splits or config.SPLIT_K == 1) and all(map(operator.ge, has, least))

    for candidate in imported.candidates:
        if (config := candidate.config) is not None:
            yield imported.arch, candidate.problem, (tile_of(candidate.problem, config), runs, config.num_warps), 1
    for why, count in imported.left_out.items():
        # Files that are no GEMM's of genkern's are no winners that it lost.
        if not why.startswith(("of another format", "of no one N and K", "of fused MoE")):
            yield imported.arch, None, None, count


def judged(folders: Iterable[Path]) -> FoundBy:
    """All winners, by target, format and folder; those that genkern's kernels have not are of a format "none"."""
    found: FoundBy = defaultdict(Found)
    sizes: dict[tuple[str, GemmProblem], dict[str, list[Winner]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(path for folder in folders for path in folder.glob("*.json")):
        for arch, problem, winner, count in winners(path):
            if arch in ARCHS:
                found[arch, problem.op if problem else "none", path.parent.name].published += count
                if problem is not None and winner is not None:
                    sizes[arch, problem][path.parent.name].append(winner)
    for (arch, problem), published in sizes.items():
        judge(problem, arch, published, found)
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
    for (arch, op, source), of in sorted(found.items()):
        places = [f"{percentile(of.places, share):.2f}" if of.places else "-" for share in (0.5, 0.9)]
        early = [f"{count / of.published:.2f}" if of.published else "-" for count in (of.early, of.with_warps)]
        rows.append((arch, op, source, of.published, len(of.places), *places, *early, f"{of.slowest_s:.2f}"))
    print(
        table(
            ("target", "format", "folder", "published", "kept", "median", "p90", "first 64", "its warps", "prune, s"),
            rows,
        )
    )
    if options.each:
        print("\n".join(line for of in found.values() for line in of.missing))
    cdna = [of for (arch, *_), of in found.items() if arch != "gfx1201"]
    places = [place for of in cdna for place in of.places]
    published = sum(of.published for of in cdna)
    figures = {
        "amd_published_kept": _kept(cdna),
        "gfx1201_published_kept": _kept(of for (arch, *_), of in found.items() if arch == "gfx1201"),
        "median place by the shipped rates": f"{median(places):.2f}" if places else "-",
        "p90 place by the shipped rates": f"{percentile(places, 0.9):.2f}" if places else "-",
        "amd_predicted64_found": f"{sum(of.early for of in cdna) / published:.3f}" if published else "-",
        "with the winner's warps": f"{sum(of.with_warps for of in cdna) / published:.3f}" if published else "-",
        "amd_formats_with_space": f"{len(formats_with_space())} of {len(op_names())}",
    }
    print("\n".join(f"{key}: {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
