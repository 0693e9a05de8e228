"""Tests of genkern.kernels.catalogue: families and their forms, the values that each takes, and families of others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from forms import CUTE_FORMS, FORMS, PLACES, RINGS, made

from genkern.errors import InputError
from genkern.gemm import parameter
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.parameter import PARAMETERS, Parameter
from genkern.gemm.problem import GemmProblem
from genkern.kernels import catalogue
from genkern.kernels.catalogue import (
    CUTE,
    FAMILIES,
    all_traits_of,
    block_problem,
    k_shares,
    language_of,
    numbers_of,
    parameters_of,
    sides,
    traits_for,
    traits_of,
    values_problem,
    warps_problem,
)
from genkern.kernels.contract.call import Call
from genkern.kernels.contract.expression import name
from genkern.kernels.contract.family import Choice, Family
from genkern.kernels.contract.product import Product
from genkern.kernels.contract.traits import KernelTraits
from genkern.kernels.contract.variant import Variant
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal
from genkern.kernels.specs import binary_name, kernel_specs
from genkern.ops.op import get_op
from genkern.space.prune import prune
from genkern.space.space import read_space

PROBLEM = GemmProblem(512, 512, 512)
H200 = gpu_for_arch("sm_90")


def test_names() -> None:
    """The table finds each family under its own name, and no two forms have one."""
    assert all(name == family.name for name, family in FAMILIES.items())
    assert len(FAMILIES) == 9
    assert len(FORMS) == sum(len(all_traits_of(family)) for family in FAMILIES)


def test_forms_with_rings() -> None:
    """Those whose tiles have a width of any kind, in Gluon: upright and swapped, in clusters along K and of tiles."""
    upright, swapped = "warp_specialized", "warp_specialized_swapped"
    clusters = {f"{swapped}_cluster{size}" for size in (2, 3, 4, 5, 8)}
    side_by_side = {f"{name}_{shape}" for name in (upright, swapped) for shape in ("2x1", "1x2")}
    assert set(RINGS) == {upright, swapped} | clusters | side_by_side


def test_a_config_says_its_form() -> None:
    """By its parameters off their neutral values, however it came to them; its name is read as the same."""
    for stem in FORMS:
        family, others = PLACES[stem]
        config = made(stem, 64, 64, 64)
        assert (config.family, config.others) == (family, others)
        assert traits_of(config) is traits_for(family, others) is all_traits_of(family)[others]
        assert traits_of(Config.parse(config.name)).stem == stem
        assert traits_of(config.with_values(GROUP_SIZE_M=4, num_stages=3)) is traits_of(config)
        assert (language_of(config) == "cute") == (stem in CUTE_FORMS) == (family in CUTE)


def test_what_changes_no_text_changes_no_form() -> None:
    """AMD's options, the order for XCDs and the cache's modifier are of one text each, or of the kernel's variant."""
    plain = Config("tiled", 64, 64, 64)
    changed = plain.with_values(waves_per_eu=2, kpack=2, xcd_remap=1, cache_modifier=".cg")
    assert changed.others != plain.others
    assert traits_of(changed) is traits_of(plain)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config("stream_k", 64, 64, 64), "there is no family stream_k"),
        (Config("tiled_atomic", 64, 64, 64), "there is no family tiled_atomic"),
        (Config("gemv", 1, 16, 64, swapped=1), "gemv has no parameter swapped"),
        (Config("tiled", 64, 64, 64, reduce="kernel"), "reduce kernel is not one of usual, semaphore"),
        (Config("tiled", 64, 64, 64, swapped=1), "swapped tiles are added up by a semaphore"),
        (Config("tiled_tma", 64, 64, 64, swapped=1, realigned=1), "swapped tiles are neither realigned"),
        (Config("warp_specialized", 64, 64, 64, cluster="4x1"), "cluster 4x1 is not one of"),
        (Config("warp_specialized", 64, 64, 64, cluster_k=6), "cluster_k 6 is not one of"),
        (Config("cute_tcgen05", 128, 128, 64, ctas=2), "with 2 programs per tile, cluster must be one of 2x1"),
        (Config("tiled", 64, 64, 64, kpack=3), "kpack 3 is not one of 0, 1, 2"),
        (Config("tiled", 8, 64, 64), ""),
        (Config("tiled", 2, 64, 64), "BLOCK_SIZE_M: 2 is not from 4"),
        (Config("tiled", 64, 48, 64), "BLOCK_SIZE_N: 48 is not a power of two"),
        (Config("tiled", 64, 64, 64, num_warps=3), "num_warps: 3 is not a power of two"),
        (Config("cute_wgmma", 192, 64, 64, num_warps=12), ""),
        (Config("tiled", 64, 64, 64, swapped=1, reduce="semaphore"), ""),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_values_that_a_family_has(config: Config, message: str) -> None:
    """What it can never have is said whatever the problem and the GPU, and is not legal for any."""
    said = values_problem(config)
    assert message in said
    assert bool(said) == bool(message)
    if message:
        assert message in legal(PROBLEM, config, None)


