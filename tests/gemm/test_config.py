"""Tests of genkern.gemm.config: a name stands for one config, and one config only."""

from __future__ import annotations

import copy
import dataclasses
import keyword
import pickle
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.errors import InputError
from genkern.gemm.config import Config, has_amd_options
from genkern.gemm.parameter import AMD_OPTIONS, CORE, PARAMETERS, Parameter

_LETTERS = string.ascii_letters + string.digits
_WORDS = st.text(_LETTERS, min_size=1, max_size=6)
FAMILIES = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
FAMILIES |= st.sampled_from(["tiled", "persistent_tma", "cute_wgmma"])
# Hints as backends have or had them, names that look like parts of a config's name, and any other.
HINTS = (
    st.sampled_from(["none", "attention", "ck_v3", "llvm-iglp-0", "local-prefetch", "a_GM1_SK1", "x_BM1_BN1_BK1"])
    | st.builds(lambda head, tail: head + tail, st.sampled_from(string.ascii_letters), _WORDS)
    | st.builds(lambda head, sep, tail: f"h{head}{sep}{tail}", _WORDS, st.sampled_from("_-"), _WORDS)
)
NUMBERS = st.integers(0, 2**31 - 1) | st.sampled_from([0, 1, 16, 64])


def values_of(parameter: Parameter) -> st.SearchStrategy[int | str]:
    """What a config may have: numbers beyond what the parameter may be are for legality to refuse."""
    if parameter.is_flag or (parameter.is_word and parameter.values):
        return st.sampled_from(parameter.values)
    return HINTS if parameter.is_word else NUMBERS


CONFIGS = st.builds(Config, family=FAMILIES, **{each.name: values_of(each) for each in PARAMETERS.all})
CHANGES = st.sampled_from(PARAMETERS.all).flatmap(lambda each: st.tuples(st.just(each.name), values_of(each)))


@given(CONFIGS)
def test_name_round_trips(config: Config) -> None:
    """Config.parse(config.name) == config, and the name is an ASCII Python identifier."""
    assert Config.parse(config.name) == config
    assert config.name.isidentifier()
    assert config.name.isascii()
    assert not keyword.iskeyword(config.name)


@given(CONFIGS, CONFIGS)
def test_names_are_distinct(one: Config, other: Config) -> None:
    """Equal names mean equal configs."""
    assert (one.name == other.name) == (one == other)


@given(CONFIGS, CHANGES)
def test_every_parameter_is_in_the_name(config: Config, change: tuple[str, int | str]) -> None:
    """Changing any one changes the name, whatever the others are; however it is changed."""
    parameter, value = change
    changed = dataclasses.replace(config, **{parameter: value})  # type: ignore[arg-type]
    assert (changed.name == config.name) == (value == getattr(config, parameter))
    assert getattr(changed, parameter) == value
    assert changed == config.with_values(**{parameter: value})


@given(CONFIGS)
def test_values_make_the_config(config: Config) -> None:
    """By name, in any order, the neutral ones said or left out; a name has them in the order of parameters."""
    assert Config(config.family, **config.values) == config  # type: ignore[arg-type]
    every = {each.name: getattr(config, each.name) for each in reversed(PARAMETERS.all)}
    assert Config(config.family, **every) == config
    assert list(config.values) == [name for name in PARAMETERS.by_name if name in config.values]
    assert dict(config.others) == {
        name: value
        for name, value in every.items()
        if value != PARAMETERS.neutral.get(name) and name not in {each.name for each in CORE}
    }


