"""Tests of genkern.space.space: the shipped files, the format's checks, and enumeration."""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from long_tests import LONG
from space_configs import configs_of

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import known_archs
from genkern.space.space import SHIPPED_SPACES, load_space, read_space, shipped_names

GOOD = """\
archs: [sm_90]
ops: [a16w16]
families:
  - family: tiled
    BLOCK_SIZE_M: [64, 128]
    BLOCK_SIZE_N: [64]
    BLOCK_SIZE_K: [32]
    GROUP_SIZE_M: [1, 8]
    SPLIT_K: [1, 2]
    num_warps: [4]
    num_stages: [3]
rules: [split_k_short]
"""


SPACES = {name: read_space(SHIPPED_SPACES / f"{name}.yaml") for name in shipped_names()}
# What is enumerated to its end; `make test-long` does all.
FEW = [name for name, space in SPACES.items() if LONG or space.size <= 150_000]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write a space file and return its path."""

    def write_text(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write_text


@pytest.mark.parametrize("arch", known_archs())
@pytest.mark.parametrize("op", ["a16w16", "a8w8"])
def test_every_arch_has_one_default(arch: str, op: str) -> None:
    """Every arch of the GPU table has exactly one default space for every op."""
    defaults = [space for space in SPACES.values() if space.default and arch in space.archs and op in space.ops]
    assert [space.name for space in defaults] == [load_space(None, arch, op).name]


def test_amd_is_the_full_space_of_v34() -> None:
    """amd.yaml is tune_gemm v3.4's space: 132,000 configs, all distinct, with the values of its ranges."""
    space = load_space("amd", "gfx942", "a16w16")
    configs = set(configs_of(space))
    assert space.size == len(configs) == 132_000
    blocks = (16, 32, 64, 128, 256)
    expected = {
        Config("tiled", *mnk, group, split, warps, 2, matrix_instr_nonkdim=nonkdim, kpack=kpack)
        for mnk in itertools.product(blocks, repeat=3)
        for group, split, warps, nonkdim, kpack in itertools.product(
            (1, 2, 4, 8, 16, 32), (1, 2, 4, 5, 6, 8, 10, 12, 16, 18, 24), (1, 2, 4, 8), (16, 32), (1, 2)
        )
    }
    assert configs == expected


def test_amd_v2_is_the_full_space_of_v2() -> None:
    """amd_v2.yaml holds v2's 16,896 configs once for each of the two MFMA sizes that v2 chose between."""
    assert load_space("amd_v2", "gfx942", "a16w16").size == 2 * 16_896


def test_full_space_fits_in_memory() -> None:
    """All 132,000 configs as a list take less than 200 MB."""
    tracemalloc.start()
    configs = list(configs_of(load_space("amd", "gfx942", "a16w16")))
    used_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(configs) == 132_000
    assert used_bytes < 200e6
    assert len(configs) * sys.getsizeof(configs[0]) < 200e6


@pytest.mark.parametrize("name", FEW)
def test_shipped_spaces_yield_as_many_as_they_say(name: str) -> None:
    """To the last config of the last family."""
    assert sum(1 for _ in configs_of(SPACES[name])) == SPACES[name].size


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_spaces_enumerate_distinct_valid_configs(name: str) -> None:
    """A sample of each family's configs is distinct, and their names round-trip."""
    space = SPACES[name]
    each = (replace(space, families=(family,)) for family in space.families)
    sample = [config for alone in each for config in itertools.islice(configs_of(alone), 0, 10_000, 97)]
    assert len(set(sample)) == len(sample)
    assert {config.family for config in sample} == {family.family for family in space.families}
    assert all(Config.parse(config.name) == config for config in sample)


def test_enumeration_is_lazy(write: Callable[[str], str]) -> None:
    """The first config of a space of millions comes without the others."""
    many = ", ".join(str(number) for number in range(1, 1001))
    text = GOOD.replace("GROUP_SIZE_M: [1, 8]", f"GROUP_SIZE_M: [{many}]").replace("[1, 2]", f"[{many}]")
    space = load_space(write(text), "sm_90", "a16w16")
    assert space.size == 2_000_000
    tracemalloc.start()
    first = list(itertools.islice(configs_of(space), 3))
    used_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [config.GROUP_SIZE_M for config in first] == [1, 2, 3]
    assert used_bytes < 1e6


