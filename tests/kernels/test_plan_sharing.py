"""One launch plan serves all configs of a binary: what it leaves open, what closes it, and how much there is of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from long_tests import drawn
from small_gemms import taking

from genkern.compile.binary_groups import binary_group
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import language_of, traits_of
from genkern.kernels.contract.argument import Constant, expanded, launch_arguments
from genkern.kernels.contract.expression import fold
from genkern.kernels.contract.product import Product, product_of
from genkern.kernels.legality import legal
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import (
    binary_name,
    call_of,
    expression_values,
    launch_plan,
    open_plan,
    plan_text,
    run_time_values,
)
from genkern.ops.op import get_op
from genkern.space.languages import space_for_libraries
from genkern.space.prune import prune
from genkern.timing.libraries import CUTE, TRITON

H200 = gpu_for_arch("sm_90")
PROBLEMS = [
    GemmProblem(300, 512, 1024),
    GemmProblem(1, 64, 4096, bias=True),
    GemmProblem(17, 104, 97),
    GemmProblem(48, 96, 512, "batched_a16w16", own=(("batch_size", 3),)),
    GemmProblem(64, 4096, 4096),
]


def product(problem: GemmProblem) -> Product:
    return product_of(problem, get_op(problem.op), "sm_90")


def tried(problem: GemmProblem) -> Iterator[Config]:
    """Configs of all families that take the problem, in Triton and in CuTe DSL: two of a form."""
    yield from taking(problem)
    kept = prune(space_for_libraries(None, "sm_90", problem.op, {TRITON, CUTE}), problem, H200).kept
    for those in (kept, kept[::-1]):
        yield from {(traits_of(config).stem, config.SPLIT_K > 1): config for config in those}.values()


def whole(problem: GemmProblem, config: Config) -> list[object]:
    """What a plan says when everything of the config is known from the start."""
    of, known = product(problem), expression_values(problem, config)
    known |= {"XCDS": H200.xcds, "UNITS_PER_XCD": H200.compute_units // H200.xcds}
    call = call_of(of, config)
    for name, value in call.definitions:
        known[name] = fold(value, known)
    launches = [
        (
            tuple(fold(value, known) for value in kernel.grid),
            tuple(expanded(kernel.arguments, known, {"BINARY": binary_name(config)})),
        )
        for kernel in call.kernels
    ]
    return [*launches, fold(call.workspace, known), fold(call.counters, known)]


@pytest.mark.parametrize("problem", drawn(PROBLEMS, 3), ids=lambda problem: problem.name)
def test_a_plan_that_is_closed_is_the_config_s_own(problem: GemmProblem) -> None:
    """Grids, arguments, workspace and counters: value for value, of every family."""
    families = set()
    for config in tried(problem):
        plan = launch_plan(product(problem), config, H200)
        found = [(launch.grid, launch.arguments) for launch in plan.launches]
        assert [*found, plan.workspace, plan.counters] == whole(problem, config), config.name
        assert not plan.hangs_on.intersection(PARAMETERS.run_time)
        families.add(traits_of(config).stem)
    assert len(families) >= 4


@pytest.mark.parametrize("problem", drawn(PROBLEMS, 2), ids=lambda problem: problem.name)
def test_configs_that_share_binaries_share_a_plan(problem: GemmProblem) -> None:
    """Whatever GROUP_SIZE_M and SPLIT_K: one text, which read and closed says what each config's own plan does."""
    of = product(problem)
    for config in tried(problem):
        splits = (2, 3, 7) if config.SPLIT_K > 1 else (1,)
        siblings = [replace(config, GROUP_SIZE_M=group, SPLIT_K=split) for group in (1, 5, 8) for split in splits]
        siblings = [config, *(each for each in siblings if not legal(problem, each, H200))]
        texts = [plan_text(of, sibling, H200) for sibling in siblings]
        assert all(text is texts[0] for text in texts)
        shared = LaunchPlan.from_json(texts[0])
        assert shared.to_json() == texts[0]
        for sibling in siblings:
            own, closed = launch_plan(of, sibling, H200), shared.closed(run_time_values(sibling))
            assert closed == replace(own, launches=closed.launches)
            for one, other in zip(closed.launches, own.launches, strict=True):
                assert other.symbol.startswith(f"{one.symbol}_")
                assert one == replace(other, symbol=one.symbol, arguments=launch_arguments(other.arguments))


def test_what_is_left_open() -> None:
    """What a config sets at run time, where it is used: SPLIT_K is compiled in where K is not split."""
    problem = GemmProblem(64, 4096, 4096)
    tiled = Config("tiled", 64, 32, 32, 4, 1, 4, 2)
    assert open_plan(product(problem), tiled, H200).hangs_on == {"GROUP_SIZE_M"}
    split = open_plan(product(problem), replace(tiled, SPLIT_K=4), H200)
    assert split.hangs_on == set(PARAMETERS.run_time)
    assert not any(isinstance(each, Constant) for each in launch_arguments(split.launches[0].arguments))
    persistent = Config("persistent_tma", 64, 64, 64, 4, 1, 4, 3)
    assert launch_plan(product(problem), persistent, H200, any_m=True).hangs_on == {"units", "M"}


@pytest.mark.parametrize("size", [(64, 1280, 8192), (512, 1280, 8192)])
def test_plans_of_a_default_space(size: tuple[int, int, int]) -> None:
    """Of thousands of configs with CuTe's among them: no more plans than binaries, and at most 1 MB of text."""
    problem = GemmProblem(*size)
    kept = prune(space_for_libraries(None, "sm_90", problem.op, {TRITON, CUTE}), problem, H200).kept
    assert len(kept) > 5000
    binaries = {binary_group(config): config for config in kept}
    texts = {plan_text(product(problem), config, H200) for config in binaries.values()}
    assert len(texts) <= len(binaries) / 2
    assert sum(map(len, texts)) <= 10**6
    assert {language_of(config) for config in kept} == {TRITON, CUTE}
