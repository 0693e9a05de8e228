"""Tests of genkern.space.rules.amd: what the rules say of Triton is what the installed Triton compiles."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from compiled import compile_here
from long_tests import drawn
from small_gemms import job_for, make_module, specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.gemm.triton_release import triton_release, triton_version
from genkern.space.rules import amd as rules_amd
from genkern.space.rules.registry import rule_for

LARGE, ONE_ROW = GemmProblem(4096, 4096, 4096), GemmProblem(16, 4096, 4096)
MI300X, MI355X, MI210, RDNA4, H200 = (gpu_for_arch(arch) for arch in ("gfx942", "gfx950", "gfx90a", "gfx1201", "sm_90"))
AMD = Config("tiled", 64, 64, 64, 4, 1, 4, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=1)
NVIDIA = Config("tiled", 16, 64, 64, 4, 1, 4, 3)
RELEASES = ((3, 6), (3, 7), (3, 8), (3, 9))

Compile = Callable[[GemmProblem, Config, str], Binary]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Compile:
    """Compile the main kernel of a config for an architecture, in this process; each once."""
    folder = tmp_path_factory.mktemp("modules")

    def compile_one(problem: GemmProblem, config: Config, arch: str) -> Binary:
        own = folder / f"{problem.name}_{config.name}_{arch}"
        own.mkdir(exist_ok=True)
        module, _ = make_module(own, problem, [config], arch)
        job = job_for(specs_of(module, config)[0], own / module.file_name, arch, cache_dir)
        return compile_here(job, own)

    return compile_one


@pytest.fixture
def with_release(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int]], None]:
    """Let the rules believe in another Triton."""
    return lambda release: monkeypatch.setattr(rules_amd, "triton_release", lambda: release)


def drops(name: str, problem: GemmProblem, config: Config, gpu: object) -> bool:
    return rule_for(name, (1,))(problem, config, gpu)  # type: ignore[arg-type]


def change(config: Config, **fields: object) -> Config:
    return dataclasses.replace(config, **fields)  # type: ignore[arg-type]


# What a rule drops, and the config whose code it has, for the installed Triton.
COPIES = [
    ("kpack_no_effect", "gfx950", LARGE, change(AMD, kpack=2), AMD),
    ("kpack_no_effect", "gfx1201", LARGE, change(AMD, kpack=2), AMD),
    ("schedule_hint_ignored", "gfx942", LARGE, change(AMD, schedule_hint="attention"), AMD),
    ("schedule_hint_ignored", "gfx942", LARGE, change(AMD, schedule_hint="no-such-hint"), AMD),
    ("waves_per_eu_given", "gfx942", LARGE, change(AMD, num_warps=8, waves_per_eu=1), change(AMD, num_warps=8)),
    ("cache_modifier_no_effect", "gfx942", ONE_ROW, change(AMD, cache_modifier=".ca"), AMD),
    ("cache_modifier_no_effect", "sm_90", ONE_ROW, change(NVIDIA, cache_modifier=".cg"), NVIDIA),
]
# What no rule drops, and a neighbour whose code differs.
OTHERS = [
    ("kpack_no_effect", "gfx942", LARGE, change(AMD, kpack=2), AMD),
    ("waves_per_eu_given", "gfx942", LARGE, change(AMD, waves_per_eu=1), AMD),
    ("waves_per_eu_given", "gfx942", LARGE, change(AMD, waves_per_eu=2), AMD),
    ("cache_modifier_no_effect", "gfx942", ONE_ROW, change(AMD, cache_modifier=".cg"), AMD),
    ("cache_modifier_no_effect", "gfx90a", ONE_ROW, change(AMD, cache_modifier=".cg"), AMD),
    ("cache_modifier_no_effect", "sm_90", ONE_ROW, change(NVIDIA, num_stages=1, cache_modifier=".cg"),
     change(NVIDIA, num_stages=1)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "arch", "problem", "dropped", "twin"), drawn([*COPIES], 3))
def test_what_is_said_to_change_nothing_changes_nothing(
    compiled: Compile, rule: str, arch: str, problem: GemmProblem, dropped: Config, twin: Config
) -> None:
    """A config that is dropped for having no effect compiles to the machine code of the one that stays."""
    gpu = gpu_for_arch(arch)
    assert drops(rule, problem, dropped, gpu)
    assert not drops(rule, problem, twin, gpu)
    one, other = compiled(problem, dropped, arch).resources, compiled(problem, twin, arch).resources
    assert one == other
    assert one.code_sha256 is not None


@pytest.mark.parametrize(("rule", "arch", "problem", "kept", "neighbour"), drawn([*OTHERS], 3))
def test_what_has_an_effect_stays(
    compiled: Compile, rule: str, arch: str, problem: GemmProblem, kept: Config, neighbour: Config
) -> None:
    """Where a parameter changes the machine code, its rule keeps it."""
    assert not drops(rule, problem, kept, gpu_for_arch(arch))
    one, other = compiled(problem, kept, arch), compiled(problem, neighbour, arch)
    assert one.resources.code_sha256 != other.resources.code_sha256


def test_the_hint_that_triton_knows(compiled: Compile) -> None:
    """memory-bound-attention stays exactly where the installed Triton makes other code of it."""
    hinted = change(AMD, schedule_hint="memory-bound-attention")
    one, other = compiled(LARGE, hinted, "gfx942"), compiled(LARGE, AMD, "gfx942")
    same = one.resources.code_sha256 == other.resources.code_sha256
    assert same == drops("schedule_hint_ignored", LARGE, hinted, MI300X) == (triton_release() >= (3, 8))


@pytest.mark.parametrize(("gpu", "stages"), [(g, s) for g in (MI300X, MI355X) for s in (1, 2, 3)], ids=str)
def test_lds_is_what_triton_allocates(compiled: Compile, gpu: object, stages: int) -> None:
    """The formula gives the LDS of the compiled kernel, up to padding of 3 %, for the installed Triton."""
    config = change(AMD, num_stages=stages)
    needed = rules_amd._lds_bytes(LARGE, config, gpu)  # type: ignore[arg-type]
    found = compiled(LARGE, config, gpu.arch).resources.shared_bytes  # type: ignore[attr-defined]
    assert found is not None
    assert needed <= found <= 1.03 * needed


def assembly(problem: GemmProblem, config: Config, arch: str, folder: Path) -> str:
    """AMDGCN or PTX of the main kernel."""
    import triton
    from triton.backends.compiler import GPUTarget

    from genkern.gemm.gpus import triton_target
    from genkern.kernels.source import ast_source

    module, loaded = make_module(folder, problem, [config], arch)
    spec = specs_of(module, config)[0]
    target = GPUTarget(*triton_target(gpu_for_arch(arch)))
    asm = triton.compile(ast_source(loaded, spec), target=target, options=dict(spec.options)).asm
    return asm["amdgcn"] if "amdgcn" in asm else asm["ptx"]


@pytest.mark.parametrize(
    ("arch", "config", "modified"),
    drawn(
        [
            ("gfx90a", AMD, r"global_load_.* glc slc"),
            ("gfx942", AMD, r"global_load_.* nt\b"),
            ("gfx950", AMD, r"global_load_.* nt\b"),
            ("sm_90", change(NVIDIA, num_stages=1), r"ld\.global\.cg"),
        ],
        2,
    ),
)
def test_modifiers_reach_the_loads_of_b(tmp_path: Path, arch: str, config: Config, modified: str) -> None:
    """.cg is in the assembly of some loads (those of B), not of all (those of A), and of none without it."""
    config = change(config, BLOCK_SIZE_M=16)
    (tmp_path / "plain").mkdir()
    plain = assembly(ONE_ROW, config, arch, tmp_path / "plain")
    text = assembly(ONE_ROW, change(config, cache_modifier=".cg"), arch, tmp_path)
    loads = r"^\s*(?:@\S+ )?(?:global_load_|ld\.global).*$"
    found = re.findall(loads, text, re.MULTILINE)
    assert 0 < len([line for line in found if re.search(modified, line)]) < len(found)
    assert not re.search(modified, plain)


@pytest.mark.parametrize("release", RELEASES)
def test_rules_follow_the_release(with_release: Callable[[tuple[int, int]], None], release: tuple[int, int]) -> None:
    """What differs between the releases of Triton: hints, LDS on gfx950, and two modifiers."""
    with_release(release)
    new = release >= (3, 8)
    hinted = change(AMD, schedule_hint="memory-bound-attention")
    assert drops("schedule_hint_ignored", LARGE, hinted, MI300X) is new
    assert drops("schedule_hint_ignored", LARGE, change(AMD, schedule_hint="local-prefetch"), MI300X)
    three = change(AMD, BLOCK_SIZE_M=256, BLOCK_SIZE_N=256, num_stages=3)  # 128 KiB for two stages, 192 for three
    assert drops("lds_pipeline", LARGE, three, MI355X) is new
    assert drops("lds_pipeline", LARGE, three, MI300X)
    modified = partial(drops, "cache_modifier_no_effect", ONE_ROW)
    assert not modified(change(NVIDIA, num_stages=1, cache_modifier=".cs"), H200)
    assert modified(change(NVIDIA, cache_modifier=".ca"), H200) is (release < (3, 9))
    assert modified(change(NVIDIA, cache_modifier=".cs"), H200)
    assert modified(change(AMD, cache_modifier=".cs"), MI300X)
    assert not modified(change(AMD, cache_modifier=".cg"), RDNA4)


def test_without_triton_nothing_new_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that only prunes needs no Triton."""
    triton_release.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", None)
    try:
        assert (triton_version(), triton_release()) == ("", (0, 0))
    finally:
        triton_release.cache_clear()


