"""What the shipped spaces hold: configs for every size, and every form of the families wherever it compiles."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache

import pytest
from forms import CUTE_FORMS, FORMS, PLACES, REALIGNED, RINGS
from long_tests import spread
from shipped_rows import shipped_rows
from space_configs import configs_of_family

from genkern.gemm.config import Config
from genkern.gemm.dtypes import parse_dtype
from genkern.gemm.gpus import gpu_for_arch, known_archs
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_for, traits_of
from genkern.kernels.contract.traits import KernelTraits
from genkern.kernels.legality import legal, legal_problem
from genkern.ops.op import get_op
from genkern.space.prune import prune
from genkern.space.rules.registry import is_for, rule_for
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
WGMMA_IN_CUTE = tuple(stem for stem in CUTE_FORMS if PLACES[stem][0] == "cute_wgmma")
TCGEN05_ONLY = {arch: "tcgen05 is Blackwell's" for arch in known_archs() if arch != "sm_100"}
# By form, the targets that compile it and still have it in no space, and why.
NOT_SHIPPED = {
    "persistent_tma_specialized": {
        "sm_90": "Triton ignores the option there: it is persistent_tma",
        "sm_120": "mma.sync needs the registers that the extra warps take",
    },
    "tiled_semaphore": dict.fromkeys(
        (arch for arch in known_archs() if arch.startswith("sm_")), "on an H200 it won nowhere: it is for AMD"
    ),
    **dict.fromkeys((*RINGS, *WGMMA_IN_CUTE, *(stem for stem in REALIGNED if FORMS[stem].in_ring)), WGMMA_ONLY),
    **{
        stem: dict.fromkeys(("sm_100", "sm_120"), "nobody has timed the copies there")
        for stem in ("realigned_tiled_tma", "realigned_split_tma")
    },
    **dict.fromkeys((stem for stem in CUTE_FORMS if stem not in WGMMA_IN_CUTE), TCGEN05_ONLY),
    "skinny_dot": dict.fromkeys(known_archs(), "it multiplies weights of fewer bits than A's, not a16w16"),
}


def won_nothing(arch: str) -> set[str]:
    """Forms for wgmma with which nothing was won on an H200: they need no space."""
    if arch != "sm_90":
        return set()
    return {*RINGS, *WGMMA_IN_CUTE} - {traits_of(row.config).stem for row in shipped_rows("nvidia_h200") if row.config}


def compiles(stem: str, arch: str) -> bool:
    """Whether Triton takes the form's kernels for this target."""
    return not FORMS[stem].lacks(gpu_for_arch(arch))


def kept_forms(space: Space, problem: GemmProblem, arch: str) -> set[str]:
    """What the kernels that pruning leaves are called after."""
    return {traits_of(config).stem for config in prune(space, problem, gpu_for_arch(arch)).kept}


@cache
def stems_of(entry: FamilySpace) -> frozenset[str]:
    """What the kernels of an entry's configs are called after."""
    forms = (traits_for(part.family, part.chosen) for part in entry.parts())
    return frozenset(traits.stem for traits in forms if isinstance(traits, KernelTraits))


def keeps_something(space: Space, problem: GemmProblem, arch: str) -> bool:
    """Whether pruning leaves a config: `prune`, but up to the first one only."""
    gpu = gpu_for_arch(arch)
    for entry in space.families:
        names = space.rules if entry.rules is None else entry.rules
        rules = {
            stem: [rule_for(name, entry.values("GROUP_SIZE_M")) for name in names if is_for(name, FORMS[stem])]
            for stem in stems_of(entry)
            if not legal_problem(problem, *PLACES[stem], gpu)
        }
        for config in one_of_each_tile(entry):
            asked = rules.get(traits_of(config).stem)
            if asked is None or any(drop(problem, config, gpu) for drop in asked):
                continue
            if not legal(problem, config, gpu):
                return True
    return False


@cache
def one_of_each_tile(entry: FamilySpace) -> list[Config]:
    """The first SPLIT_K and GROUP_SIZE_M of each tile, in an order that soon comes to a tile for any size."""
    first = (("SPLIT_K", entry.values("SPLIT_K")[:1]), ("GROUP_SIZE_M", entry.values("GROUP_SIZE_M")[:1]))
    ranges = tuple({**dict(entry.ranges), **dict(first)}.items())
    configs = list(configs_of_family(replace(entry, ranges=ranges)))
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
        for size in spread([*itertools.product(M_AND_N, M_AND_N, K)], 23)
        if not keeps_something(space, problem_of(size, op, arch), arch)
    ]
    assert empty == []


@pytest.mark.parametrize("arch", known_archs())
def test_every_form_is_in_a_space_where_it_compiles(arch: str) -> None:
    """Some shipped space of each target that compiles a form keeps it for some size, unless a reason is given."""
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
    kept: set[str] = set()
    for space, problem in itertools.product(spaces, problems):
        # Entries all of whose forms are known to be kept need no more sizes.
        entries = tuple(entry for entry in space.families if not stems_of(entry) <= kept)
        kept |= kept_forms(replace(space, families=entries), problem, arch)
    compiled = {stem for stem in FORMS if compiles(stem, arch) and arch not in NOT_SHIPPED.get(stem, {})}
    assert compiled - won_nothing(arch) <= kept <= compiled


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_100", "sm_120"])
def test_defaults_hold_what_won_for_small_m(arch: str) -> None:
    """On NVIDIA the default space of each target has the families for small M, through the copy engine where it is."""
    (space,) = (space for space in SPACES.values() if space.default and arch in space.archs)
    wanted = {"tiled", "tiled_swapped", "gemv", "skinny"}
    if compiles("tiled_tma", arch):
        wanted |= {"tiled_tma", "split_tma", "tiled_tma_swapped", "persistent_tma"}
    sizes = ((1, 4096, 4096), (16, 4096, 4096), (64, 2112, 7168))
    kept = {stem for size in sizes for stem in kept_forms(space, problem_of(size, "a16w16", arch), arch)}
    assert kept - {"persistent_tma_specialized"} == wanted
