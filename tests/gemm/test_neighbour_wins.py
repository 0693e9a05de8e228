"""Tests of genkern.journal.facts.py."""

from __future__ import annotations

import random
from dataclasses import replace

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import NeighbourWins
from genkern.result.result import Result

PROBLEM = GemmProblem(64, 4096, 4096)
PLAIN = Config("tiled", 64, 64, 32, 1, 1, 4, 2)
SPLIT = replace(PLAIN, SPLIT_K=4)
NAMES = [PLAIN.name, SPLIT.name]


def winner(problem: GemmProblem, config: Config) -> Result:
    return Result(problem, config)


def test_neighbours_have_the_same_weights_or_the_same_tokens() -> None:
    """Same N and K, or same M, in the same formats; the size itself is no neighbour of its own."""
    wins = NeighbourWins()
    for made in (
        winner(replace(PROBLEM, M=128), PLAIN),
        winner(replace(PROBLEM, N=6144), PLAIN),
        winner(replace(PROBLEM, M=32), SPLIT),
        winner(PROBLEM, SPLIT),
        winner(replace(PROBLEM, M=128, N=6144), SPLIT),
        winner(replace(PROBLEM, M=16, bias=True), SPLIT),
        winner(replace(PROBLEM, M=16, activation="relu"), SPLIT),
        winner(replace(PROBLEM, M=16, dtype_a="fp16"), SPLIT),
    ):
        wins.add(made.problem, made.config_name)
    assert wins.of(PROBLEM, NAMES) == {PLAIN.name: 2, SPLIT.name: 1}


def test_counts_are_those_of_looking_at_every_winner() -> None:
    """Whatever was won before, twice, and by whom; of sizes that have not been won too."""
    draw = random.Random(7)
    lengths = (1, 16, 32, 64)
    wins, known = NeighbourWins(), dict[GemmProblem, Config]()
    for _ in range(400):
        problem = GemmProblem(*(draw.choice(lengths) for _ in range(3)), bias=draw.random() < 0.3)
        near = [
            config.name
            for other, config in known.items()
            if other != problem
            and other.bias == problem.bias
            and ((other.N, other.K) == (problem.N, problem.K) or other.M == problem.M)
        ]
        assert wins.of(problem, NAMES) == {name: near.count(name) for name in NAMES}
        known[problem] = draw.choice([PLAIN, SPLIT])
        wins.add(problem, known[problem].name)
