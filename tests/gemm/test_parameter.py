"""Tests of genkern.gemm.parameter: what a parameter may be called and be, and what names say of all of them."""

from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.parameter import CLUSTER, CLUSTER_K, CORE, PARAMETERS, REDUCE, SWAPPED, Parameter, Vocabulary, pair_of

PREFETCH = Parameter("prefetch", "pf", range(9), "buffers that are asked for ahead", 0)
OTHERS = tuple(each for each in PARAMETERS.all if each not in CORE)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Vocabulary:
    """The vocabulary that configs go by, with what a test declares there until it ends."""
    for name, value in vars(PARAMETERS).items():
        monkeypatch.setattr(PARAMETERS, name, value)
    return PARAMETERS


def test_every_parameter_of_genkerns_is_whole() -> None:
    """A name and a prefix of its own, a meaning, and a neutral value that it may have, but for those of every name."""
    assert len({each.name for each in PARAMETERS.all}) == len(PARAMETERS.all)
    words = [word for each in PARAMETERS.all for word in each.words]
    assert len(set(words)) == len(words)
    for parameter in PARAMETERS.all:
        assert len(parameter.meaning) > 10
        assert (parameter.neutral is None) == (parameter in CORE)
        assert parameter in CORE or not parameter.problem(parameter.neutral)
    assert PARAMETERS.run_time == ("GROUP_SIZE_M", "SPLIT_K")


@pytest.mark.parametrize("parameter", OTHERS, ids=lambda each: each.name)
def test_names_say_each(parameter: Parameter) -> None:
    """Every value that is not neutral, in a part of its own; the neutral one has none."""
    values = parameter.values or ("attention", "llvm-iglp-0", "ck_v3")
    for value in values:
        config = Config("tiled", 64, 64, 64, **{parameter.name: value})  # type: ignore[arg-type]
        assert Config.parse(config.name) == config
        if value == parameter.neutral:
            assert config.name.endswith("_nS2")
        else:
            assert parameter.part(value) in config.name
            part = parameter.part(value).removeprefix("_")
            found = re.fullmatch(parameter.pattern, f"_{part}")
            assert found is not None
            assert parameter.parsed(found[parameter.name]) == value


def test_bounds_are_said() -> None:
    """What a value must be, for the message of whoever reads it."""
    assert PREFETCH.problem(8) == PREFETCH.problem(0) == ""
    for value in (9, -1, "3", True, 2.0, None, [1]):
        assert PREFETCH.problem(value) == "is not a whole number from 0 to 8"
    assert CLUSTER.of("1x1", "2x1").problem("1x2") == "is not one of 1x1, 2x1"
    assert REDUCE.of("kernel").problem("usual") == "is not kernel"
    assert [SWAPPED.problem(value) for value in (0, 1, 2, True)] == ["", "", "is not one of 0, 1", "is not one of 0, 1"]
    assert [pair_of(str(value)) for value in CLUSTER.values[:3]] == [(1, 1), (2, 1), (1, 2)]


def test_one_more_parameter(own: Vocabulary) -> None:
    """Is said in names, between genkern's own and AMD's, wherever a config has it; the others keep their names."""
    before = Config("tiled", 64, 64, 64, swapped=1, kpack=2)
    own.declare(PREFETCH)
    assert before.prefetch == 0
    assert Config.parse(before.name) == before
    config = before.with_values(prefetch=3)
    assert config.name == "tiled_BM64_BN64_BK64_GM1_SK1_nW4_nS2_swapped_pf3_EU0_mfma0_kP2_schednone"
    assert Config.parse(config.name) == config
    assert config.others == (("swapped", 1), ("prefetch", 3), ("kpack", 2))
    assert config.with_values(prefetch=0) == before
    # The same again changes nothing, and a family may have fewer of its values.
    own.declare(PREFETCH)
    own.declare(PREFETCH.of(0, 1))
    assert own.by_name["prefetch"] == PREFETCH


@pytest.mark.parametrize("parameter", [CLUSTER.of("1x1", "3x1"), CLUSTER_K.of(1, 6)])
def test_values_that_nobody_could_read_back(own: Vocabulary, parameter: Parameter) -> None:
    """A family may have fewer values of a known parameter, but no new ones: names and files are read without it."""
    with pytest.raises(InputError, match=parameter.name):
        own.declare(parameter)


def test_the_order_of_files_changes_no_name(own: Vocabulary) -> None:
    """Whoever declares first: names say one's own parameters in the order of the alphabet."""
    early = Parameter("early", "", (0, 1), "a flag", 0)
    own.declare(PREFETCH)
    own.declare(early)
    assert Config("mine", 16, 16, 64, prefetch=3, early=1).name.endswith("_nS2_early_pf3")


