"""Pruning equals its definition: legality and every rule asked of every config, one by one."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import LONG, repeats
from space_configs import configs_of, configs_of_family

from genkern.gemm.dtypes import parse_dtype
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.legality import legal
from genkern.ops.op import get_op
from genkern.space.prune import Pruned, prune
from genkern.space.rules.registry import RULE_NAMES, is_for, rule_for
from genkern.space.space import SHIPPED_SPACES, FamilySpace, Space, load_space, read_space, shipped_names

SPACES = tuple(read_space(SHIPPED_SPACES / f"{name}.yaml") for name in shipped_names())


def naive(space: Space, problem: GemmProblem, gpu: Gpu) -> Pruned:
    """The definition of pruning: legality, then every rule, in order, asked of every config."""
    kept = []
    illegal: Counter[str] = Counter()
    dropped = dict.fromkeys((*space.rules, *(name for family in space.families for name in family.rules or ())), 0)
    for family in space.families:
        names = space.rules if family.rules is None else family.rules
        rules = [(name, rule_for(name, family.values("GROUP_SIZE_M"))) for name in names]
        for config in configs_of_family(family):
            if why := legal(problem, config, gpu):
                illegal[why] += 1
                continue
            traits = traits_of(config)
            name = next((name for name, drop in rules if is_for(name, traits) and drop(problem, config, gpu)), None)
            if name is None:
                kept.append(config)
            else:
                dropped[name] += 1
    return Pruned(kept, dropped, space.size, dict(illegal))


def thinned(space: Space) -> Space:
    """Every other value of each range: one in many, of every family and for every rule."""
    families = (
        dataclasses.replace(family, ranges=tuple((field, values[::2]) for field, values in family.ranges))
        for family in space.families
    )
    return space if LONG or space.size < 100_000 else dataclasses.replace(space, families=tuple(families))


@pytest.mark.parametrize(
    ("size", "gpu_arch", "space"),
    [
        ((8192, 8192, 8192), "gfx942", "amd"),
        ((17, 5120, 5120), "gfx942", "amd"),
        ((64, 8192, 8192), "gfx950", "amd_v2"),
        ((512, 4096, 4096), "gfx1201", "amd_rdna4"),
        ((1, 4097, 4096), "sm_90", "nvidia_quick"),
        ((128, 512, 512), "sm_80", "nvidia_quick"),
        ((300, 1000, 4097), "sm_80", "nvidia_sm80"),
    ],
)
def test_equals_the_definition(size: tuple[int, int, int], gpu_arch: str, space: str) -> None:
    """Asking the rules only where answers differ changes neither the configs, nor their order, nor any count."""
    problem, gpu = GemmProblem(*size), gpu_for_arch(gpu_arch)
    loaded = thinned(load_space(space, gpu_arch, "a16w16"))
    assert prune(loaded, problem, gpu) == naive(loaded, problem, gpu)


@given(
    st.tuples(*[st.integers(1, 9000)] * 3),
    st.sampled_from([("sm_90", "nvidia_quick"), ("sm_80", "nvidia_quick"), ("gfx942", "amd_quick")]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=repeats(25, 60), deadline=None)
def test_first_rule_gets_the_count(size: tuple[int, int, int], target: tuple[str, str], random: object) -> None:
    """For any size and any order of the rules, the result is that of the definition."""
    arch, name = target
    space = load_space(name, arch, "a16w16")
    rules = list(space.rules)
    random.shuffle(rules)  # type: ignore[attr-defined]
    shuffled = dataclasses.replace(space, rules=tuple(rules))
    result = prune(shuffled, GemmProblem(*size), gpu_for_arch(arch))
    assert result == naive(shuffled, GemmProblem(*size), gpu_for_arch(arch))
    assert set(result.kept) == set(prune(space, GemmProblem(*size), gpu_for_arch(arch)).kept)


@st.composite
def parts_of_spaces(draw: st.DrawFn) -> tuple[Space, FamilySpace]:
    """One or two values of each range of an entry of a shipped space, with rules of any kind in any order."""
    space = draw(st.sampled_from(SPACES))
    family = draw(st.sampled_from(space.families))
    ranges = tuple(
        (name, tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True))))
        for name, values in family.ranges
    )
    rules = space.rules if family.rules is None else family.rules
    others = draw(st.lists(st.sampled_from(RULE_NAMES), max_size=3))
    asked = tuple(draw(st.permutations(list(dict.fromkeys((*rules, *others))))))
    return space, dataclasses.replace(family, ranges=ranges, rules=asked)


@given(parts_of_spaces(), st.tuples(*[st.integers(1, 9000) | st.sampled_from([1, 16, 64, 4096])] * 3), st.data())
@settings(max_examples=repeats(80, 250), deadline=None)
def test_parts_of_all_spaces(drawn: tuple[Space, FamilySpace], size: tuple[int, int, int], data: st.DataObject) -> None:
    """Whatever family, format, layout and GPU: what is kept, its order, and the counts by first reason."""
    space, family = drawn
    arch, op = data.draw(st.sampled_from(space.archs)), data.draw(st.sampled_from(space.ops))
    types = (parse_dtype(name, arch).name for name in get_op(op).default_dtypes(arch))
    layouts = (
        {"row_major_a": data.draw(st.booleans()), "row_major_b": data.draw(st.booleans())} if op == "a16w16" else {}
    )
    problem = GemmProblem(*size, op, *types, **layouts)
    alone = dataclasses.replace(space, families=(family,), rules=())
    assert prune(alone, problem, gpu_for_arch(arch)) == naive(alone, problem, gpu_for_arch(arch))


@pytest.mark.parametrize("name", shipped_names())
def test_counts_add_up(name: str) -> None:
    """Every config is either kept or counted for one rule; of small spaces, those kept keep the order of the space."""
    space = read_space(SHIPPED_SPACES / f"{name}.yaml")
    result = prune(space, GemmProblem(256, 6144, 4096), gpu_for_arch(space.archs[0]))
    left_out = sum(result.illegal.values()) + sum(result.dropped.values())
    assert left_out + len(result.kept) == result.total == space.size
    assert set(result.dropped) == set(space.rules).union(*(family.rules or () for family in space.families))
    if LONG or space.size <= 40_000:
        order = configs_of(space)
        assert all(config in order for config in result.kept)
