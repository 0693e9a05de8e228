"""Which configs become candidates, why the others do not, and what is left on the disk."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import pytest
from small_gemms import (
    AMD,
    AMD_SPLIT,
    SPLIT,
    TILED,
    TMA,
    TRITON_VERSION,
    WARP_SPECIALIZED,
    WARP_SPECIALIZED_SPLIT,
    WARP_SPECIALIZED_SWAPPED,
    WARP_SPECIALIZED_SWAPPED_SPLIT,
    target_of,
)

from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compile_queue import ResultCallback
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Outcome, Resources, Unfit
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.source import load_module
from genkern.timing.session import Budget

MI300X = gpu_for_arch("gfx942")
PROBLEM = GemmProblem(100, 64, 4096)
WIDER = [dataclasses.replace(config, BLOCK_SIZE_M=32) for config in (AMD, AMD_SPLIT)]
CONFIGS = [AMD, dataclasses.replace(AMD, GROUP_SIZE_M=8), AMD_SPLIT, *WIDER]


class ScriptedFarm(Farm):
    """Makes no binary: what becomes of each kernel, and in which order, is given."""

    def __init__(
        self,
        folder: Path,
        arranged: Callable[[list[KernelSpec]], list[KernelSpec]],
        refused: str = "",
        code: Callable[[KernelSpec], str | None] = lambda spec: None,
    ) -> None:
        super().__init__(BinaryCache(folder), target_of("gfx942"), "3.6.0", jobs=1, timeout_s=1.0)
        self.arranged = arranged
        self.arrived: list[str] = []
        self.refused = refused
        self.code = code
        self.modules: list[str] = []
        self.from_outside = False

    def order(self, owner: Hashable, jobs: Sequence[tuple[int, CompileJob]], tell: ResultCallback) -> None:
        self.modules.extend({Path(job.module_path).read_text() for _, job in jobs})
        for spec in self.arranged([job.spec for _, job in jobs]):
            self.arrived.append(key := self.key(spec))
            if spec.function == self.refused:
                tell(key, Failure(key, Outcome.COMPILE_TIMED_OUT, "no result after 1 s", self.from_outside))
            else:
                resources = Resources(registers=64, shared_bytes=16384, code_sha256=self.code(spec))
                tell(key, Binary(key, "/entry", spec.function, resources))


@pytest.fixture
def make_workshop(hostile_path: Path) -> Callable[..., BuildEnvironment]:
    """Make a build environment for gfx942 with this farm."""

    def make(farm: Farm, gpu: Gpu = MI300X, keep_modules: bool = False) -> BuildEnvironment:
        folder = str(hostile_path / "modules")
        return BuildEnvironment(
            farm, gpu, "gfx942", Budget(), init_type="hpl", module_dir=folder, keep_modules=keep_modules
        )

    return make


def names_in(folder: Path) -> list[str]:
    """Names of the files in the build environment's folder."""
    return sorted(path.name for path in (folder / "modules").iterdir())


