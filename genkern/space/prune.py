"""Pruning: a space, a problem and a GPU in; the configs worth compiling out, with a reason for every other one.

Legality is asked first and always (genkern.kernels.legality), then the space's rules.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import FAMILIES
from genkern.kernels.legality import (
    TILE_FIELDS,
    legal_compiled,
    legal_group,
    legal_problem,
    legal_run_time,
    legal_split,
)
from genkern.space.rules.registry import GROUP_RULES, RUNTIME_RULES, SHAPE_FIELDS, reason, rule_for
from genkern.space.space import Block, FamilySpace, Space

# A run-time value with the place of the first rule that drops it.
_Answers = list[tuple[int, int]]


@dataclass(frozen=True)
class Pruned:
    """What pruning left, in the order of the space.

    `illegal` counts configs by the reason why they cannot compute the problem on the GPU. `dropped` counts those that
    can by the first rule, in the space's order of rules, that drops them; rules that dropped none are there with 0.
    `total` is the size of the space: sum(illegal.values()) + sum(dropped.values()) + len(kept).
    """

    kept: list[Config]
    dropped: dict[str, int]
    total: int
    illegal: dict[str, int]

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
        config.xcd_remap,
        config.cache_modifier,
    )


def prune(space: Space, problem: GemmProblem, gpu: Gpu) -> Pruned:
    """Leave out every config that is not legal for this problem on this GPU, and every other that some rule drops."""
    kept: list[Config] = []
    dropped = dict.fromkeys(itertools.chain(space.rules, *(family.rules or () for family in space.families)), 0)
    illegal: Counter[str] = Counter()
    for family in space.families:
        names = space.rules if family.rules is None else family.rules
        if why := legal_problem(problem, family.family, gpu):
            illegal[why] += family.size
            continue
        rules = _Rules(names, family, problem, gpu)
        for block in family.blocks():
            first = block.config(block.splits[0], block.group_sizes[0])
            if why := legal_compiled(problem, first, gpu):
                illegal[why] += block.size
                continue
            run_time = rules.legal_values(block)
            if run_time.illegal:
                illegal.update(run_time.illegal)
            if not run_time.size:
                continue
            verdict = rules.of_block(first)
            if verdict < rules.first_at_run_time:
                dropped[names[verdict]] += run_time.size
                continue
            by_split, by_group = rules.of_shape(block)
            if run_time.illegal:
                by_split = [answer for answer in by_split if answer[0] in run_time.splits]
                by_group = [answer for answer in by_group if answer[0] in run_time.group_sizes]
            least_of_group = min(of_group for _, of_group in by_group)
            for split_k, of_split in by_split:
                of_both = min(verdict, of_split)
                if of_both < least_of_group:
                    dropped[names[of_both]] += len(by_group)
                    continue
                for group_size_m, of_group in by_group:
                    first_place = min(of_both, of_group)
                    if first_place < len(names):
                        dropped[names[first_place]] += 1
                    else:
                        kept.append(block.config(split_k, group_size_m))
    return Pruned(kept, dropped, space.size, dict(illegal))


class _RunTime(NamedTuple):
    """The run-time arguments with which blocks of one tile are legal, and how many configs of a block are not."""

    splits: Sequence[int]
    group_sizes: Sequence[int]
    illegal: dict[str, int]

    @property
    def size(self) -> int:
        """Number of a block's configs that are legal."""
        return len(self.splits) * len(self.group_sizes)


