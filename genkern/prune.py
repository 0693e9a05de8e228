"""Pruning: a space, a problem and a GPU in; the configs worth compiling out, with a reason for every other one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from genkern.config import Config
from genkern.family import FAMILIES
from genkern.gpus import Gpu
from genkern.problem import GemmProblem
from genkern.rules import RUNTIME_RULES, reason, rule_for
from genkern.space import Space


@dataclass(frozen=True)
class Pruned:
    """What pruning left, in the order of the space.

    `dropped` counts configs by the first rule, in the space's order of rules, that drops them; rules that
    dropped none are there with 0. `total` is the size of the space: sum(dropped.values()) + len(kept).
    """

    kept: list[Config]
    dropped: dict[str, int]
    total: int

    @property
    def binaries(self) -> int:
        """Main kernels to compile: GROUP_SIZE_M and the value of SPLIT_K are run-time arguments."""
        return len({(c.family, c.SPLIT_K > 1 and FAMILIES[c.family].split_apart, *_compiled_in(c)) for c in self.kept})


def _compiled_in(config: Config) -> tuple[int | str, ...]:
    return (
        config.BLOCK_SIZE_M,
        config.BLOCK_SIZE_N,
        config.BLOCK_SIZE_K,
        config.num_warps,
        config.num_stages,
        config.waves_per_eu,
        config.matrix_instr_nonkdim,
        config.kpack,
        config.schedule_hint,
    )


def prune(space: Space, problem: GemmProblem, gpu: Gpu) -> Pruned:
    """Drop every config that some rule of the space drops for this problem on this GPU."""
    kept: list[Config] = []
    dropped = dict.fromkeys(itertools.chain(space.rules, *(family.rules or () for family in space.families)), 0)
    for family in space.families:
        names = space.rules if family.rules is None else family.rules
        rules = [(name, rule_for(name, family.values("GROUP_SIZE_M"))) for name in names]
        for block in family.blocks():
            first = next(block)
            # Configs that share a binary share the answer of most rules: ask those once. `rules[:verdict]` is
            # what is left to ask of each config before the rule that drops them all, if there is one.
            verdict = next(
                (i for i, (name, drop) in enumerate(rules) if name not in RUNTIME_RULES and drop(problem, first, gpu)),
                len(rules),
            )
            asked = [(name, drop) for name, drop in rules[:verdict] if name in RUNTIME_RULES]
            if not asked and verdict < len(rules):
                dropped[rules[verdict][0]] += family.block_size
                continue
            for config in itertools.chain((first,), block):
                for name, drop in asked:
                    if drop(problem, config, gpu):
                        dropped[name] += 1
                        break
                else:
                    if verdict < len(rules):
                        dropped[rules[verdict][0]] += 1
                    else:
                        kept.append(config)
    return Pruned(kept, dropped, space.size)


def explain(pruned: Pruned) -> str:
    """A table for people: how many configs each rule dropped, and why it drops them."""
    rows = [(name, count, reason(name)) for name, count in pruned.dropped.items()]
    rows.append(("kept", len(pruned.kept), f"in {pruned.binaries:,} binaries"))
    width = max(len("rule"), *(len(name) for name, _, _ in rows))
    lines = [f"{'rule':<{width}}  {'configs':>9}  {'share':>6}  why"]
    for name, count, why in rows:
        share = f"{count / pruned.total:.1%}"
        lines.append(f"{name:<{width}}  {count:>9,}  {share:>6}  {why}")
    lines.append(
        f"{'total':<{width}}  {pruned.total:>9,}  {'100.0%':>6}  each config counts for the first rule that drops it"
    )
    return "\n".join(lines)