def test_what_has_no_form_has_no_facts() -> None:
    """Those who ask for them hear why, with the config's name."""
    with pytest.raises(InputError, match=r"gemv_BM1_BN16_BK64_GM1_SK1_nW4_nS2_swapped: .* swapped"):
        traits_of(Config("gemv", 1, 16, 64, swapped=1))


def test_parameters_of_families() -> None:
    """In the order of names: those of every config, then the family's own with the values that it has."""
    for family in FAMILIES:
        found = parameters_of(family)
        assert [each for each in PARAMETERS.by_name if each in found] == list(found)
        assert {each.name for each in parameter.CORE} <= set(found)
    assert parameters_of("tiled")["reduce"].values == ("usual", "semaphore")
    assert parameters_of("tiled_tma")["reduce"].values == ("usual", "kernel")
    assert "kpack" not in parameters_of("tiled_tma")
    assert all("kpack" in parameters_of(PLACES[stem][0]) for stem, traits in FORMS.items() if not traits.needs)


def test_numbers_of_configs() -> None:
    """Every parameter that is a number, those at their neutral values too: expressions may be in terms of all."""
    numbers = numbers_of(Config("warp_specialized", 64, 48, 64, cluster_k=2, swapped=1))
    assert (numbers["BLOCK_SIZE_N"], numbers["cluster_k"], numbers["swapped"], numbers["realigned"]) == (48, 2, 1, 0)
    assert "cluster" not in numbers


def test_sides_of_a_tile_by_form() -> None:
    """wgmma's 64 rows go along M, or with swapped operands along N; what is left is the width."""
    assert sides(Config("warp_specialized", 128, 48, 64)) == (128, 48)
    assert sides(Config("warp_specialized", 48, 128, 64, swapped=1)) == (128, 48)


def test_programs_that_share_k() -> None:
    """Splits, and programs of a cluster along K."""
    assert k_shares(Config("tiled", 64, 64, 64, SPLIT_K=5)) == 5
    assert k_shares(Config("warp_specialized", 48, 64, 64, cluster_k=3, swapped=1)) == 3
    assert k_shares(Config("warp_specialized", 64, 64, 64, cluster="2x1")) == 1