def test_real_binaries_become_candidates(
    make_workshop: Callable[..., BuildEnvironment], cache_dir: Path, hostile_path: Path
) -> None:
    """Every config has the binaries of its kernels in launch order; a size with the same overhang compiles nothing."""
    farm = Farm(BinaryCache(cache_dir), target_of("gfx942"), TRITON_VERSION, jobs=2, timeout_s=60)
    build_environment = make_workshop(farm)
    for problem in (PROBLEM, GemmProblem(4001, 640, 256)):
        with build_environment.open(problem, CONFIGS, 3) as builder:
            candidates = {candidate.config: candidate for candidate in builder.candidates(CONFIGS)}
            assert set(candidates) == set(CONFIGS)
            assert builder.build.ready == {config.name: candidate for config, candidate in candidates.items()}
            assert builder.build.unfit == {}
            for config, candidate in candidates.items():
                kernels = ["matmul_tiled_split", "reduce_splits"] if config.SPLIT_K > 1 else ["matmul_tiled"]
                found = [binary.symbol.removesuffix(f"_BM{config.BLOCK_SIZE_M}") for binary in candidate.binaries]
                assert all(symbol.startswith(kernel) for symbol, kernel in zip(found, kernels, strict=True))
                assert builder.build.binaries[config.name] == candidate.binaries[0]
            session = builder.build.session
            assert (session.problem, session.device_index, session.init_type) == (problem, 3, "hpl")
            assert callable(load_module(session.module_path).make_operands)
    assert (farm.counts.wanted, farm.counts.failed) == (10, 0)
    assert farm.counts.cached >= 5
    assert names_in(hostile_path) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_candidate_comes_with_its_last_binary(
    make_workshop: Callable[..., BuildEnvironment], tmp_path: Path, seed: int
) -> None:
    """In whatever order binaries arrive, each config is handed out once, as soon as all its binaries are there."""
    farm = ScriptedFarm(tmp_path, lambda specs: [*specs[seed:], *specs[:seed]])
    with make_workshop(farm).open(PROBLEM, CONFIGS, 0) as builder:
        made = list(builder.candidates(CONFIGS))
    places = [max(farm.arrived.index(binary.key) for binary in candidate.binaries) for candidate in made]
    assert places == sorted(places)
    assert len(farm.arrived) == 5
    seen = [candidate.config for candidate in made]
    assert sorted(seen) == sorted(CONFIGS)


def test_refused_kernels_take_their_configs_along(
    make_workshop: Callable[..., BuildEnvironment], tmp_path: Path
) -> None:
    """A config with a kernel that was not compiled ends in that kernel's outcome, and the others are candidates."""
    farm = ScriptedFarm(tmp_path, lambda specs: specs, refused="reduce_splits")
    with make_workshop(farm).open(PROBLEM, CONFIGS, 0) as builder:
        ready = {candidate.config for candidate in builder.candidates(CONFIGS)}
    assert ready == {config for config in CONFIGS if config.SPLIT_K == 1}
    assert set(builder.build.unfit) == {config.name for config in CONFIGS if config.SPLIT_K > 1}
    assert {(unfit.outcome, unfit.message) for unfit in builder.build.unfit.values()} == {
        (Outcome.COMPILE_TIMED_OUT, "no result after 1 s")
    }


def test_what_is_left_out_is_not_compiled(make_workshop: Callable[..., BuildEnvironment], tmp_path: Path) -> None:
    """It stays unfit for the reason given, and is told to nobody; what had no room is looked up for its resources."""
    late, large = CONFIGS[0].name, WIDER[0].name
    known = {late: Unfit(Outcome.COMPILE_TIMED_OUT, "too late"), large: Unfit(Outcome.OVER_RESOURCES, "too large")}
    asked: list[str] = []

    def order(specs: list[KernelSpec]) -> list[KernelSpec]:
        asked.extend(f"{spec.function} {dict(spec.constants).get('BLOCK_SIZE_M')}" for spec in specs)
        return specs

    told: list[str] = []
    configs = [CONFIGS[0], AMD_SPLIT, *WIDER]
    with make_workshop(ScriptedFarm(tmp_path, order)).open(PROBLEM, configs, 0) as builder:
        builder.exclude(known)
        builder.on_unfit = lambda names, unfit: told.extend(names)
        ready = {candidate.config for candidate in builder.candidates(configs)}
    assert ready == {AMD_SPLIT, WIDER[1]}
    assert (builder.build.unfit, told) == (known, [])
    assert set(builder.build.binaries) == {AMD_SPLIT.name, *(config.name for config in WIDER)}
    assert f"matmul_tiled_mask_m {AMD.BLOCK_SIZE_M}" not in asked
    assert len(asked) == 4