def test_triton_says_its_version_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The version is read where it is written as text, and asked for where it is computed."""
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "triton" / "__init__.py"
    package.parent.mkdir()
    package.write_text("'a docstring'\n__version__ = '9.8.7+rocm'\nraise ImportError('no driver')\n")
    assert triton_version() == "9.8.7+rocm"
    package.write_text("__version__ = '.'.join('345')\n")
    assert triton_version() == "3.4.5"
    sys.modules.pop("triton", None)
    package.write_text("raise ImportError('no driver')\n")
    assert triton_version() == ""


def test_borders_of_waves_per_eu() -> None:
    """An aim is kept when workgroups can reach it by LDS, and threads by registers."""
    # 16 KiB of LDS and four warps: four workgroups are four waves on each SIMD of gfx942.
    assert not drops("waves_per_eu_over_lds", LARGE, change(AMD, waves_per_eu=4), MI300X)
    assert drops("waves_per_eu_over_lds", LARGE, change(AMD, waves_per_eu=5), MI300X)
    # 64 accumulators of 256 lanes, 20 others: 6 waves leave 85 registers, 8 leave 64.
    wide = change(AMD, BLOCK_SIZE_M=128, BLOCK_SIZE_N=128)
    assert not drops("waves_per_eu_spills", LARGE, change(wide, waves_per_eu=6), MI300X)
    assert drops("waves_per_eu_spills", LARGE, change(wide, waves_per_eu=8), MI300X)
    for rule in ("waves_per_eu_over_lds", "waves_per_eu_spills", "waves_per_eu_given"):
        assert not drops(rule, LARGE, change(AMD, BLOCK_SIZE_M=256, BLOCK_SIZE_N=256), MI300X)


def test_remapping_and_modifiers_are_for_some() -> None:
    """Remapping is for GPUs of several XCDs, modifiers are for one row of tiles."""
    remapped = change(AMD, xcd_remap=1)
    assert [drops("xcd_remap_one_xcd", LARGE, remapped, gpu) for gpu in (MI300X, MI355X)] == [False, False]
    assert [drops("xcd_remap_one_xcd", LARGE, remapped, gpu) for gpu in (MI210, RDNA4)] == [True, True]
    assert not drops("xcd_remap_one_xcd", LARGE, AMD, MI210)
    modified = change(AMD, cache_modifier=".cg")
    assert not drops("cache_modifier_reused", GemmProblem(64, 64, 64), modified, MI300X)
    assert drops("cache_modifier_reused", GemmProblem(65, 64, 64), modified, MI300X)
    assert not drops("cache_modifier_reused", LARGE, AMD, MI300X)