@pytest.mark.parametrize(
    ("stem", "field", "good", "bad"),
    [
        ("tiled", "BLOCK_SIZE_M", 16, 8),
        ("tiled", "BLOCK_SIZE_N", 64, 48),
        ("gemv", "BLOCK_SIZE_M", 1, 0),
        ("gemv", "BLOCK_SIZE_K", 8192, 16384),
        ("tiled", "BLOCK_SIZE_K", 1024, 2048),
        ("tiled_swapped", "BLOCK_SIZE_M", 8, 4),
        ("warp_specialized", "BLOCK_SIZE_N", 16, 8),
        ("warp_specialized", "BLOCK_SIZE_N", 160, 24),
        ("warp_specialized", "BLOCK_SIZE_N", 256, 272),
        ("warp_specialized", "BLOCK_SIZE_M", 128, 160),
        ("warp_specialized", "BLOCK_SIZE_K", 256, 512),
        ("warp_specialized_swapped", "BLOCK_SIZE_M", 8, 4),
        ("warp_specialized_swapped", "BLOCK_SIZE_M", 104, 100),
        ("warp_specialized_swapped", "BLOCK_SIZE_M", 256, 264),
        ("warp_specialized_swapped", "BLOCK_SIZE_N", 128, 104),
        ("warp_specialized_swapped", "BLOCK_SIZE_K", 64, 32),
        ("cute_cooperative", "BLOCK_SIZE_M", 192, 160),
        ("cute_cooperative_swapped", "BLOCK_SIZE_N", 192, 160),
        ("cute_cooperative", "BLOCK_SIZE_K", 128, 256),
        ("cute_ping_pong", "BLOCK_SIZE_M", 128, 256),
    ],
)
def test_blocks_by_form(stem: str, field: str, good: int, bad: int) -> None:
    """At each form's border one block size is taken and the other refused with a reason."""
    language = FAMILIES[PLACES[stem][0]].language
    assert block_problem(FORMS[stem], field, good, language) == ""
    assert str(bad) in block_problem(FORMS[stem], field, bad, language)


@pytest.mark.parametrize(
    ("stem", "field", "value", "message"),
    [
        ("warp_specialized", "BLOCK_SIZE_N", 24, "24 is not a multiple of 16 up to 256"),
        ("warp_specialized", "BLOCK_SIZE_N", 512, "512 is not a multiple of 16 up to 256"),
        ("warp_specialized", "BLOCK_SIZE_M", 96, "96 is not a power of two, which Triton needs"),
        ("warp_specialized_swapped", "BLOCK_SIZE_M", 20, "20 is not a multiple of 8 up to 256"),
        ("warp_specialized_swapped", "BLOCK_SIZE_N", 96, "96 is not a power of two, which Triton needs"),
        ("warp_specialized", "BLOCK_SIZE_K", 256, ""),
        (
            *("warp_specialized", "BLOCK_SIZE_K", 32),
            "32 is not 64, 128 or 256: one, two or four rows of the ring, which hold 64 16-bit elements each",
        ),
        ("warp_specialized", "BLOCK_SIZE_M", 2048, "2048 is not from 16 to 1024"),
    ],
)
def test_reasons(stem: str, field: str, value: int, message: str) -> None:
    """The reason says what the value would have to be."""
    assert block_problem(FORMS[stem], field, value, "triton") == message


@pytest.mark.parametrize(("language", "bad"), [("triton", (0, 3, 12)), ("cute", (0,))])
def test_warps(language: str, bad: tuple[int, ...]) -> None:
    """Of Triton powers of two; of CuTe DSL what fits the tile, which the family says."""
    assert [value for value in range(17) if value in (0, 3, 12) and warps_problem(language, value)] == list(bad)


# Triton's option, by a number in a config's name.
REGISTERS = Parameter("most_registers", "mR", (0, 64, 128), "registers that a thread may have", 0)


def _capped(base: KernelTraits, stem: str) -> KernelTraits:
    def call(product: Product, variant: Variant) -> Call:
        made = base.call(product, variant)
        options = (*made.kernels[0].options, ("maxnreg", name(REGISTERS.name)))
        return replace(made, kernels=(replace(made.kernels[0], options=options), *made.kernels[1:]))

    return replace(base, stem=stem, call=call, places_loads=False)


_FORMS = (_capped(FORMS["tiled"], "tiled_capped"), _capped(FORMS["tiled_swapped"], "tiled_capped_swapped"))


def _form(choice: Choice) -> KernelTraits | str:
    return _FORMS[int(choice["swapped"])]