def test_what_turns_out_unfit_is_told_at_once(make_workshop: Callable[..., BuildEnvironment], tmp_path: Path) -> None:
    """All configs of a binary together, when it is known; at the end, how many binaries there are."""
    events: list[object] = []
    farm = ScriptedFarm(tmp_path, lambda specs: specs, refused="matmul_tiled_mask_m")
    with make_workshop(farm).open(PROBLEM, CONFIGS, 0) as builder:
        builder.on_unfit = lambda names, unfit: events.append((unfit.outcome, *names))
        events.extend(candidate.config.name for candidate in builder.candidates(CONFIGS))
        events.append(builder.counts)
    late = Outcome.COMPILE_TIMED_OUT
    assert events == [
        (late, CONFIGS[0].name, CONFIGS[1].name),
        AMD_SPLIT.name,
        (late, WIDER[0].name),
        WIDER[1].name,
        (3, 2, 0),
    ]


def test_a_compiler_that_was_killed_is_not_told(make_workshop: Callable[..., BuildEnvironment], tmp_path: Path) -> None:
    """Its configs are unfit this time only: as when a batch system ends all processes of a run."""
    told: list[str] = []
    farm = ScriptedFarm(tmp_path, lambda specs: specs, refused="reduce_splits")
    farm.from_outside = True
    with make_workshop(farm).open(PROBLEM, CONFIGS, 0) as builder:
        builder.on_unfit = lambda names, unfit: told.extend(names)
        list(builder.candidates(CONFIGS))
    assert set(builder.build.unfit) == {config.name for config in CONFIGS if config.SPLIT_K > 1}
    assert told == []


def test_what_cannot_launch_is_no_candidate(make_workshop: Callable[..., BuildEnvironment], tmp_path: Path) -> None:
    """A binary that needs more than the GPU has is over_resources, with the figures; its resources stay known."""
    small = dataclasses.replace(MI300X, shared_bytes_per_block=16383)
    with make_workshop(ScriptedFarm(tmp_path, lambda specs: specs), small).open(PROBLEM, [AMD], 0) as builder:
        assert list(builder.candidates([AMD])) == []
    assert builder.build.unfit[AMD.name].outcome is Outcome.OVER_RESOURCES
    assert "LDS of 16384 bytes is over the 16383" in builder.build.unfit[AMD.name].message
    assert builder.build.binaries[AMD.name].resources.registers == 64


def same_code_but_for_masks(spec: KernelSpec) -> str:
    """As if the compiler looked at none of its options."""
    return f"{spec.function} {dict(spec.constants).get('BLOCK_SIZE_M')}"


TWINS = [
    AMD,
    *(dataclasses.replace(AMD, **fields) for fields in ({"waves_per_eu": 3}, {"num_stages": 3}, {"kpack": 2})),
]


@pytest.mark.parametrize("seed", range(4))
def test_of_copies_the_first_is_measured(
    make_workshop: Callable[..., BuildEnvironment], tmp_path: Path, seed: int
) -> None:
    """Configs with equal code and launch: the one whose binary comes first is a candidate, the others say of which
    they are copies. Other grids, splits and group sizes are other launches."""
    farm = ScriptedFarm(tmp_path, lambda specs: [*specs[seed:], *specs[:seed]], code=same_code_but_for_masks)
    others = [
        dataclasses.replace(AMD, GROUP_SIZE_M=8),
        dataclasses.replace(AMD, xcd_remap=1),
        dataclasses.replace(AMD, BLOCK_SIZE_N=64),
        dataclasses.replace(AMD, num_warps=8),
        *WIDER,
        AMD_SPLIT,
        dataclasses.replace(AMD_SPLIT, SPLIT_K=8),
    ]
    with make_workshop(farm).open(PROBLEM, [*TWINS, *others], 0) as builder:
        ready = {candidate.config for candidate in builder.candidates([*TWINS, *others])}
    (measured,) = ready & set(TWINS)
    assert ready == {measured, *others}
    copies = [config.name for config in TWINS if config != measured]
    assert sorted(builder.build.unfit) == sorted(copies)
    for name in copies:
        assert builder.build.unfit[name].outcome is Outcome.IDENTICAL
        assert builder.build.unfit[name].message.endswith(f" {measured.name}")
        assert name in builder.build.binaries
    assert set(builder.build.launches.values()) == {config.name for config in ready}


