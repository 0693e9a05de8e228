"""How the rates that no document has were chosen for AMD's GPUs, and how they order sizes that they were not chosen on.

    python -m benchmarks.search.amd_rates FOLDER [FOLDER ...]

The folders are as for published_amd. The rates are those of gpus.yaml that stand for no measurement (`CHOSEN`), alike
for all GPUs. The sizes are parted by (N, K) into five: on four parts the rates are fitted so that winners' tiles come
early, and judged on the fifth. The same is done with each format, and each folder, left out. What is shipped was chosen
on all of AITER's. `first 64` is the share of winners whose tile is among the first binaries, `its warps` with the
winner's number of warps; the steps between variants (genkern.search.cost_model.variants) are chosen beside the rates,
on the same sizes. Nothing here runs on a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.common.figures import table
from benchmarks.search.published_amd import ARCHS, FIRST, Tile, Winner, kept_of, tile_of, winners
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.cost_model.columns import columns_of
from genkern.search.cost_model.predict import peak_tflops
from genkern.search.cost_model.rate_times import times_us
from genkern.search.cost_model.variants import Steps, Variants, variants_of

# The rates with what a fit begins with, those of gpus.yaml.
CHOSEN = ("matrix_share", "latency_us", "step_us", "start_us", "gap_us")
FOLDS = 5
# A fit looks at so many sizes, drawn by a seed, and moves each rate by these factors as long as that helps.
_SIZES, _FACTORS = 100, (1.5, 1.2)
# What a fit chooses the steps from.
_STEPS = tuple(itertools.starmap(Steps, itertools.product((0.05, 0.1, 0.15, 0.2), (0.2, 0.4, 0.6))))
# Places below this are as good as the first.
_FIRST = 0.02
Rates = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Size:
    """A size with its pruned space as columns, the number of each row's tile, and the numbers of its winners' tiles.

    With each winner go its folder, which tiles its program's kernel can run, and its number of warps.
    """

    arch: str
    problem: GemmProblem
    columns: Mapping[str, npt.NDArray[np.float64]]
    tile: npt.NDArray[np.int64]
    variants: Variants
    won: Sequence[tuple[str, int, npt.NDArray[np.bool_], int]]

    def places(self, rates: Rates, without: str = "") -> list[float]:
        """Of the winners, but those of a folder, among the tiles that could have won: 0 is the first."""
        times = self._times_us(rates)
        best = np.full(int(self.tile.max()) + 1, np.inf)
        np.minimum.at(best, self.tile, times)
        return [float((best[able] < best[tile]).mean()) for source, tile, able, _ in self.won if source != without]

    def early(self, rates: Rates, tried: Sequence[Steps]) -> npt.NDArray[np.bool_]:
        """[steps, winners, 2] whether a winner's tile is among the first binaries, and whether with its warps."""
        octaves, found = np.log2(self._times_us(rates)), []
        for steps in tried:
            first = np.argsort(self.variants.binaries_octaves(octaves, steps), kind="stable")[:FIRST]
            rows = np.isin(self.variants.binary, first)
            tiles, warps = self.tile[rows], self.columns["num_warps"][rows]
            found.append([(tile in tiles, warp in warps[tiles == tile]) for _, tile, _, warp in self.won])
        return np.array(found)

    def _times_us(self, rates: Rates) -> npt.NDArray[np.float64]:
        gpu = gpu_for_arch(self.arch)
        tried = replace(gpu.rates, **rates)  # type: ignore[type-var]
        return times_us(self.problem, gpu, tried, self.columns, peak_tflops(self.problem, gpu))


def read_sizes(folders: Sequence[Path]) -> list[Size]:
    """Every size of the folders whose winners' tiles are in its space."""
    published: dict[tuple[str, GemmProblem], list[tuple[str, Winner]]] = defaultdict(list)
    for path in sorted(path for folder in folders for path in folder.glob("*.json")):
        for arch, problem, winner, _ in winners(path):
            if arch in ARCHS and problem is not None and winner is not None:
                published[arch, problem].append((path.parent.name, winner))
    found = []
    for (arch, problem), these in published.items():
        kept = [config.with_values(GROUP_SIZE_M=1) for config in kept_of(problem, arch)]
        configs = list(dict.fromkeys(kept))
        numbers: dict[Tile, int] = {}
        tile = np.array([numbers.setdefault(tile_of(problem, config), len(numbers)) for config in configs], dtype=int)
        won = []
        for source, (of_winner, runs, warps) in these:
            if of_winner in numbers:
                able = np.zeros(len(numbers), dtype=bool)
                able[tile[[runs(config) for config in configs]]] = True
                won.append((source, numbers[of_winner], able, warps))
        if won:
            found.append(Size(arch, problem, columns_of(configs), tile, variants_of(configs), won))
    return found


def fold_of(size: Size) -> int:
    """By N and K alone."""
    return int(hashlib.sha256(f"{size.problem.N}x{size.problem.K}".encode()).hexdigest(), 16) % FOLDS