@pytest.fixture
def outside() -> Iterator[str]:
    """A family of someone's own with a parameter that no other has, which is gone after the test."""
    known = PARAMETERS._own
    catalogue.add(Family("tiled_capped", _form, (REGISTERS, parameter.SWAPPED)))
    yield "tiled_capped"
    catalogue.add(FAMILIES.pop("tiled_capped"))
    del FAMILIES["tiled_capped"]
    PARAMETERS._own = known
    PARAMETERS._update()


def test_a_family_from_outside_has_a_parameter_of_its_own(outside: str, tmp_path: Path) -> None:
    """Names, values, spaces, pruning, binaries and what is compiled follow from its declaration."""
    plain, capped = Config(outside, 64, 64, 64), Config(outside, 64, 64, 64, most_registers=128)
    assert (plain.name, capped.name) == (f"{outside}_{'BM64_BN64_BK64_GM1_SK1_nW4_nS2'}", f"{plain.name}_mR128")
    assert [Config.parse(config.name) for config in (plain, capped)] == [plain, capped]
    assert capped.most_registers == 128
    assert plain.most_registers == Config("tiled", 64, 64, 64).most_registers == 0
    assert traits_of(plain) is traits_of(capped)
    assert [traits.stem for traits in all_traits_of(outside).values()] == ["tiled_capped", "tiled_capped_swapped"]
    assert list(parameters_of(outside))[-2:] == ["swapped", "most_registers"]
    assert values_problem(capped.with_values(most_registers=65)) == "most_registers 65 is not one of 0, 64, 128"
    assert values_problem(Config("tiled", 64, 64, 64, most_registers=64)) == "tiled has no parameter most_registers"

    file = tmp_path / "capped.yaml"
    core = "BLOCK_SIZE_M: [64], BLOCK_SIZE_N: [64], BLOCK_SIZE_K: [64], GROUP_SIZE_M: [1], SPLIT_K: [1]"
    rest = "num_warps: [4], num_stages: [2], most_registers: [0, 128]"
    file.write_text(f"archs: [sm_90]\nops: [a16w16]\nfamilies:\n  - {{family: {outside}, {core}, {rest}}}\nrules: []\n")
    assert prune(read_space(file), PROBLEM, H200).kept == [plain, capped]

    assert binary_name(capped) == f"{binary_name(plain)}_mR128"
    module = generate(PROBLEM, [plain, capped], "sm_90")
    op = get_op(PROBLEM.op)
    specs = [kernel_specs(PROBLEM, config, op, module.source_sha256, "sm_90")[0] for config in (plain, capped)]
    assert [dict(spec.options)["maxnreg"] for spec in specs] == [0, 128]
    assert specs[0].function == specs[1].function


def test_a_family_may_be_made_anew(outside: str) -> None:
    """What was known of its forms is forgotten."""
    config = Config(outside, 64, 64, 64)
    assert traits_of(config).stem == outside
    catalogue.add(replace(FAMILIES[outside], traits=replace(traits_of(config), stem="another"), parameters=()))
    assert traits_of(config).stem == "another"
    assert values_problem(config.with_values(most_registers=64)) == f"{outside} has no parameter most_registers"


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (Parameter("swapped", "sw", (0, 1), "something else", 0), "there is another parameter swapped already"),
        (Parameter("depth", "nS", (1, 2), "something else", 1), "is 'nS' in config names, as another parameter is"),
        (Parameter("order", "", ("rows", "ping_pong"), "something else", "rows"), "is 'ping_pong' in config names"),
        (Parameter("depth", "dp", (1, 2), "something"), "parameter depth has no neutral value"),
    ],
)
def test_parameters_that_cannot_be_declared(declared: Parameter, message: str) -> None:
    """Names have one reading, and configs of other families a value."""
    before = dict(PARAMETERS.by_name)
    with pytest.raises(InputError, match=message):
        Family("tiled_other", FORMS["tiled"], (declared,))
    assert PARAMETERS.by_name == before
