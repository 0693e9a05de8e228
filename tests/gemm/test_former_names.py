"""Tests of genkern.gemm.former_names: what files, journals and bundles say in names from before is read as of today."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from shipped_rows import RESULTS, rows_in, shipped_rows

from genkern.errors import InputError
from genkern.formats.config_entry import config_of, parse_config
from genkern.gemm.config import Config, name_today, today
from genkern.gemm.former_names import FORMER, GONE
from genkern.kernels.catalogue import FAMILIES, form_of, formed, forms_of
from genkern.kernels.contract.form import Form
from genkern.timing.libraries import is_call

FILES = sorted((RESULTS / "nvidia_h200" / "older").glob("*.yaml"))
CORE = "_BM64_BN64_BK64_GM4_SK1_nW8_nS4"
# What becomes of a name: the family and, of a form, everything that its name said.
EXAMPLES = {
    "tiled_semaphore": "tiled{}_semaphore",
    "tiled_swapped": "tiled{}_semaphore_swapped",
    "split_tma": "tiled_tma{}_kernel",
    "tiled_tma_swapped": "tiled_tma{}_swapped",
    "persistent_tma_specialized": "persistent_tma{}_specialized",
    "warp_specialized_swapped": "warp_specialized{}_swapped",
    "warp_specialized_swapped_cluster4": "warp_specialized{}_ck4_swapped",
    "warp_specialized_1x2": "warp_specialized{}_cl1x2",
    "warp_specialized_swapped_2x1": "warp_specialized{}_cl2x1_swapped",
    "realigned_split_tma": "tiled_tma{}_kernel_realigned",
    "realigned_warp_specialized_swapped": "warp_specialized{}_swapped_realigned",
    "cute_cooperative": "cute_wgmma{}",
    "cute_ping_pong": "cute_wgmma{}_ping_pong",
    "cute_ping_pong_swapped_1x2": "cute_wgmma{}_ping_pong_cl1x2_swapped",
    "cute_cooperative_4x2_direct": "cute_wgmma{}_cl4x2_direct",
    "cute_tcgen05_2cta_2x1": "cute_tcgen05{}_cl2x1_cta2",
    "cute_tcgen05_direct": "cute_tcgen05{}_direct",
}


@pytest.mark.parametrize("former", FORMER)
def test_names_of_before_are_those_of_today(former: str) -> None:
    """A name with it is read as a config of a family and parameters that there are, whose own name comes back."""
    config = Config.parse(f"{former}{CORE}")
    assert config.family in FAMILIES
    assert isinstance(formed(config.family, config.others), Form)
    assert (config.family, config.others) == (FORMER[former][0], today(Config(former, 64, 64, 64)).others)
    assert Config.parse(config.name) == config
    assert name_today(f"{former}{CORE}") == config.name == name_today(config.name)
    # What comes behind the core of a name stays: AMD's options, say.
    more = Config.parse(f"{former}{CORE}_xcd1_EU2_mfma16_kP2_schedck_v3")
    assert more == config.having(xcd_remap=1, waves_per_eu=2, matrix_instr_nonkdim=16, kpack=2, schedule_hint="ck_v3")


def test_every_form_but_those_of_before_has_its_name() -> None:
    """What is called after is what the family was called: the table is complete, and has nothing twice."""
    forms = {(family, others): form for family in FAMILIES for others, form in forms_of(family).items()}
    named = {form.stem: place for place, form in forms.items()}
    assert len(named) == len(forms)
    for stem, place in named.items():
        assert stem in FORMER or stem in FAMILIES
        config = Config.parse(f"{stem}{CORE}")
        assert (config.family, config.others) == place
    # cute_split was a family of its own, and is what stores from registers with SPLIT_K above 1.
    assert {name for name in FORMER if name not in named} == {name for name in FORMER if name.startswith("cute_split")}


@pytest.mark.parametrize("former", EXAMPLES)
def test_examples(former: str) -> None:
    """As they are written today."""
    assert name_today(f"{former}{CORE}") == EXAMPLES[former].format(CORE)


def test_other_names_stay() -> None:
    """Those of today, and those of a library's calls."""
    for name in (f"tiled{CORE}", f"mine{CORE}_swapped", "vendor", "torch_BMM", ""):
        assert name_today(name) == name
    assert today(Config("mine", 64, 64, 64, swapped=1)) == Config("mine", 64, 64, 64, swapped=1)


def test_a_name_of_before_that_says_more() -> None:
    """Kernels of before with a parameter of today are what both say together."""
    assert Config.parse(f"tiled_tma_swapped{CORE}_realigned").others == (("swapped", 1), ("realigned", 1))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_shipped_row_is_read(file: Path) -> None:
    """Its winner and its runner-up: a form that there is, and the tile that the row says."""
    said = yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    rows = rows_in(file)
    assert len(rows) == len(said) > 0
    for row, values in zip(rows, said, strict=True):
        if "config" in values and row.config is not None:
            assert row.config.name == name_today(values["config"])
            assert row.config.family in FAMILIES
            assert form_of(row.config)
            for field in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "SPLIT_K", "num_stages"):
                assert getattr(row.config, field) == values[field]
        if (name := values.get("runner_up")) and not is_call(name):
            assert row.runner_up == name_today(name)
            assert form_of(parse_config(name)) is form_of(parse_config(row.runner_up))


def test_the_shipped_rows_have_both_kinds_of_names() -> None:
    """There are rows at all, with winners of most families."""
    assert FILES
    rows = shipped_rows("nvidia_h200")
    assert len(rows) > 600
    families = {row.config.family for row in rows if row.config is not None}
    assert families < FAMILIES.keys()
    assert len(families) >= 2 / 3 * len(FAMILIES)


@pytest.mark.parametrize("family", GONE)
def test_families_that_are_no_more(family: str) -> None:
    """Are refused in one line that says so and what to do, in a row and by name."""
    assert family not in FAMILIES
    assert family not in FORMER
    row = {"family": family, "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64}
    for ask in (lambda: config_of(row), lambda: parse_config(f"{family}{CORE}")):
        message = "is not part of genkern any more; remove this line and tune its size again"
        with pytest.raises(InputError, match=message) as caught:
            ask()
        assert str(caught.value).startswith(f"family {family} ")
        assert "\n" not in str(caught.value)
    # A journal that names one, as a runner-up, say, is read all the same.
    assert name_today(f"{family}{CORE}") == f"{family}{CORE}"


def test_a_row_may_say_either_name() -> None:
    """Its values as of before or of today, with a config's name in either; another one is a contradiction."""
    core = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 4, "num_warps": 8}
    config = Config("tiled", 64, 64, 64, 4, 1, 8, 4, reduce="semaphore", swapped=1)
    before = {**core, "num_stages": 4, "SPLIT_K": 1, "family": "tiled_swapped"}
    of_today = {**before, "family": "tiled", "reduce": "semaphore", "swapped": 1}
    for values in (before, of_today):
        for name in (f"tiled_swapped{CORE}", config.name):
            if values is before or name == config.name:
                assert config_of({**values, "config": name}) == config
        with pytest.raises(InputError, match="correct one or drop config"):
            config_of({**values, "config": f"tiled{CORE}"})
