"""Sizes of which every config is measured, so that searches can be judged on them (results/recorded).

    python -m benchmarks.search.recorded_sizes [--seed 1] > input_sizes/recorded.yaml
    python -m benchmarks.search.recorded_sizes --seed 2 --only unfriendly blocks > input_sizes/recorded_2.yaml

As users have them: bf16 products of models (weights of input_sizes/*.yaml, M log-uniform from 1 to 8192, half of them
powers of two), unfriendly ones in all four layouts, of which a few are of kinds that a model has seldom seen (M = 1 off
TN, M = 2, N or K below 512, N = 513), fp8 with one scale and with a scale for each token, fp8 with scales of blocks,
int4 weights, and rows in groups.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from math import exp, log
from pathlib import Path
from random import Random

import yaml

from benchmarks.kernels.unfriendly import drawn as unfriendly
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem

_SIZES = Path(__file__).parents[2] / "input_sizes"
# How many of each kind.
MODELS, UNFRIENDLY, FP8, BLOCKS, INT4, GROUPED = 40, 16, 8, 8, 4, 4
_LAYOUTS = ((True, False), (True, True), (False, False), (False, True))
_MOST_M = 8192
_MOST_PRODUCTS = 2**38


def drawn(seed: int, only: Collection[str] = ()) -> list[GemmProblem]:
    """The sizes of a seed, each once; with `only`, those of these kinds."""
    random = Random(seed)
    found: dict[GemmProblem, None] = {}
    for name, kind in KINDS.items():
        sizes = list(kind(random))
        found |= dict.fromkeys(sizes if not only or name in only else ())
    return list(found)


def _rows(random: Random, count: int) -> Iterator[int]:
    """So many M, one of each equal share of the logarithms from 1 to 8192; every second one a power of two."""
    for place in range(count):
        m = exp(log(_MOST_M) * (place + random.random()) / count)
        yield 2 ** round(log(m, 2)) if place % 2 else round(m)


def _weights(random: Random, of: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    """Pairs of N and K of those size files, in random order, again and again."""
    pairs = {
        (size["N"], size["K"])
        for path in sorted(_SIZES.glob("*.yaml"))
        if of(path.stem)
        for size in yaml.safe_load(path.read_text())
    }
    ordered = sorted(pairs)
    random.shuffle(ordered)
    return cycle(ordered)


def _products(random: Random, count: int, of: Callable[[str], bool]) -> Iterator[tuple[int, int, int]]:
    weights = _weights(random, of)
    for m in _rows(random, count):
        yield next((m, n, k) for n, k in weights if m * n * k <= _MOST_PRODUCTS)


def _of_models(random: Random) -> Iterator[GemmProblem]:
    for size in _products(random, MODELS, lambda stem: "_tp" in stem or stem.startswith("held_out")):
        yield GemmProblem(*size)


def _unfriendly(random: Random) -> Iterator[GemmProblem]:
    for place, problem in enumerate(unfriendly(random.randrange(2**31), UNFRIENDLY)):
        row_major_a, row_major_b = _LAYOUTS[place % 4]
        problem = replace(problem, row_major_a=row_major_a, row_major_b=row_major_b)
        if place % 4 == 3:
            # One of each kind that is rare, in a layout that is rare too.
            which = place // 4
            changed = ({"M": 1}, {"M": 2}, {"N": 513}, {"K": random.randrange(64, 512)})[which]
            problem = replace(problem, **changed)
        yield problem


def _fp8(random: Random) -> Iterator[GemmProblem]:
    for place, size in enumerate(_products(random, FP8, lambda stem: stem.endswith(("_tp8", "_a8w8")))):
        own = {"scales": "per_token"} if place % 2 else {}
        yield GemmProblem(*size, op="a8w8", dtype_a="fp8", dtype_b="fp8", own=tuple(own.items()))


def _blocks(random: Random) -> Iterator[GemmProblem]:
    for size in _products(random, BLOCKS, lambda stem: stem.endswith("_a8w8_blockscale")):
        yield GemmProblem(*size, op="a8w8_blockscale", dtype_a="fp8", dtype_b="fp8")


def _int4(random: Random) -> Iterator[GemmProblem]:
    own = ("group", 128), ("scale_type", "bf16")
    for size in _products(random, INT4, lambda stem: stem.endswith("_a16w4")):
        yield GemmProblem(*size, op="a16w4", dtype_b="int8", own=own)


def _grouped(random: Random) -> Iterator[GemmProblem]:
    # Experts of one of 8 GPUs, each with as many rows as there is room for.
    for rows in (64, 1024, 8192, 16384):
        n, k = random.choice(((4096, 7168), (7168, 2048), (3072, 5120), (5760, 2880)))
        groups = random.choice((4, 8, 16))
        yield GemmProblem(rows, n, k, op="grouped_gemm", own=(("groups", groups),))


KINDS: Mapping[str, Callable[[Random], Iterator[GemmProblem]]] = {
    "models": _of_models,
    "unfriendly": _unfriendly,
    "fp8": _fp8,
    "blocks": _blocks,
    "int4": _int4,
    "grouped": _grouped,
}


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="by which they are drawn (default: 1)")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=(), help="of these kinds (default: of all)")
    options = parser.parse_args(argv)
    sys.stdout.writelines(map(size_line, drawn(options.seed, options.only)))


if __name__ == "__main__":
    main(sys.argv[1:])
