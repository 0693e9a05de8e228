"""Tests of genkern.space.asked: a question is answered as if every config were asked, and asked far less often."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from forms import FORMS, PLACES, made
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import repeats

from genkern.errors import InputError
from genkern.gemm.config import CONFIG_FIELDS, Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import form_of, numbers_of
from genkern.kernels.legality import legal, legal_problem
from genkern.space.asked import PENDING, Asked, watching
from genkern.space.rules.registry import RULE_NAMES, is_for, rule_for

GROUP_SIZES = (1, 2, 4, 8)
GPUS = tuple(gpu_for_arch(arch) for arch in ("gfx942", "gfx1201", "sm_80", "sm_90", "sm_100"))
SAME = {**PARAMETERS.neutral, "family": "tiled", "BLOCK_SIZE_K": 64, "num_warps": 4, "num_stages": 2}
OPEN = {"BLOCK_SIZE_M": (16, 64, 128), "BLOCK_SIZE_N": (32, 64), "SPLIT_K": (1, 2, 3), "GROUP_SIZE_M": (1, 8)}


def known_of(config: Config) -> dict[str, Any]:
    """All of a config, as pruning knows it."""
    return {**PARAMETERS.neutral, **config.values, "family": config.family, "others": config.others}


def counted(question: Callable[[Config], Any]) -> tuple[Callable[[Config], Any], list[int]]:
    """The question, and a list that is longer by one each time that it is asked."""
    calls: list[int] = []

    def asked(config: Config) -> Any:
        calls.append(1)
        return question(config)

    return asked, calls


def every(names: Mapping[str, tuple[int, ...]] = OPEN) -> list[dict[str, int]]:
    """All combinations of these parameters."""
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*names.values())]


def test_asked_anew_only_where_something_differs_that_was_read() -> None:
    """Once for each value that was read, whatever the others are."""
    question, calls = counted(lambda config: config.SPLIT_K > 1 and config.BLOCK_SIZE_M > 16)
    asked = Asked(question, watching(SAME))
    for known in every():
        assert asked.of(known) == (known["SPLIT_K"] > 1 and known["BLOCK_SIZE_M"] > 16)
    # SPLIT_K = 1 without the tile, two others with each of three.
    assert len(calls) == 1 + 2 * 3


def test_what_reads_nothing_is_asked_once() -> None:
    """Nor does what all configs have in common count."""
    question, calls = counted(lambda config: config.num_warps * config.BLOCK_SIZE_K + config.swapped)
    asked = Asked(question, watching(SAME))
    assert {asked.of(known) for known in every()} == {256}
    assert len(calls) == 1


def test_pending_until_what_is_read_is_known() -> None:
    """An answer that does not hang on it is given before; what is pending is not asked again until it is known."""
    question, calls = counted(lambda config: config.BLOCK_SIZE_M == 16 or config.SPLIT_K == 2)
    asked = Asked(question, watching(SAME))
    assert asked.of({"BLOCK_SIZE_M": 16}) is True
    assert asked.of({"BLOCK_SIZE_M": 64}) is PENDING
    before = len(calls)
    assert asked.of({"BLOCK_SIZE_M": 64}) is PENDING
    assert asked.of({}) is PENDING
    assert asked.of({"BLOCK_SIZE_M": 64, "GROUP_SIZE_M": 8}) is PENDING
    assert len(calls) == before
    assert asked.of({"BLOCK_SIZE_M": 64, "SPLIT_K": 2}) is True
    assert asked.of({"BLOCK_SIZE_M": 64, "SPLIT_K": 3}) is False
    assert asked.of({"BLOCK_SIZE_M": 16, "SPLIT_K": 3}) is True


def test_nothing_catches_what_is_not_known() -> None:
    """A question that takes whatever fails for an answer is pending all the same."""

    def question(config: Config) -> str:
        try:
            return str(config.SPLIT_K)
        except Exception:
            return "failed"

    asked = Asked(question, watching(SAME))
    assert asked.of({}) is PENDING
    assert asked.of({"SPLIT_K": 2}) == "2"


def test_a_config_with_other_values() -> None:
    """`having` is as Config's: what it changes is not read, changes add up, and the rest is the config's own."""

    def question(config: Config) -> tuple[object, ...]:
        first = config.having(SPLIT_K=1, BLOCK_SIZE_M=8)
        second = first.having(num_stages=7)
        return second.SPLIT_K, second.BLOCK_SIZE_M, second.num_stages, second.BLOCK_SIZE_N, config.num_stages

    watched, calls = counted(question)
    asked = Asked(watched, watching(SAME))
    for known in every():
        assert asked.of(known) == (1, 8, 7, known["BLOCK_SIZE_N"], 2)
    assert len(calls) == len(OPEN["BLOCK_SIZE_N"])


@pytest.mark.parametrize(
    "question",
    [
        lambda config: config.name,
        lambda config: config.values,
        numbers_of,
        lambda config: form_of(config.having(reduce="semaphore", swapped=1)).stem,
        lambda config: config.having(BLOCK_SIZE_M=8).having(swapped=1, reduce="semaphore").name,
        lambda config: config.having(BLOCK_SIZE_M=8).name,
    ],
)
def test_what_is_read_of_the_whole_config(question: Callable[[Config], Any]) -> None:
    """A name, all values, or another form: pending while anything is open, then as of the config itself."""
    asked = Asked(question, watching({**SAME, "others": ()}))
    for known in every():
        some = dict(list(known.items())[:2])
        assert asked.of(some) is PENDING
        assert asked.of(known) == question(Config(**{"family": "tiled", "BLOCK_SIZE_K": 64, **known}))


def test_what_there_is_not() -> None:
    """Is said as of a config."""
    asked = Asked(lambda config: config.BLOCK_SIZE_Q, watching({**SAME, "others": ()}))
    with pytest.raises(AttributeError, match="no parameter 'BLOCK_SIZE_Q'"):
        asked.of(every()[0])
    changed = Asked(lambda config: config.having(schedule="slow"), watching({**SAME, "others": ()}))
    with pytest.raises(InputError, match=r"schedule 'slow' .*cooperative, ping_pong"):
        changed.of(every()[0])


# A question is a tree: what it reads next hangs on what it has read, by remainders. Leaves are answers.
LEAVES = st.integers(0, 5)
TREES = st.recursive(
    LEAVES, lambda below: st.tuples(st.sampled_from([*OPEN, "BLOCK_SIZE_K"]), below, below), max_leaves=12
)


def answer_of(tree: Any, config: Config) -> int:
    """What the question that is this tree answers."""
    while not isinstance(tree, int):
        name, one, other = tree
        tree = one if getattr(config, name) % 3 == 1 else other
    return tree


@given(TREES, st.permutations(every()), st.randoms(use_true_random=False))
def test_as_if_every_config_were_asked(tree: Any, order: list[dict[str, int]], random: Any) -> None:
    """In any order, with any part known before: never another answer than the config's own, and in the end that one."""
    question, calls = counted(lambda config: answer_of(tree, config))
    asked = Asked(question, watching(SAME))
    for known in order:
        config = Config(**{"family": "tiled", "BLOCK_SIZE_K": 64, **known})
        some = {name: value for name, value in known.items() if random.random() < 0.5}
        assert asked.of(some) in (PENDING, answer_of(tree, config))
        assert asked.of(known) == answer_of(tree, config)
    settled = len(calls)
    assert [asked.of(known) for known in order] == [
        answer_of(tree, Config(**{"family": "tiled", "BLOCK_SIZE_K": 64, **known})) for known in order
    ]
    assert len(calls) == settled


