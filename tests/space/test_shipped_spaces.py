"""What the shipped spaces hold: configs for every size, and every family wherever it compiles."""

from __future__ import annotations

import itertools
import random
from functools import cache

import pytest
from long_tests import spread

from genkern.gemm.config import Config
from genkern.gemm.dtypes import parse_dtype
from genkern.gemm.gpus import gpu_for_arch, known_archs
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import FAMILIES, GLUON
from genkern.kernels.cute import dense_sm100
from genkern.kernels.cute.dense import FORMS
from genkern.kernels.families.realigned import REALIGNED
from genkern.kernels.legality import legal_compiled, legal_problem, legal_run_time
from genkern.ops.op import get_op
from genkern.space.rules.registry import rule_for
from genkern.space.space import SHIPPED_SPACES, FamilySpace, Space, read_space, shipped_names

SPACES = {name: read_space(SHIPPED_SPACES / f"{name}.yaml") for name in shipped_names()}
# tune_gemm v2's own space and rules, whose kernel has no mask along K: nothing is left for most K.
REPRODUCTIONS = {"amd_v2"}
# Added to a default space where CuTe DSL may win: for sizes that have rows for its tiles.
ADDITIONS = {"nvidia_sm90_cute", "nvidia_sm100_cute"}
# Below, at and beyond the smallest blocks, and M and N from 2048 on, where some rules begin; even and odd.
M_AND_N = (1, 16, 17, 100, 2048, 4097)
K = (1, 16, 32, 33, 65, 1000, 4096)
WGMMA_ONLY = {arch: "wgmma is Hopper's: no other target has it" for arch in known_archs() if arch != "sm_90"}
TCGEN05_ONLY = {arch: "tcgen05 is Blackwell's" for arch in known_archs() if arch != "sm_100"}
# By family, the targets that compile it and still have it in no space, and why.
NOT_SHIPPED = {
    "persistent_tma_specialized": {
        "sm_90": "Triton ignores the option there: it is persistent_tma",
        "sm_120": "mma.sync needs the registers that the extra warps take",
    },
    "tiled_atomic": {
        "gfx90a": "float additions are compare-and-swap loops: atomic_compare_and_swap leaves int8 only",
        "gfx1100": "as on gfx90a",
    },
    **dict.fromkeys((*GLUON, *FORMS, *(family.name for family in REALIGNED if family.in_gluon)), WGMMA_ONLY),
    **{
        family: dict.fromkeys(("sm_100", "sm_120"), "nobody has timed the copies there")
        for family in ("realigned_tiled_tma", "realigned_split_tma")
    },
    **dict.fromkeys(dense_sm100.FORMS, TCGEN05_ONLY),
    "skinny_dot": dict.fromkeys(known_archs(), "it multiplies weights of fewer bits than A's, not a16w16"),
}


def compiles(family: str, arch: str) -> bool:
    """Whether Triton takes the family's kernels for this target."""
    if arch.startswith("gfx"):
        return FAMILIES[family].runs_on_amd
    return gpu_for_arch(arch).has.tma or not FAMILIES[family].uses_tma


def keeps_something(space: Space, problem: GemmProblem, arch: str, family: str = "") -> bool:
    """Whether pruning leaves a config, of this family where one is named: `prune`, but up to the first one only."""
    gpu = gpu_for_arch(arch)
    for entry in space.families:
        if family not in ("", entry.family) or legal_problem(problem, entry.family, gpu):
            continue
        names = space.rules if entry.rules is None else entry.rules
        rules = [rule_for(name, entry.values("GROUP_SIZE_M")) for name in names]
        for config in one_of_each_tile(entry):
            illegal = legal_compiled(problem, config, gpu) or legal_run_time(problem, config, gpu)
            if not illegal and not any(drop(problem, config, gpu) for drop in rules):
                return True
    return False


@cache
def one_of_each_tile(entry: FamilySpace) -> list[Config]:
    """The first SPLIT_K and GROUP_SIZE_M of each tile, in an order that soon comes to a tile for any size."""
    configs = [block.config(block.splits[0], block.group_sizes[0]) for block in entry.blocks()]
    random.Random(0).shuffle(configs)
    return configs


def problem_of(size: tuple[int, int, int], op: str, arch: str) -> GemmProblem:
    """A problem of this size in the op's default types."""
    types = (parse_dtype(name, arch).name for name in get_op(op).default_dtypes(arch))
    return GemmProblem(*size, op, *types)


@pytest.mark.parametrize("op", ["a16w16", "a8w8"])
@pytest.mark.parametrize("name", sorted(SPACES.keys() - REPRODUCTIONS - ADDITIONS))
def test_no_size_is_left_without_configs(name: str, op: str) -> None:
    """Whatever M, N and K are, every space of its own but tune_gemm v2's keeps something on each of its targets."""
    space = SPACES[name]
    empty = [
        (arch, size)
        for arch in space.archs
        for size in spread([*itertools.product(M_AND_N, M_AND_N, K)], 11)
        if not keeps_something(space, problem_of(size, op, arch), arch)
    ]
    assert empty == []


@pytest.mark.parametrize("arch", known_archs())
def test_every_family_is_in_a_space_where_it_compiles(arch: str) -> None:
    """Some shipped space of each target that compiles a family keeps it for some size, unless a reason is given."""
    sizes = (
        (1, 4096, 4096),
        (16, 1280, 8192),
        (16, 4096, 4096),
        (256, 2112, 7168),
        (1024, 1280, 8192),
        (1024, 1280, 8191),
        (4096, 4096, 4096),
        (3000, 3000, 3000),
        # Rows of C off 16 bytes, which the copy engine does not store.
        (1000, 1001, 1000),
    )
    spaces = [space for space in SPACES.values() if arch in space.archs]
    problems = [problem_of(size, "a16w16", arch) for size in sizes]
    kept = {
        family
        for family in FAMILIES
        if any(keeps_something(space, problem, arch, family) for space in spaces for problem in problems)
    }
    assert kept == {family for family in FAMILIES if compiles(family, arch) and arch not in NOT_SHIPPED.get(family, {})}


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_100", "sm_120"])
def test_defaults_hold_what_won_for_small_m(arch: str) -> None:
    """On NVIDIA the default space of each target has the families for small M, through the copy engine where it is."""
    (space,) = (space for space in SPACES.values() if space.default and arch in space.archs)
    wanted = {"tiled", "tiled_swapped", "gemv", "skinny"}
    if compiles("tiled_tma", arch):
        wanted |= {"tiled_tma", "split_tma", "tiled_tma_swapped", "persistent_tma"}
    kept = {
        family
        for size in ((1, 4096, 4096), (16, 4096, 4096), (64, 2112, 7168))
        for family in FAMILIES
        if keeps_something(space, problem_of(size, "a16w16", arch), arch, family)
    }
    assert kept - {"persistent_tma_specialized"} == wanted
