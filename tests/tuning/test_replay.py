"""Strategies replayed on the journals of runs: they decide as the runs did, and as before there were strategies."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from command import run
from machines import machine

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.journal.facts import ProblemFacts, read_journal
from genkern.journal.run_files import RunFiles
from genkern.journal.search_steps import SearchRecord, TellStep, parse_search, search_value
from genkern.recorded.load import recorded_problems
from genkern.search.guided.model import ranked
from genkern.search.strategies import chosen_strategy
from genkern.search.strategy import Compiled, Measured, units_of
from genkern.tuning.replay import replay_decisions
from genkern.tuning.simulation import simulate

GPU = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(128, 128, 256)
# Twelve binaries of three configs each.
SPACE = """archs: [sm_90]
ops: [a16w16]
rules: []
families:
  - {family: tiled, BLOCK_SIZE_M: [16, 32, 64], BLOCK_SIZE_N: [32, 64], BLOCK_SIZE_K: [32, 64], num_warps: [4],
     GROUP_SIZE_M: [1, 4, 8], SPLIT_K: [1], num_stages: [2]}
"""
CONFIGS = [
    Config("tiled", m, n, k, group, num_warps=4, num_stages=2)
    for m in (16, 32, 64)
    for n in (32, 64)
    for k in (32, 64)
    for group in (1, 4, 8)
]
US = {config.name: 100.0 + zlib.crc32(config.name.encode()) % 97 for config in CONFIGS}
# All binaries in the order of the model, which each training changes.
BY_MODEL = units_of(ranked(PROBLEM, CONFIGS, GPU))
ALL = "--search", "predicted"


def searched(folder: Path, cache: Path, *options: object) -> ProblemFacts:
    """What the journal of a run with stand-ins for its GPU says of the size."""
    folder.mkdir()
    (folder / "space.yaml").write_text(SPACE)
    files = ["-o", folder / "r.yaml", "--space", folder / "space.yaml", "--cache_dir", cache]
    size = ["-m", PROBLEM.M, "-n", PROBLEM.N, "-k", PROBLEM.K]
    ran = run(*size, *files, "--jobs", 1, *options, env=machine(folder, gpus=1, faster=US))
    assert ran.status == 0, ran
    return read_journal(RunFiles(str(folder / "r.yaml")).finished_journal).of(PROBLEM)


def again(facts: SearchRecord, name: str) -> bool:
    """Whether the strategy of this name decides now as it did then, each time that it is asked."""
    make = chosen_strategy(name).make
    twice = [replay_decisions(make, facts, PROBLEM, GPU) for _ in range(2)]
    assert twice[0] == twice[1]
    return twice[0] == facts.steps


def measured(facts: SearchRecord) -> list[Config]:
    events = [step.event for step in facts.steps if isinstance(step, TellStep)]
    return [event.config for event in events if isinstance(event, Measured)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs have theirs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, ProblemFacts]:
    """Runs that measure everything, with an empty, a full and a half full cache; the one that filled half is `few`."""
    return {
        "cold": searched(folder / "cold", folder / "cache", *ALL),
        "warm": searched(folder / "warm", folder / "cache", *ALL),
        "few": searched(folder / "few", folder / "other", "--search", "predicted:5"),
        "half": searched(folder / "half", folder / "other", *ALL),
    }


def of(runs: dict[str, ProblemFacts], name: str) -> SearchRecord:
    found = runs[name].searched
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["cold", "warm", "half"])
def test_everything_is_asked_for_in_predicted_order(runs: dict[str, ProblemFacts], name: str) -> None:
    """What is compiled, what is measured, each in its order; and again from the journal alone.

    What the cache has comes first.
    """
    facts = of(runs, name)
    assert facts.strategy == "predicted"
    expected = sorted(BY_MODEL, key=lambda unit: unit.configs[0] not in facts.cached)
    assert facts.asked == expected
    assert measured(facts) == [config for unit in expected for config in unit.configs]
    assert again(facts, "predicted")
    made = [step.event for step in facts.steps if isinstance(step, TellStep) and isinstance(step.event, Compiled)]
    assert [event.cached for event in made] == {
        "cold": [False] * 12,
        "warm": [True] * 12,
        "half": [event.unit.configs[0] in facts.cached for event in made],
    }[name]
    assert len(facts.cached) == sum(event.cached for event in made)


def test_another_strategy_would_have_decided_otherwise(runs: dict[str, ProblemFacts]) -> None:
    """What was asked and told of one is no other one's."""
    assert not again(of(runs, "few"), "guided")


def test_searches_survive_the_journal(runs: dict[str, ProblemFacts]) -> None:
    """As JSON and back, to the last step but for the names of binaries."""
    for facts in runs.values():
        assert facts.searched is not None
        assert parse_search(search_value(facts.searched), facts.screened) == facts.searched


@pytest.mark.parametrize("at_a_time", [1, 5])
def test_strategies_search_what_is_known(runs: dict[str, ProblemFacts], folder: Path, at_a_time: int) -> None:
    """On a journal that knows every config: one takes all, the other its first few, and misses what they miss."""
    (recorded,) = recorded_problems(str(folder / "cold"))
    assert recorded.whole
    one = {"jobs": 1, "at_a_time": at_a_time}
    everything = simulate(chosen_strategy("exhaustive"), recorded, **one)
    assert everything.asked == tuple(BY_MODEL)
    assert sorted(everything.measured) == sorted(CONFIGS)
    assert everything.best is not None
    assert recorded.us[everything.best] == min(US.values())
    assert everything.loss == 0
    few = simulate(chosen_strategy("predicted:5"), recorded, **one)
    assert few.asked == tuple(BY_MODEL[:5])
    found_us = min(US[config.name] for unit in BY_MODEL[:5] for config in unit.configs)
    assert few.loss == pytest.approx(found_us / min(US.values()) - 1)
