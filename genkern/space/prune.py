"""Pruning: from a space, a problem and a GPU to the configs worth compiling, with a reason for every other config.

Legality is always checked first (genkern.kernels.legality), then the space's rules.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from genkern.gemm.config import CONFIG_FIELDS, Config, Others
from genkern.gemm.gpus import Gpu
from genkern.gemm.parameter import PARAMETERS, Value
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import form_of, formed
from genkern.kernels.contract.form import Form
from genkern.kernels.legality import (
    legal_compiled,
    legal_group,
    legal_kernel,
    legal_problem,
    legal_split,
)
from genkern.space.asked import PENDING, Asked, watching
from genkern.space.rules.registry import is_for, reason, rule_for
from genkern.space.rules.sum_order import order_rule, other_order
from genkern.space.shares import Shares
from genkern.space.space import Part, Space, listed_problem

Answer = TypeVar("Answer")
# Parts of at least this many configs are divided among processes in pieces. All other parts together take less time
# than the largest part.
_LARGE = 100_000
# Parameters of a config that are set first.
_TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps")


@dataclass(frozen=True)
class Pruned:
    """The result of pruning, in the order of the space.

    kept: configs worth compiling.
    dropped: number of legal configs by the first rule that drops them, in the space's order of rules. Rules that drop
        none have 0.
    total: size of the space, which is len(kept) + sum(dropped.values()) + sum(illegal.values()).
    illegal: number of configs by the reason why they cannot compute the problem on the GPU.
    """

    kept: list[Config]
    dropped: dict[str, int]
    total: int
    illegal: dict[str, int]

    @property
    def binaries(self) -> int:
        """Number of main kernels to compile.

        Configs that differ only in run-time parameters (GROUP_SIZE_M, the value of SPLIT_K) share them.
        """
        return len({(c.SPLIT_K > 1 and form_of(c).split_apart, *_of_tile(c), _others_in_binary(c)) for c in self.kept})


_of_tile = operator.attrgetter("family", *_TILE, "num_stages")


def _others_in_binary(config: Config) -> Others:
    return tuple(other for other in config.others if not PARAMETERS.by_name[other[0]].at_run_time)


def prune(space: Space, problem: GemmProblem, gpu: Gpu, shares: Shares | None = None) -> Pruned:
    """Return the legal configs for this problem on this GPU that no rule drops, and counts of the other configs.

    With `shares`, worker processes take part of the work.
    """
    pruning = _Pruning(problem, gpu)
    dropped = dict.fromkeys(itertools.chain(space.rules, *(family.rules or () for family in space.families)), 0)
    asked = [
        (part, space.rules if family.rules is None else family.rules)
        for family in space.families
        for part in family.parts()
    ]
    if shares is None:
        for part, names in asked:
            pruning.add(part, names)
    else:
        pieces = [(piece, names) for part, names in asked for piece in _pieces(part)]
        for found in shares.each(partial(_found_of, problem, gpu), pieces):
            pruning.join(*found)
    illegal = {why: count for why, count in pruning.illegal.items() if count}
    kept, dropped = pruning.kept, {**dropped, **pruning.dropped}
    if space.order:
        # Checked last: checking all configs first would take ten times as long as everything else.
        drop = other_order(space.order)
        kept = [config for config in kept if not drop(problem, config, gpu)]
        dropped[order_rule(space.order)] = len(pruning.kept) - len(kept)
    return Pruned(kept, dropped, space.size, illegal)


def _pieces(part: Part) -> list[Part]:
    """Return the part itself, or for a large part one piece for each value of BLOCK_SIZE_M."""
    if part.size < _LARGE:
        return [part]
    (sides,) = (values for name, values in part.ranges if name == _TILE[0])
    return [
        replace(part, ranges=tuple((name, (value,) if name == _TILE[0] else values) for name, values in part.ranges))
        for value in sides
    ]


_Found = tuple[list[Config], Counter[str], Counter[str]]


def _found_of(problem: GemmProblem, gpu: Gpu, asked: tuple[Part, Sequence[str]]) -> _Found:
    pruning = _Pruning(problem, gpu)
    pruning.add(*asked)
    return pruning.kept, pruning.dropped, pruning.illegal


# Parameters of a config that are not set yet, with their possible values.
_Open = tuple[tuple[str, Sequence[Value]], ...]
_Question = tuple[str, Asked[bool]]


class _Pruning:
    """Accumulates the results of pruning."""

    def __init__(self, problem: GemmProblem, gpu: Gpu) -> None:
        self.kept: list[Config] = []
        self.dropped: Counter[str] = Counter()
        self.illegal: Counter[str] = Counter()
        self._problem, self._gpu = problem, gpu

    def join(self, kept: Sequence[Config], dropped: Counter[str], illegal: Counter[str]) -> None:
        """Add the results of the parts that come next."""
        self.kept += kept
        self.dropped += dropped
        self.illegal += illegal

    def add(self, part: Part, names: Sequence[str]) -> None:
        """Prune the configs of a part by legality and by the rules of these names."""
        if why := legal_problem(self._problem, part.family, part.chosen, self._gpu):
            self.illegal[why] += part.size
            return
        form = formed(part.family, part.chosen)
        assert isinstance(form, Form)
        ranges = dict(part.ranges)
        # Reading a space file already refuses values that no config of the form can have, so this check is needed only
        # for spaces made in other ways.
        compiled = legal_compiled if listed_problem(part) else legal_kernel
        asking = _Asking(self, self._problem, self._gpu, form, _same(part), ranges, names, compiled)
        neutral = {name: PARAMETERS.neutral[name] for name in ranges if name in PARAMETERS.neutral}
        beside: list[dict[str, Any]] = [{**neutral, **dict(others), "others": others} for others in part.others()]
        for sides in itertools.product(*(ranges[name] for name in _TILE)):
            for known in beside:
                known.update(zip(_TILE, sides, strict=True))
                asking.tile(known)


def _same(part: Part) -> dict[str, Any]:
    """Return the values that all configs of the part share."""
    others = tuple(part.others())
    differ = {name for name, values in part.ranges if len(values) > 1}
    same: dict[str, Any] = {name: values[0] for name, values in part.ranges}
    same = {**PARAMETERS.neutral, **dict(part.chosen), **same, "family": part.family, "others": others[0]}
    return {
        name: value for name, value in same.items() if name not in differ and (name != "others" or len(others) == 1)
    }


def _ends(values: Sequence[Value]) -> set[Value]:
    """Return the smallest and the largest value."""
    numbers = [value for value in values if isinstance(value, int)]
    return {min(numbers), max(numbers)}


class _Asking:
    """Evaluates legality and rules for the configs of one form.

    Legality is checked first, then one rule after the other; the first rule that returns True drops a config. A rule is
    evaluated only once for equal values of the parameters that it reads (`Asked`): for a tile alone, if it reads no
    more, else also for each value of num_stages, SPLIT_K or GROUP_SIZE_M that it reads.
    """

    def __init__(
        self,
        result: _Pruning,
        problem: GemmProblem,
        gpu: Gpu,
        form: Form,
        same: Mapping[str, Any],
        ranges: Mapping[str, tuple[Value, ...]],
        names: Sequence[str],
        compiled: Callable[[GemmProblem, Config, Gpu], str],
    ) -> None:
        watched = watching(same)

        def asked(question: Callable[[GemmProblem, Config, Gpu], Answer], *, recalls: bool = True) -> Asked[Answer]:
            return Asked(lambda config: question(problem, config, gpu), watched, recalls=recalls)

        self._result, self._same = result, same
        self._stages_of: Sequence[Value] = ranges["num_stages"]
        self._splits_of: Sequence[Value] = ranges["SPLIT_K"]
        self._group_sizes_of: Sequence[Value] = ranges["GROUP_SIZE_M"]
        self._split_ends, self._group_ends = _ends(self._splits_of), _ends(self._group_sizes_of)
        # Called once per tile, so results need not be stored.
        self._stages = form.stages and asked(form.stages, recalls=False)
        self._compiled, self._split, self._group = asked(compiled), asked(legal_split), asked(legal_group)
        group_sizes = tuple(size for size in ranges["GROUP_SIZE_M"] if isinstance(size, int))
        rules = ((name, asked(rule_for(name, group_sizes))) for name in names if is_for(name, form))
        # Rules that drop nothing for any tile, and run-time values that are legal for every tile, are not evaluated per
        # tile.
        self._rules = [(name, rule) for name, rule in rules if rule.of({}) is not False]
        # For each rule the open parameter on which it depended the last time.
        self._hangs_on: dict[Asked[bool], str] = {}
        self._splits_differ = any(self._split.of({"SPLIT_K": end}) for end in self._split_ends)
        self._groups_differ = any(self._group.of({"GROUP_SIZE_M": end}) for end in self._group_ends)

    def tile(self, known: dict[str, Any]) -> None:
        """Prune the configs with these values; only num_stages, SPLIT_K and GROUP_SIZE_M are not set yet."""
        stages, splits, group_sizes = self._stages_of, self._splits_of, self._group_sizes_of
        each = len(splits) * len(group_sizes)
        if (why := self._compiled.of(known)) is PENDING:
            stages = self._legal(self._compiled, known, "num_stages", stages, each)
        elif why:
            self._result.illegal[why] += len(stages) * each
            return
        if self._stages is not None:
            stages = self._that_fit(self._stages.of(known), stages, each)
        # Values between the smallest and the largest are legal if both of these are.
        if self._splits_differ and any(self._at(self._split, known, "SPLIT_K", end) for end in self._split_ends):
            splits = self._legal(self._split, known, "SPLIT_K", splits, len(stages) * len(group_sizes))
        if self._groups_differ and any(self._at(self._group, known, "GROUP_SIZE_M", end) for end in self._group_ends):
            group_sizes = self._legal(self._group, known, "GROUP_SIZE_M", group_sizes, len(stages) * len(splits))
        if stages and splits and group_sizes:
            self._ask(self._rules, known, (("num_stages", stages), ("SPLIT_K", splits), ("GROUP_SIZE_M", group_sizes)))

    def _that_fit(self, problem_of: Callable[[int], str], stages: Sequence[Value], each: int) -> Sequence[Value]:
        """Return the numbers of stages that fit, and count the configs of all other numbers as illegal."""
        kept = []
        for value in stages:
            if why := problem_of(int(value)):
                self._result.illegal[why] += each
            else:
                kept.append(value)
        return kept

    def _legal(
        self, question: Asked[str], known: dict[str, Any], name: str, values: Sequence[Value], each: int
    ) -> Sequence[Value]:
        """Return the values with which configs are legal; count the `each` configs of all other values as illegal."""
        kept = []
        for value in values:
            if why := self._at(question, known, name, value):
                self._result.illegal[why] += each
            else:
                kept.append(value)
        return kept

    def _at(self, question: Asked[Answer], known: dict[str, Any], name: str, value: Value) -> Answer:
        known[name] = value
        answer = question.of(known)
        del known[name]
        # Each part of legality reads only the parameters that genkern.kernels.legality states, so its answer is known.
        assert answer is not PENDING, f"what is legal reads more than the tile and {name}"
        return answer

    def _ask(self, rules: Sequence[_Question], known: dict[str, Any], is_open: _Open) -> None:
        """Drop or keep the configs that have the values in `known`.

        `is_open` has the parameters that are not set yet. The last of `rules` may be _SETTLED: a rule that is known to
        drop the configs unless an earlier one does.
        """
        left: list[_Question] = []
        for rule in rules:
            name, question = rule
            answer = question.of(known)
            if answer is PENDING:
                left.append(rule)
            elif answer:
                if not left:
                    self._result.dropped[name] += math.prod(len(values) for _, values in is_open)
                    return
                # An undecided rule before this one may drop some of the configs, which then count for it.
                left.append((name, _SETTLED))
                break
        self._ask_open(left, known, is_open)

    def _ask_open(self, rules: Sequence[_Question], known: dict[str, Any], is_open: _Open) -> None:
        """Like `_ask`, for rules that depend on open parameters.

        As long as each rule depends on a single one, as most do, the rule is evaluated once for each value of this
        parameter instead of once for each combination of all open parameters.
        """
        left = dict(is_open)
        for place, (name, question) in enumerate(rules):
            if question is _SETTLED:
                self._result.dropped[name] += math.prod(map(len, left.values()))
                return
            if (found := self._values_that_stay(question, known, left)) is None:
                (first, values), *rest = left.items()
                for value in values:
                    known[first] = value
                    self._ask(rules[place:], known, tuple(rest))
                del known[first]
                return
            parameter, stay = found
            others = math.prod(len(values) for other, values in left.items() if other != parameter)
            self._result.dropped[name] += (len(left[parameter]) - len(stay)) * others
            left[parameter] = stay
            if not stay:
                return
        self._keep(known, tuple(left.items()))

    def _values_that_stay(
        self, question: Asked[bool], known: dict[str, Any], is_open: Mapping[str, Sequence[Value]]
    ) -> tuple[str, Sequence[Value]] | None:
        """Return the open parameter on which a rule depends, and the values of it that the rule does not drop; None if
        the rule depends on several.
        """
        before = self._hangs_on.get(question)
        # Try the parameter of the last time first, then the others in their order.
        for name in sorted(is_open, key=lambda name: name != before):
            stay = []
            for value in is_open[name]:
                known[name] = value
                answer = question.of(known)
                if answer is PENDING:
                    break
                if not answer:
                    stay.append(value)
            else:
                del known[name]
                self._hangs_on[question] = name
                return name, stay
            del known[name]
        return None

    def _keep(self, known: Mapping[str, Any], is_open: _Open) -> None:
        names = [name for name, _ in is_open]
        said = {**self._same, **known}
        same = {name: said[name] for name in CONFIG_FIELDS if name in said}
        for values in itertools.product(*(values for _, values in is_open)):
            same.update(zip(names, values, strict=True))
            self._result.kept.append(Config(**same))


_SETTLED: Asked[bool] = Asked(lambda config: True, watching({}))


def explain(pruned: Pruned) -> str:
    """Return a table for users: how many configs are illegal and how many each rule dropped, with the reasons."""
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