def test_configs_named_first_stay_candidates(make_workshop: Callable[..., BuildEnvironment], tmp_path: Path) -> None:
    """What an earlier run measured stays what is measured, wherever it stands; several of a kind all do."""
    for first in ([TWINS[2]], [TWINS[1], TWINS[3]]):
        farm = ScriptedFarm(tmp_path, lambda specs: specs, code=same_code_but_for_masks)
        names = {config.name for config in first}
        with make_workshop(farm).open(PROBLEM, TWINS, 0, names) as builder:
            assert {candidate.config.name for candidate in builder.candidates(TWINS)} == names
        assert {unfit.message.split()[-1] for unfit in builder.build.unfit.values()} == {first[0].name}


@pytest.mark.parametrize("budget", [Budget(exhaustive=True), Budget(protocol="tune_gemm")])
def test_an_exhaustive_run_measures_copies_too(
    make_workshop: Callable[..., BuildEnvironment], tmp_path: Path, budget: Budget
) -> None:
    """As tune_gemm does."""
    build_environment = make_workshop(ScriptedFarm(tmp_path, lambda specs: specs, code=same_code_but_for_masks))
    build_environment.budget = budget
    with build_environment.open(PROBLEM, TWINS, 0) as builder:
        assert {candidate.config for candidate in builder.candidates(TWINS)} == set(TWINS)


def test_unknown_code_equals_nothing(make_workshop: Callable[..., BuildEnvironment], tmp_path: Path) -> None:
    """Binaries from before digests were kept are all measured."""
    with make_workshop(ScriptedFarm(tmp_path, lambda specs: specs)).open(PROBLEM, TWINS, 0) as builder:
        assert {candidate.config for candidate in builder.candidates(TWINS)} == set(TWINS)


def test_real_copies_are_found(make_workshop: Callable[..., BuildEnvironment], cache_dir: Path) -> None:
    """On gfx950 Triton ignores kpack: half of the configs that differ there need no measurement."""
    farm = Farm(BinaryCache(cache_dir), target_of("gfx950"), TRITON_VERSION, jobs=2, timeout_s=60)
    configs = [dataclasses.replace(config, kpack=kpack) for config in (AMD, AMD_SPLIT) for kpack in (1, 2)]
    with make_workshop(farm, gpu_for_arch("gfx950")).open(PROBLEM, configs, 0) as builder:
        ready = {candidate.config for candidate in builder.candidates(configs)}
    farm.close()
    assert sorted(config.SPLIT_K for config in ready) == [1, 4]
    assert [unfit.outcome for unfit in builder.build.unfit.values()] == [Outcome.IDENTICAL] * 2


def test_every_config_ends_somewhere(make_workshop: Callable[..., BuildEnvironment], tmp_path: Path) -> None:
    """ready and unfit together are all configs, and no config is in both."""
    for refused in ("", "matmul_tiled_mask_m", "matmul_tiled_split_mask_m", "reduce_splits"):
        with make_workshop(ScriptedFarm(tmp_path, lambda specs: specs, refused)).open(PROBLEM, CONFIGS, 0) as builder:
            list(builder.candidates(CONFIGS))
        assert sorted([*builder.build.ready, *builder.build.unfit]) == sorted(config.name for config in CONFIGS)


@pytest.mark.parametrize("keep", [False, True])
def test_modules_go_away_unless_kept(
    make_workshop: Callable[..., BuildEnvironment], hostile_path: Path, keep: bool
) -> None:
    """The generated module is there during the job, and afterwards only with --keep, after an error too."""
    build_environment = make_workshop(ScriptedFarm(hostile_path / "cache", lambda specs: specs), keep_modules=keep)
    text = generate(PROBLEM, CONFIGS, "gfx942").measured_text

    def interrupted() -> None:
        with build_environment.open(PROBLEM, CONFIGS, 0) as builder:
            assert Path(builder.build.session.module_path).read_text() == text
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names_in(hostile_path) == ([f"gemm_{PROBLEM.name}.py"] if keep else [])