@pytest.mark.parametrize(
    "parameter",
    [
        Parameter("early", "", (0, 1), "a flag", 0),
        Parameter("order", "", ("rows", "columns", "by_hand"), "words without a prefix", "rows"),
        Parameter("order", "ord", ("rows", "columns", "by_hand"), "words with one", "rows"),
        Parameter("depth", "dp", (1, 2, 16), "numbers", 2),
        Parameter("depth", "dp", range(2**20), "many numbers", 0),
    ],
    ids=lambda each: f"{each.name}{len(each.values)}",
)
def test_each_kind_comes_back_from_names(own: Vocabulary, parameter: Parameter) -> None:
    """Whatever stands beside it."""
    own.declare(parameter)
    names = set()
    values = list(parameter.values)[:5] + list(parameter.values)[-2:]
    for value in values:
        for others in ({}, {"swapped": 1, "store": "direct"}, {"cache_modifier": ".cg"}, {"waves_per_eu": 2}):
            config = Config("mine", 16, 16, 64, **others, **{parameter.name: value})  # type: ignore[arg-type]
            assert Config.parse(config.name) == config
            names.add(config.name)
    assert len(names) == 4 * len(set(values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"neutral": None}, "prefetch has no neutral value"),
        ({"neutral": 9}, "its values must be listed, 9 among them"),
        ({"values": (), "neutral": "none"}, "its values must be listed"),
        ({"name": "swapped"}, "there is another parameter swapped already: choose another name"),
        ({"name": "num_warps"}, "there is another parameter num_warps already"),
        ({"name": "family"}, "this name has another meaning"),
        ({"name": "values"}, "this name has another meaning"),
        ({"name": "M"}, "this name has another meaning"),
        ({"prefix": "cl"}, "is 'cl' in config names, as another parameter is"),
        ({"prefix": "BM"}, "is 'BM' in config names, as another parameter is"),
        ({"prefix": "EU"}, "is 'EU' in config names"),
        ({"prefix": "", "values": ("off", "direct"), "neutral": "off"}, "is 'direct' in config names"),
        ({"prefix": "", "values": ("off", "ping_pong"), "neutral": "off"}, "is 'ping_pong' in config names"),
        ({"prefix": "c", "values": ("no", "l1x2"), "neutral": "no"}, "is '_cl1x2' in config names, which is another's"),
        ({"prefix": "", "values": ("no", "a_swapped"), "neutral": "no"}, "is '_a_swapped' in config names"),
        ({"prefix": "", "values": ("no", "cl1x2"), "neutral": "no"}, "is '_cl1x2' in config names"),
        ({"prefix": "", "values": (0, 1), "neutral": 1}, "a flag's neutral value 0"),
        ({"together": "amd"}, "must be empty"),
        ({"at_run_time": True, "values": ("no", "yes"), "neutral": "no"}, "a run-time argument must be a number"),
        ({"at_run_time": True, "in_text": True}, "a run-time argument must be a number"),
    ],
)
def test_what_cannot_be_declared(own: Vocabulary, change: dict[str, object], message: str) -> None:
    """Is refused in one line that names it, and what there was stays."""
    before = own.all
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        own.declare(replace(PREFETCH, **change))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert str(change.get("name", "prefetch")) in str(caught.value)
    assert own.all == before


def test_two_of_one_name(own: Vocabulary) -> None:
    """Families of two people may share a parameter, if they mean the same by it."""
    own.declare(PREFETCH)
    for other in (
        replace(PREFETCH, prefix="pre"),
        replace(PREFETCH, neutral=1),
        replace(PREFETCH, meaning="something else"),
        replace(PREFETCH, at_run_time=True),
    ):
        with pytest.raises(InputError, match="prefetch"):
            own.declare(other)
    with pytest.raises(InputError, match=r"ahead.*'pf'"):
        own.declare(replace(PREFETCH, name="ahead"))


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "1a"},
        {"name": "a\n"},
        {"name": "größe"},
        {"prefix": "p f"},
        {"prefix": "p1"},
        {"prefix": "_p"},
        {"prefix": ""},
        {"values": ("a-b", "c")},
        {"values": ("a b",)},
        {"values": ("a__b",)},
        {"values": ("",)},
        {"values": (1, "a")},
        {"values": ("a", 1)},
        {"values": (-1, 0)},
        {"values": (0.5, 1)},
        {"values": range(-1, 4)},
        {"values": range(0)},
        {"values": range(0, 9, 2)},
    ],
    ids=str,
)
def test_what_is_no_parameter(change: dict[str, object]) -> None:
    """Names and values that no name of a config could hold, in one line."""
    with pytest.raises(InputError) as caught:
        replace(PREFETCH, **change)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


# Of few letters, so that they meet; and words that names have already.
WORD = st.from_regex(r"[abc1](_?[abc1]){0,3}", fullmatch=True) | st.sampled_from(["swapped", "cl1x2", "a_swapped"])
KINDS = st.tuples(st.sampled_from(["", "", "a", "ab", "c"]), st.lists(WORD, min_size=2, max_size=4, unique=True))


@given(KINDS, KINDS)
def test_what_is_declared_has_one_reading(one: tuple[str, list[str]], other: tuple[str, list[str]]) -> None:
    """Two parameters of any words, where they are taken at all: no two configs share a name, and each comes back."""
    vocabulary = Vocabulary(PARAMETERS.all[:16], PARAMETERS.all[16:])
    for name, (prefix, words) in {"first": one, "second": other}.items():
        with contextlib.suppress(InputError):
            vocabulary.declare(Parameter(name, prefix, tuple(words), "some words or other", words[0]))
    declared = {name: vocabulary.by_name[name] for name in ("first", "second") if name in vocabulary.by_name}
    seen = set()
    for values in itertools.product(*(parameter.values for parameter in declared.values())):
        said = dict(zip(declared, values, strict=True))
        off = [declared[name].part(value) for name, value in said.items() if value != declared[name].neutral]
        text = "x_BM1_BN1_BK1_GM1_SK1_nW1_nS1_swapped" + "".join(off) + "_cmcg"
        match = vocabulary.pattern.fullmatch(text)
        assert match is not None
        assert {name: match[name] or parameter.neutral for name, parameter in declared.items()} == said
        assert (match["swapped"], match["cache_modifier"]) == ("swapped", "cg")
        assert text not in seen
        seen.add(text)