class _Rules:
    """The rules of one family, each asked only of configs for which its answer can differ.

    An answer is the place of the first rule that drops the config, or the number of rules when none does. The
    first of three kinds of rules to drop a config is the first of all: those that see only what is compiled in
    are asked once per block; those that see SPLIT_K or GROUP_SIZE_M once per shape and value, since blocks of
    one shape (SHAPE_FIELDS) have the same answers.
    """

    def __init__(self, names: Sequence[str], family: FamilySpace, problem: GemmProblem, gpu: Gpu) -> None:
        self._rules = [rule_for(name, family.values("GROUP_SIZE_M")) for name in names]
        self._block_rules = [i for i, name in enumerate(names) if name not in RUNTIME_RULES]
        self._group_rules = [i for i, name in enumerate(names) if name in GROUP_RULES]
        self._split_rules = [i for i, name in enumerate(names) if name in RUNTIME_RULES - GROUP_RULES]
        # Whatever is dropped before this place is dropped whatever the run-time arguments.
        self.first_at_run_time = min((*self._group_rules, *self._split_rules, len(names)))
        fields = [name for name, _ in family.ranges if name not in ("GROUP_SIZE_M", "SPLIT_K")]
        self._shape = operator.itemgetter(*(fields.index(name) for name in SHAPE_FIELDS))
        self._tile = operator.itemgetter(*(fields.index(name) for name in TILE_FIELDS))
        self._shapes: dict[tuple[int | str, ...], tuple[_Answers, _Answers]] = {}
        self._tiles: dict[tuple[int | str, ...], _RunTime] = {}
        self._asked = problem, gpu

    def legal_values(self, block: Block) -> _RunTime:
        """The run-time arguments of the block that are legal."""
        tile = self._tile(block.compiled_in)
        if (found := self._tiles.get(tile)) is None:
            self._tiles[tile] = found = self._legal_values(block)
        return found

    def _legal_values(self, block: Block) -> _RunTime:
        problem, gpu = self._asked
        # What is legal for the least and the largest is so for those between.
        ends = (block.config(end(block.splits), end(block.group_sizes)) for end in (min, max))
        if not any(legal_run_time(problem, config, gpu) for config in ends):
            return _RunTime(block.splits, block.group_sizes, {})
        illegal: Counter[str] = Counter()
        splits: list[int] = []
        group_sizes: list[int] = []
        for split_k in block.splits:
            if why := legal_split(problem, block.config(split_k, block.group_sizes[0]), gpu):
                illegal[why] += len(block.group_sizes)
            else:
                splits.append(split_k)
        for group_size_m in block.group_sizes:
            if why := legal_group(problem, block.config(block.splits[0], group_size_m), gpu):
                illegal[why] += len(splits)
            else:
                group_sizes.append(group_size_m)
        return _RunTime(splits, group_sizes, {why: count for why, count in illegal.items() if count})

    def of_block(self, config: Config) -> int:
        """The answer of the rules that see neither SPLIT_K nor GROUP_SIZE_M, for any config of a block."""
        return self._first(self._block_rules, config)

    def of_shape(self, block: Block) -> tuple[_Answers, _Answers]:
        """The answers by SPLIT_K, and by GROUP_SIZE_M."""
        shape = self._shape(block.compiled_in)
        if shape not in self._shapes:
            split_k, group_size_m = block.splits[0], block.group_sizes[0]
            self._shapes[shape] = (
                [(split, self._first(self._split_rules, block.config(split, group_size_m))) for split in block.splits],
                [(size, self._first(self._group_rules, block.config(split_k, size))) for size in block.group_sizes],
            )
        return self._shapes[shape]

    def _first(self, places: Sequence[int], config: Config) -> int:
        problem, gpu = self._asked
        return next((i for i in places if self._rules[i](problem, config, gpu)), len(self._rules))


def explain(pruned: Pruned) -> str:
    """A table for people: how many configs are not legal and how many each rule dropped, with the reasons."""
    rows = [("illegal", count, why) for why, count in pruned.illegal.items()]
    rows += [(name, count, reason(name)) for name, count in pruned.dropped.items()]
    rows.append(("kept", len(pruned.kept), f"in {pruned.binaries:,} binaries"))
    width = max(len("rule"), *(len(name) for name, _, _ in rows))
    lines = [f"{'rule':<{width}}  {'configs':>9}  {'share':>6}  why"]
    for name, count, why in rows:
        share = f"{count / pruned.total:.1%}"
        lines.append(f"{name:<{width}}  {count:>9,}  {share:>6}  {why}")
    lines.append(
        f"{'total':<{width}}  {pruned.total:>9,}  {'100.0%':>6}  each config counts for the first reason to drop it"
    )
    return "\n".join(lines)