CONFIGS = st.builds(
    made,
    st.sampled_from(sorted(FORMS)),
    st.sampled_from([8, 16, 64, 104, 128, 192]),
    st.sampled_from([16, 64, 96, 128, 256]),
    st.sampled_from([16, 32, 64, 128]),
    st.sampled_from(GROUP_SIZES),
    st.sampled_from([1, 2, 5, 24]),
    st.sampled_from([2, 4, 8, 12]),
    st.integers(1, 8),
)
PROBLEMS = st.builds(
    GemmProblem,
    st.integers(1, 5000) | st.sampled_from([1, 16, 64, 4096]),
    st.integers(1, 9000) | st.sampled_from([128, 4096]),
    st.integers(1, 9000) | st.sampled_from([4096, 8192]),
    row_major_a=st.booleans(),
    row_major_b=st.booleans(),
)


@given(PROBLEMS, st.lists(CONFIGS, min_size=2, max_size=12), st.sampled_from(GPUS), st.data())
@settings(max_examples=repeats(60, 150), deadline=None)
def test_rules_and_legality(problem: GemmProblem, configs: list[Config], gpu: Any, data: st.DataObject) -> None:
    """Each says of a config what it says when it is asked directly, whatever it was asked before."""
    asked: dict[tuple[object, ...], Asked[Any]] = {}
    # Configs of a form differ in any of these, as in a space.
    splits, stages = data.draw(st.tuples(st.sampled_from([1, 3]), st.integers(2, 9)))
    beside = [config.having(SPLIT_K=splits, num_stages=stages) for config in configs]
    for config in (*configs, *beside):
        form, place = form_of(config), (config.family, config.others)
        if legal_problem(problem, *place, gpu):
            continue
        same = watching({**PARAMETERS.neutral, **dict(config.others), "family": place[0], "others": place[1]})
        questions: dict[str, Callable[[Config], Any]] = {"legal": lambda one: legal(problem, one, gpu)}
        # As in pruning, rules are asked of what is legal.
        for name in () if legal(problem, config, gpu) else RULE_NAMES:
            if is_for(name, form):
                drop = rule_for(name, GROUP_SIZES)
                questions[name] = lambda one, drop=drop: drop(problem, one, gpu)
        for name, question in questions.items():
            one = asked.setdefault((name, *place), Asked(question, same))
            core = {field: getattr(config, field) for field in CONFIG_FIELDS[1:-1]}
            assert one.of(core) == question(config), name


def test_every_form_is_drawn() -> None:
    """The property above has all forms there are."""
    assert set(PLACES) == set(FORMS)
    assert {made(stem, 64, 64, 64).family for stem in FORMS} == {family for family, _ in PLACES.values()}
