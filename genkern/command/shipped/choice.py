"""Which kernels are worth having for sizes that are given: what each would try first, until there are enough."""

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
    """Asks what a size would try first on `gpu`, which `target` is to its compiler, in the space of its format."""

    gpu: Gpu
    target: Target
    triton_version: str
    spaces: Mapping[str, Space]
    most: int

    def of(self, problem: GemmProblem) -> list[WantedUnit]:
        """The first `most` units of the problem, the most promising first."""
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
    """Configs by size, of which each needs a binary that those before do not; `keys` are those of all.

    `first`: of every size the file has at least so many units, or all that it has.
    """

    configs: Mapping[GemmProblem, Sequence[Config]]
    keys: frozenset[str]
    first: int


def chosen(wanted: Mapping[GemmProblem, Sequence[WantedUnit]], count: int) -> Choice:
    """The first unit of every size, then the second of every size and so on, until no more than `count` binaries are
    reached. Of units at the same place those come first that most sizes want.
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
