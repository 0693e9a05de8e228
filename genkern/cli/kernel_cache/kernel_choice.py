"""Chooses kernels for a list of sizes: the first candidates of each, up to a number of binaries.

A unit is the set of configs that share all binaries. One config stands for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.kernel import Target, compile_environment
from genkern.kernels.specs import kernel_specs
from genkern.ops.op import get_op
from genkern.search.guided.model import ranked
from genkern.search.strategy import units_of
from genkern.space.prune import prune
from genkern.space.space import Space


@dataclass(frozen=True)
class WantedUnit:
    """A config and the keys of its binaries, which configs that differ in run-time parameters share."""

    config: Config
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Ranking:
    """Ranks the configs of a size on `gpu`, in the space of its format; `target` is the GPU for the compiler.

    `most`: the largest number of units that are returned per size.
    """

    gpu: Gpu
    target: Target
    triton_version: str
    spaces: Mapping[str, Space]
    most: int

    def of(self, problem: GemmProblem) -> list[WantedUnit]:
        """Return the first `most` units of the problem, most promising first."""
        gpu, op = self.gpu, get_op(problem.op)
        kept = list(prune(self.spaces[problem.op], problem, gpu).kept)
        configs = [unit.configs[0] for unit in units_of(ranked(problem, kept, gpu))[: self.most]]
        if not configs:
            return []
        module, environment = generate(problem, configs, gpu.arch, gpu), compile_environment()
        made_of = module.source_sha256, module.arch
        return [
            WantedUnit(
                config,
                tuple(
                    spec.key(self.target, self.triton_version, environment)
                    for spec in kernel_specs(problem, config, op, *made_of)
                ),
            )
            for config in configs
        ]


@dataclass(frozen=True)
class Choice:
    """The chosen kernels.

    configs: configs by size; each needs a binary that the configs before it do not
    keys: the keys of all binaries
    first: every size has at least this number of its first units, or all of them
    """

    configs: Mapping[GemmProblem, Sequence[Config]]
    keys: frozenset[str]
    first: int


def chosen(wanted: Mapping[GemmProblem, Sequence[WantedUnit]], count: int) -> Choice:
    """Choose the first unit of every size, then the second of every size and so on, up to `count` binaries.

    Of units with equal rank, a unit that more sizes want comes first. The choice ends at the first unit that would
    exceed `count`.
    """
    shared = Counter(unit.keys for units in wanted.values() for unit in units)
    configs: dict[GemmProblem, list[Config]] = {}
    keys: set[str] = set()
    deepest = max(map(len, wanted.values()), default=0)
    for place in range(deepest):
        here = [(problem, units[place]) for problem, units in wanted.items() if place < len(units)]
        for problem, unit in sorted(here, key=lambda each: -shared[each[1].keys]):
            new = set(unit.keys) - keys
            if len(keys) + len(new) > count:
                return Choice(configs, frozenset(keys), place)
            if new:
                keys |= new
                configs.setdefault(problem, []).append(unit.config)
    return Choice(configs, frozenset(keys), deepest)