def test_other_kernels_are_another_module(make_workshop: Callable[..., BuildEnvironment], tmp_path: Path) -> None:
    """A compile worker, which keeps what it has imported, finds the kernels of each job of a problem."""
    farm = ScriptedFarm(tmp_path, lambda specs: specs)
    build_environment = make_workshop(farm)
    measured = []
    for config in (AMD, AMD_SPLIT):
        with build_environment.open(PROBLEM, [config], 0) as builder:
            list(builder.candidates([config]))
            measured.append(builder.build.session.module_path)
    assert "def matmul_tiled_mask_m(" in farm.modules[0]
    assert "def matmul_tiled_split_mask_m(" in farm.modules[1]
    # Neither takes away what the other has written.
    assert measured[0] != measured[1]


def test_nobody_who_works_reads_the_table_of_configs(
    make_workshop: Callable[..., BuildEnvironment], tmp_path: Path
) -> None:
    """Workers import every kernel, to the character, measured processes what they call; nobody a row of the table."""
    farm = ScriptedFarm(tmp_path, lambda specs: specs)
    with make_workshop(farm).open(PROBLEM, CONFIGS, 0) as builder:
        list(builder.candidates(CONFIGS))
        measured = Path(builder.build.session.module_path).read_text()
    module = generate(PROBLEM, CONFIGS, "gfx942", MI300X)
    assert farm.modules == [module.kernels_text]
    assert measured == module.measured_text
    assert "_TABLE" in module.text
    assert not any("_TABLE" in text for text in (measured, *farm.modules))
    assert functions(module.kernels_text) >= {
        *("_symbol", "tile_of", "matmul_tiled_mask_m", "matmul_tiled_split_mask_m", "reduce_splits")
    }
    assert functions(measured) == {"_random", "make_operands", "reference", "vendor"}


@pytest.mark.parametrize(
    "configs",
    [
        *([TILED, SPLIT], [AMD, AMD_SPLIT], [TMA], [WARP_SPECIALIZED], [WARP_SPECIALIZED_SPLIT]),
        *([WARP_SPECIALIZED_SWAPPED], [WARP_SPECIALIZED_SWAPPED_SPLIT]),
    ],
    ids=lambda c: c[0].name,
)
def test_the_kernels_text_is_a_module(configs: list[Config]) -> None:
    """It parses, and holds the kernels of every family."""
    for size, bias in itertools.product([(128, 64, 256), (100, 64, 4096)], (False, True)):
        module = generate(GemmProblem(*size, bias=bias), configs, "any")
        assert functions(module.kernels_text) > set(module.source_sha256)


def functions(text: str) -> set[str]:
    """Names of the functions that a module defines."""
    return {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def test_kept_modules_of_one_problem_stand_side_by_side(
    make_workshop: Callable[..., BuildEnvironment], hostile_path: Path
) -> None:
    """A results file may have several configs for it: the first has the plain name, and the same one stays one file."""
    build_environment = make_workshop(ScriptedFarm(hostile_path / "cache", lambda specs: specs), keep_modules=True)
    for config in (AMD, WIDER[0], AMD):
        with build_environment.open(PROBLEM, [config], 0) as builder:
            list(builder.candidates([config]))
    name = f"gemm_{PROBLEM.name}"
    assert names_in(hostile_path) == [f"{name}.py", f"{name}_2.py"]
    modules = [path.read_text() for path in sorted(hostile_path.rglob("gemm_*.py"))]
    assert modules == [generate(PROBLEM, [config], "gfx942", MI300X).text for config in (AMD, WIDER[0])]


def test_a_module_stays_for_as_long_as_it_is_needed(
    make_workshop: Callable[..., BuildEnvironment], hostile_path: Path
) -> None:
    """A size may be opened again while what was prepared of it before, for nothing, is being closed."""
    farm = ScriptedFarm(hostile_path / "cache", lambda specs: specs)
    build_environment = make_workshop(farm)
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(build_environment.open(PROBLEM, CONFIGS, 0))
        there = names_in(hostile_path)
        builder = second.enter_context(build_environment.open(PROBLEM, CONFIGS, 0))
        first.close()
        assert names_in(hostile_path) == there
        assert len(list(builder.candidates(CONFIGS))) == len(CONFIGS)
    assert names_in(hostile_path) == []