def test_configs_that_share_a_binary_are_neighbours(write: Callable[[str], str]) -> None:
    """GROUP_SIZE_M varies fastest, then SPLIT_K, then the compiled-in fields."""
    space = load_space(write(GOOD), "sm_90", "a16w16")
    order = [(config.BLOCK_SIZE_M, config.SPLIT_K, config.GROUP_SIZE_M) for config in configs_of(space)]
    assert order == list(itertools.product((64, 128), (1, 2), (1, 8)))


def test_a_users_file_is_read_like_a_shipped_one(write: Callable[[str], str]) -> None:
    """A file given by path yields its configs, with AMD's fields neutral on NVIDIA."""
    space = load_space(write(GOOD), "sm_90", "a16w16")
    assert (space.name, space.rules, space.size) == ("mine", ("split_k_short",), 8)
    assert {(c.waves_per_eu, c.matrix_instr_nonkdim, c.kpack, c.schedule_hint) for c in configs_of(space)} == {
        (0, 0, 0, "none")
    }


def test_arch_may_carry_feature_flags() -> None:
    """`gfx942:sramecc+:xnack-`, as ROCm prints it, finds gfx942's space."""
    assert load_space(None, "gfx942:sramecc+:xnack-", "a16w16").name == "amd_cdna"


MALFORMED = {
    "unknown family": (GOOD.replace("family: tiled", "family: tilde"), "unknown family 'tilde': did you mean 'tiled'?"),
    "family is a list": (GOOD.replace("family: tiled", "family: [tiled]"), "unknown family a list"),
    "unknown field": (GOOD.replace("num_warps:", "num_warp:"), "unknown field 'num_warp': did you mean 'num_warps'?"),
    "unknown rule": (GOOD.replace("[split_k_short]", "[split_k_shorts]"), "did you mean 'split_k_short'?"),
    "unknown op": (GOOD.replace("[a16w16]", "[a16w61]"), "unknown op 'a16w61': did you mean 'a16w16'?"),
    "unknown key": (GOOD + "defaults: true\n", "unknown key 'defaults': did you mean 'default'?"),
    "unknown number key": (GOOD + "7: true\n", "unknown key 7: use one of"),
    "missing key": (GOOD.replace("rules: [split_k_short]\n", ""), "key 'rules' is missing"),
    "missing field": (GOOD.replace("    num_stages: [3]\n", ""), "field 'num_stages' is missing"),
    "amd field": (GOOD.replace("num_stages", "kpack: [1]\n    num_stages"), "'kpack' is for AMD targets only"),
    "key twice": (GOOD + "rules: []\n", "key 'rules' is given twice"),
    "field twice": (GOOD.replace("    num_stages", "    num_warps: [8]\n    num_stages"), "'num_warps' is given twice"),
    "value twice": (GOOD.replace("[64, 128]", "[64, 128, 64]"), "BLOCK_SIZE_M: 64 is listed twice"),
    "scalar range": (GOOD.replace("[64, 128]", "64"), "BLOCK_SIZE_M = 64 is not a list of values"),
    "empty range": (GOOD.replace("[64, 128]", "[]"), "BLOCK_SIZE_M is empty: list at least one value"),
    "one value": (GOOD.replace("[64, 128]", "64"), "BLOCK_SIZE_M = 64 is not a list of values"),
    "text value": (GOOD.replace("[64, 128]", "[64, big]"), "'big' is not a whole number"),
    "boolean value": (GOOD.replace("[1, 8]", "[true]"), "True is not a whole number"),
    "float value": (GOOD.replace("[1, 8]", "[1.5]"), "1.5 is not a whole number"),
    "not a power of two": (GOOD.replace("[64, 128]", "[96]"), "96 is not a power of two"),
    "too small": (GOOD.replace("[64, 128]", "[8]"), "8 is not from 16 to 1024"),
    "zero group": (GOOD.replace("[1, 8]", "[0]"), "0 is not a whole number from 1"),
    "huge value": (GOOD.replace("[1, 8]", "[" + "9" * 90 + "]"), "is not a whole number from 1"),
    "number too long": (GOOD.replace("[1, 8]", "[" + "9" * 9000 + "]"), "mine.yaml"),
    "nested value": (GOOD.replace("[1, 8]", "[[1]]"), "a list is not a whole number"),
    "list in itself": (GOOD.replace("[1, 8]", "&a [1, *a]"), "a list is not a whole number"),
    "tma splits k": (GOOD.replace("tiled", "persistent_tma"), "SPLIT_K must be [1]"),
    "bad arch": (GOOD.replace("sm_90", "hopper"), "'hopper' is not an architecture"),
    "mixed archs": (GOOD.replace("[sm_90]", "[sm_90, gfx942]"), "need separate spaces"),
    "arch number": (GOOD.replace("[sm_90]", "[90]"), "archs: 90 is not a name"),
    "no archs": (GOOD.replace("[sm_90]", "[]"), "archs is empty"),
    "rules is text": (GOOD.replace("[split_k_short]", "split_k_short"), "'split_k_short' is not a list of names"),
    "families is a mapping": ("archs: [sm_90]\nops: [a16w16]\nrules: []\nfamilies: {}\n", "families is not a list"),
    "entry is text": ("archs: [sm_90]\nops: [a16w16]\nrules: []\nfamilies: [tiled]\n", "entry 1 is not a mapping"),
    "default is text": (GOOD + "default: maybe\n", "default = 'maybe' is not true or false"),
    "list at the top": ("- family: tiled\n", "expected a mapping"),
    "empty file": ("", "expected a mapping"),
    "not YAML": ("archs: [sm_90", "not valid YAML"),
    "control character": ("archs: \x07", "not valid YAML"),
    "list as key": ("[a, b]: 1\n", "not valid YAML"),
    "bad date": (GOOD.replace("[1, 8]", "[2024-13-45]"), "not valid YAML"),
    "deep nesting": ("archs: " + "[" * 5000, "not valid YAML"),
    "python object": (GOOD.replace("[1, 8]", "!!python/object/apply:os.getcwd []"), "not valid YAML"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_give_one_line(case: str, write: Callable[[str], str]) -> None:
    """Every malformed file is an InputError of one line, of bounded length, that names the file and the trouble."""
    text, expected = MALFORMED[case]
    with pytest.raises(InputError) as caught:
        load_space(write(text), "sm_90", "a16w16")
    message = str(caught.value)
    assert "mine.yaml: " in message
    assert expected in message
    assert "\n" not in message
    assert len(message) < 1200


def test_overlapping_entries_are_refused(write: Callable[[str], str]) -> None:
    """Two entries of one family that share a config would measure it twice."""
    entry = yaml.safe_load(GOOD)["families"][0]
    document = yaml.safe_load(GOOD)
    document["families"] = [entry, entry | {"BLOCK_SIZE_M": [128, 256]}]
    with pytest.raises(InputError, match=r"entries 1 and 2 \(tiled\)"):
        load_space(write(yaml.safe_dump(document)), "sm_90", "a16w16")
    document["families"] = [entry, entry | {"BLOCK_SIZE_M": [256]}]
    assert load_space(write(yaml.safe_dump(document)), "sm_90", "a16w16").size == 12


def test_a_space_of_billions_is_refused(write: Callable[[str], str]) -> None:
    """A space that could not even be enumerated is refused with its size."""
    many = ", ".join(str(number) for number in range(1, 4001))
    text = GOOD.replace("GROUP_SIZE_M: [1, 8]", f"GROUP_SIZE_M: [{many}]").replace("[1, 2]", f"[{many}]")
    with pytest.raises(InputError, match="32,000,000 configs"):
        load_space(write(text), "sm_90", "a16w16")


def test_no_value_is_executed(write: Callable[[str], str], tmp_path: Path) -> None:
    """Text that would be code to Python, the shell or YAML's Python tags runs nowhere."""
    marker = tmp_path / "executed"
    code = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    attacks = [
        GOOD.replace("[1, 8]", f'["{code}"]'),
        GOOD.replace("[split_k_short]", f'["{code}"]'),
        GOOD.replace("family: tiled", f'family: "{code}"'),
        GOOD.replace("[1, 8]", f'!!python/object/apply:os.system ["touch {marker}"]'),
        GOOD.replace("archs: [sm_90]", f'archs: !!python/object/apply:eval ["{code}"]'),
        f'!!python/object/apply:exec ["{code}"]\n',
    ]
    for text in attacks:
        with pytest.raises(InputError):
            load_space(write(text), "sm_90", "a16w16")
    assert not marker.exists()


def test_amd_fields_must_survive(write: Callable[[str], str]) -> None:
    """A schedule_hint that no name can hold and other matrix sizes are refused; what is taken comes back from names."""
    amd = GOOD.replace("sm_90", "gfx942") + ""
    fields = "waves_per_eu: [0]\n    matrix_instr_nonkdim: [16]\n    kpack: [1]\n    schedule_hint: [{}]\nrules"
    with pytest.raises(InputError, match="'a__b' is not words of letters"):
        load_space(write(amd.replace("rules", "    " + fields.format("a__b"))), "gfx942", "a16w16")
    odd = amd.replace("rules", "    " + fields.format("none").replace("16", "7"))
    with pytest.raises(InputError, match=r"matrix_instr_nonkdim: 7 .*0, 4, 16, 32"):
        load_space(write(odd), "gfx942", "a16w16")
    hints = "attention, memory-bound-attention, ck_v3"
    space = load_space(write(amd.replace("rules", "    " + fields.format(hints))), "gfx942", "a16w16")
    assert all(Config.parse(config.name) == config for config in configs_of(space))


def test_fields_that_may_be_left_out(write: Callable[[str], str]) -> None:
    """xcd_remap (AMD) and cache_modifier are neutral unless listed, and refused where a family does not take them."""
    space = load_space(write(GOOD), "sm_90", "a16w16")
    assert {(c.xcd_remap, c.cache_modifier) for c in configs_of(space)} == {(0, "none")}
    listed = GOOD.replace("num_stages: [3]", "num_stages: [3]\n    cache_modifier: [none, .cg]")
    space = load_space(write(listed), "sm_90", "a16w16")
    assert {c.cache_modifier for c in configs_of(space)} == {"none", ".cg"}
    assert space.size == 16
    for text, expected in [
        (listed.replace(".cg", ".cv"), "cache_modifier: '.cv' is not one of none, .ca, .cg, .cs"),
        (listed.replace(".cg", "7"), "cache_modifier: 7 is not one of none"),
        (listed.replace("tiled", "persistent_tma").replace("[1, 2]", "[1]"), "must be \\[none\\]"),
        (GOOD.replace("num_stages: [3]", "num_stages: [3]\n    xcd_remap: [0, 1]"), "for AMD targets only"),
    ]:
        with pytest.raises(InputError, match=expected):
            load_space(write(text), "sm_90", "a16w16")


def test_tma_on_amd_is_refused(write: Callable[[str], str]) -> None:
    """AMD targets have no TMA, so a space file cannot ask for it."""
    text = GOOD.replace("sm_90", "gfx942").replace("tiled", "persistent_tma")
    with pytest.raises(InputError, match="needs TMA, which gfx942 do"):
        load_space(write(text), "gfx942", "a16w16")


def test_wrong_target_or_op(write: Callable[[str], str]) -> None:
    """A space that is not for the arch or the op says what it is for."""
    path = write(GOOD)
    with pytest.raises(InputError, match="is for sm_90, not for gfx942"):
        load_space(path, "gfx942", "a16w16")
    with pytest.raises(InputError, match="is for a16w16, not for a8w8"):
        load_space(path, "sm_90", "a8w8")
    with pytest.raises(InputError, match=r"a16w16 .*gfx000"):
        load_space(None, "gfx000", "a16w16")


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    """A missing file, a folder and a file that is not text are InputErrors; the missing one lists the shipped."""
    with pytest.raises(InputError, match="nvidia_sm90"):
        load_space(str(tmp_path / "none.yaml"), "sm_90", "a16w16")
    with pytest.raises(InputError, match="no such space file"):
        load_space(str(tmp_path), "sm_90", "a16w16")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00archs")
    with pytest.raises(InputError, match="cannot read"):
        load_space(str(binary), "sm_90", "a16w16")