def test_names_as_documented() -> None:
    """The names that results files hold: what is neutral is left out, AMD's options are there all or none."""
    config = Config("tiled", 128, 256, 64, 8, 1, 8, 3)
    assert config.name == "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3"
    assert not has_amd_options(config)
    for field, value, tail in [
        ("waves_per_eu", 2, "EU2_mfma0_kP0_schednone"),
        ("matrix_instr_nonkdim", 16, "EU0_mfma16_kP0_schednone"),
        ("kpack", 2, "EU0_mfma0_kP2_schednone"),
        ("schedule_hint", "ck_v3", "EU0_mfma0_kP0_schedck_v3"),
        ("schedule_hint", "llvm-iglp-0", "EU0_mfma0_kP0_schedllvm__iglp__0"),
    ]:
        amd = dataclasses.replace(config, **{field: value})  # type: ignore[arg-type]
        assert has_amd_options(amd)
        assert amd.name == f"tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_{tail}"
    assert tuple(PARAMETERS.by_name)[-4:] == tuple(each.name for each in AMD_OPTIONS)
    for fields, tail in [
        ({"xcd_remap": 1}, "xcd1"),
        ({"cache_modifier": ".cg"}, "cmcg"),
        ({"xcd_remap": 1, "cache_modifier": ".ca", "kpack": 2}, "xcd1_cmca_EU0_mfma0_kP2_schednone"),
        ({"swapped": 1}, "swapped"),
        ({"realigned": 1, "swapped": 1, "reduce": "kernel"}, "kernel_swapped_realigned"),
        ({"cluster_k": 4, "swapped": 1}, "ck4_swapped"),
        ({"cluster": "1x2", "schedule": "ping_pong", "swapped": 1}, "ping_pong_cl1x2_swapped"),
        ({"cluster": "2x1", "ctas": 2, "store": "direct"}, "cl2x1_cta2_direct"),
        ({"specialized": 1, "xcd_remap": 1}, "specialized_xcd1"),
    ]:
        placed = dataclasses.replace(config, **fields)  # type: ignore[arg-type]
        assert has_amd_options(placed) is ("kpack" in fields)
        assert placed.name == f"tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_{tail}"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "tiled",
        "vendor",
        "tiled_BM128",
        "tiled_BM128_BN256_BK64",
        "_BM128_BN256_BK64_GM8_SK1_nW8_nS3",
        "Tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3\n",
        " tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3",
        "tiled_BM0128_BN256_BK64_GM8_SK1_nW8_nS3",
        "tiled_BM+128_BN256_BK64_GM8_SK1_nW8_nS3",
        "tiled_BM-128_BN256_BK64_GM8_SK1_nW8_nS3",
        "tiled_BM\uff11\uff12\uff18_BN256_BK64_GM8_SK1_nW8_nS3",
        "tiled_BM128_BM128_BN256_BK64_GM8_SK1_nW8_nS3",
        "tiled_BN256_BM128_BK64_GM8_SK1_nW8_nS3",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_XX1",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_EU2",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_EU0_mfma0_kP0_schednone",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_EU0_mfma16_kP2_sched",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_EU0_mfma16_kP2_sched_a",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_EU0_mfma16_kP2_scheda-b",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_EU0_mfma16_kP2_scheda___b",
        f"tiled_BM{2**31}_BN256_BK64_GM8_SK1_nW8_nS3",
        f"tiled_BM{'9' * 5000}_BN256_BK64_GM8_SK1_nW8_nS3",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_xcd0",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_xcd2",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_cmnone",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_cmcv",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_cmcg_xcd1",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_cl1x1",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_cl3x1",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_ck1",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_usual",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_cooperative",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_swapped1",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_swapped_swapped",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_swapped_kernel",
        "tiled_BM128_BN256_BK64_GM8_SK1_nW8_nS3_1",
        "x; import os_BM128_BN256_BK64_GM8_SK1_nW8_nS3",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    """What no config is named is refused with one line of moderate length."""
    with pytest.raises(InputError) as caught:
        Config.parse(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@given(CONFIGS, st.data())
def test_damaged_names_never_parse_as_another(config: Config, data: st.DataObject) -> None:
    """A name with a character changed is refused, or it is exactly the name of what it parses as."""
    at = data.draw(st.integers(0, len(config.name) - 1))
    damaged = config.name[:at] + data.draw(st.text(_LETTERS + "_- ", max_size=2)) + config.name[at + 1 :]
    try:
        parsed = Config.parse(damaged)
    except InputError:
        return
    assert parsed.name == damaged


@given(st.text(max_size=60) | st.from_regex(re.compile(r"\w+_BM\w+_BN\w+_BK\w+")))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """Nothing but InputError escapes, whatever the text."""
    try:
        parsed = Config.parse(text)
    except InputError:
        return
    assert parsed.name == text


@pytest.mark.parametrize(
    "fields",
    [
        {"family": "Tiled"},
        {"family": ""},
        {"family": "a b"},
        {"family": "1a"},
        {"family": "tiled\n"},
        {"schedule_hint": ""},
        {"schedule_hint": "a__b"},
        {"schedule_hint": "a-_b"},
        {"schedule_hint": "a_"},
        {"schedule_hint": "a,b"},
        {"schedule_hint": "none\n"},
        {"BLOCK_SIZE_M": -1},
        {"kpack": -1},
        {"SPLIT_K": 2**31},
        {"xcd_remap": 2},
        {"xcd_remap": -1},
        {"cache_modifier": "cg"},
        {"cache_modifier": ""},
        {"cache_modifier": ".cv"},
        {"swapped": 2},
        {"swapped": True},
        {"swapped": "1"},
        {"realigned": -1},
        {"schedule": "slow"},
        {"schedule": 1},
        {"cluster": "3x1"},
        {"cluster": (2, 1)},
        {"cluster_k": "2"},
        {"reduce": "atomic"},
        {"prefetch": 1},
        {"others_": 1},
    ],
)
def test_configs_without_a_name_cannot_be_made(fields: dict[str, int | str]) -> None:
    """A config whose name would not be an identifier, or would have two readings, is refused when it is made."""
    with pytest.raises(InputError):
        Config(**{"family": "tiled", "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 16, **fields})  # type: ignore[arg-type]


def test_configs_are_ordered_and_hashable() -> None:
    """Configs sort by their fields in order and serve as keys."""
    small, large = Config("tiled", 16, 64, 64), Config("tiled", 128, 16, 16)
    assert sorted([large, small]) == [small, large]
    assert len({small, large, dataclasses.replace(small)}) == 2


def test_what_a_config_has() -> None:
    """All parameters can be read, those left out at their neutral value; and nothing else."""
    config = Config("warp_specialized", 64, 64, 64, cluster_k=2, swapped=1)
    assert (config.cluster_k, config.swapped, config.realigned, config.cluster, config.kpack) == (2, 1, 0, "1x1", 0)
    assert config.others == (("cluster_k", 2), ("swapped", 1))
    assert config == Config("warp_specialized", 64, 64, 64, others=config.others, reduce="usual")
    assert config.with_values(swapped=0, cluster_k=1).others == ()
    with pytest.raises(AttributeError, match="no parameter 'prefetch'"):
        _ = config.prefetch


def test_configs_survive_pickling_and_copying() -> None:
    """They go to workers and come back."""
    config = Config("tiled", 64, 64, 64, reduce="semaphore", swapped=1)
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)


def test_features_are_of_every_parameter() -> None:
    """A number stands under its parameter's name, neutral ones too; a word is 1, and the others 0."""
    config = Config("cute_wgmma", 128, 64, 64, SPLIT_K=3, cluster="2x1", swapped=1, schedule_hint="a-b")
    seen = config.features
    assert seen["family=cute_wgmma"] == seen["cluster=2x1"] == seen["swapped"] == seen["schedule_hint=a-b"] == 1.0
    assert seen["BLOCK_SIZE_M"] == 128.0
    assert seen["SPLIT_K"] == 3.0
    assert seen["cluster=1x1"] == seen["realigned"] == 0.0
    assert seen["cluster_k"] == 1.0
    assert {name.partition("=")[0] for name in seen} == {"family", *(each.name for each in PARAMETERS.all)}
    assert all(type(value) is float for value in seen.values())


@given(CONFIGS, CONFIGS)
def test_features_tell_configs_apart(one: Config, other: Config) -> None:
    """Configs with the same features are the same."""
    assert (one.features == other.features) == (one == other)