def fitted(sizes: Sequence[Size], without: str = "") -> dict[str, float]:
    """Rates with which the winners of these sizes, but those of a folder, come early."""
    drawn = _drawn(sizes)

    def loss(rates: Rates) -> float:
        places = [place for size in drawn for place in size.places(rates, without)]
        return float(np.log(np.array(places) + _FIRST).mean())

    shipped = gpu_for_arch(ARCHS[0]).rates
    rates = {name: getattr(shipped, name) for name in CHOSEN}
    least = loss(rates)
    for factor in _FACTORS:
        for name in CHOSEN:
            for changed in (rates[name] * factor, rates[name] / factor):
                tried = {**rates, name: min(changed, 1.0) if name.endswith("share") else changed}
                if (found := loss(tried)) < least:
                    least, rates = found, tried
                    break
    return rates


def _drawn(sizes: Sequence[Size]) -> list[Size]:
    return [sizes[number] for number in np.random.default_rng(0).permutation(len(sizes))[:_SIZES]]


def chosen_steps(sizes: Sequence[Size], rates: Rates) -> Steps:
    """With which the first binaries have most of the winners' tiles, those with their warps counted twice."""
    found = np.concatenate([size.early(rates, _STEPS) for size in _drawn(sizes)], axis=1)
    return _STEPS[int(found.sum(axis=(1, 2)).argmax())]


def _row(name: str, rates: Rates, places: Sequence[float]) -> tuple[object, ...]:
    median, late = (f"{np.quantile(places, share):.3f}" for share in (0.5, 0.9)) if places else ("-", "-")
    return (name, len(places), median, late, *(f"{rates[each]:.3f}" for each in CHOSEN))


def first_binaries(sizes: Sequence[Size], fits: Mapping[int, Rates]) -> str:
    """A row for each folder's winners on CDNA: those among the first binaries, as shipped, and by rates and steps that
    were chosen on other folds; `fits` has the rates.
    """
    found: dict[str, list[list[bool]]] = defaultdict(list)
    shipped: Rates = {name: getattr(gpu_for_arch(ARCHS[0]).rates, name) for name in CHOSEN}
    for fold, rates in fits.items():
        steps = chosen_steps([size for size in sizes if fold_of(size) != fold], rates)
        for size in (size for size in sizes if fold_of(size) == fold and size.arch != ARCHS[-1]):
            by_both = zip(size.won, size.early(shipped, [Steps()])[0], size.early(rates, [steps])[0], strict=True)
            for (source, *_), as_shipped, not_fitted in by_both:
                for name in (source, "all"):
                    found[name].append([*as_shipped, *not_fitted])
    rows = [(name, len(each), *(f"{share:.3f}" for share in np.mean(each, axis=0))) for name, each in found.items()]
    heads = "folder", "winners", "first 64", "its warps", "not fitted: first 64", "its warps"
    key = [f"amd_predicted64_folds: {np.mean(found['all'], axis=0)[2]:.2f}"] if found else []
    return "\n".join([table(heads, rows), *key])


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each part that was left out, and one for all of the folds together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    sizes = read_sizes(parser.parse_args(argv).folders)
    shipped = gpu_for_arch(ARCHS[0]).rates
    rates: Rates = {name: getattr(shipped, name) for name in CHOSEN}
    rows = [_row("shipped, all sizes", rates, [place for size in sizes for place in size.places(rates)])]

    fits: dict[Hashable, Rates] = {}

    def left_out(what: str, key: Callable[[Size], Hashable]) -> list[tuple[str, float]]:
        together = []
        for value in sorted({key(size) for size in sizes}, key=str):
            known = [size for size in sizes if key(size) != value]
            if not known:
                continue
            rates = fits[value] = fitted(known)
            found = [(size.arch, place) for size in sizes if key(size) == value for place in size.places(rates)]
            rows.append(_row(f"{what} {value}", rates, [place for _, place in found]))
            together += found
        return together

    folds = left_out("not fitted: fold", fold_of)
    for arch in ARCHS:
        rows.append(_row(f"all folds, {arch}", rates, [place for its, place in folds if its == arch])[:4])
    cdna = [place for arch, place in folds if arch != ARCHS[-1]]
    rows.append(_row("all folds, CDNA", rates, cdna)[:4])
    print(first_binaries(sizes, {fold: fits[fold] for fold in range(FOLDS) if fold in fits}))
    left_out("not fitted:", lambda size: size.problem.op)
    sources = sorted({source for size in sizes for source, *_ in size.won})
    for source in sources if len(sources) > 1 else []:
        rates = fitted([size for size in sizes if any(its != source for its, *_ in size.won)], source)
        places = [
            place
            for size in sizes
            for (its, *_), place in zip(size.won, size.places(rates), strict=True)
            if its == source
        ]
        rows.append(_row(f"not fitted: {source}", rates, places))
    wide = [(*row, *[""] * (4 + len(CHOSEN) - len(row))) for row in rows]
    print(table(("sizes", "winners", "median", "p90", *CHOSEN), wide))
    for key, share in (("amd_median_place", 0.5), ("amd_p90_place", 0.9)) if cdna else ():
        print(f"{key}: {np.quantile(cdna, share):.3f}")


if __name__ == "__main__":
    main()
