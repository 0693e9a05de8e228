"""Tests of genkern/journal/search_steps.py: the steps of a search survive the journal, whatever they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.facts import Begun, read_ends, read_journal
from genkern.journal.header import UnusableJournal
from genkern.journal.journal import Journal
from genkern.journal.search_steps import AskStep, SearchRecord, Step, TellStep, parse_search, search_value
from genkern.search.strategy import Compiled, Event, Lost, Measured, Refused, Unit, units_of

CONFIGS = tuple(Config("tiled", 64, 64, 64, group, num_stages=stages) for stages in (2, 3, 4) for group in (1, 4, 8))
OTHERS = tuple(Config("tiled", 16, 64, 64, group) for group in (1, 2))
UNITS = [*units_of(CONFIGS), *units_of(OTHERS)]
US = {config.name: 10.0 + place for place, config in enumerate([*CONFIGS, *OTHERS])}
SCREENED = {name: Measurement(name, Outcome.MEASURED, "cudagraph", "screen", us, (us,)) for name, us in US.items()}

configs = st.sampled_from([*CONFIGS, *OTHERS])
outcomes = st.sampled_from([Outcome.CRASHED, Outcome.IDENTICAL, Outcome.PREDICTED_OUT])


@st.composite
def searches(draw: st.DrawFn) -> SearchRecord:
    """Any steps: events of units that were asked for in any order, or are nobody's; of some before that."""
    steps: list[Step] = [AskStep(1, ())] if draw(st.booleans()) else []
    known = draw(st.lists(configs, max_size=4, unique=True))
    steps += [TellStep(Measured(config, US[config.name])) for config in known]
    binaries: dict[Unit, str] = {}
    for unit in draw(st.permutations(UNITS))[: draw(st.integers(0, len(UNITS)))]:
        binaries[unit] = str(len(binaries))
        steps.append(AskStep(draw(st.integers(1, 8)), (unit,)))
        steps.append(TellStep(Compiled(unit, binaries[unit], draw(st.booleans()))))
    seen = st.sampled_from([*binaries] or UNITS)
    for _ in range(draw(st.integers(0, 12))):
        if not binaries:
            steps.append(AskStep(draw(st.integers(1, 8)), ()))
            continue
        unit = draw(seen)
        config = draw(st.sampled_from(unit.configs))
        event: Event = draw(
            st.sampled_from(
                [
                    Measured(config, US[config.name]),
                    Lost(config, draw(outcomes)),
                    Refused(unit, unit.configs[: draw(st.integers(1, len(unit.configs)))], draw(outcomes)),
                    Compiled(unit, binaries[unit], False),
                ]
            )
        )
        steps.append(TellStep(event, tuple(draw(st.lists(seen, max_size=2)))))
    cached = tuple(draw(st.lists(configs, unique=True)))
    return SearchRecord(draw(st.text(max_size=9)), draw(st.integers(0, 99)), CONFIGS, cached, tuple(steps))


@given(searched=searches())
def test_any_search_comes_back(searched: SearchRecord) -> None:
    """Through JSON, to the last step."""
    assert parse_search(json.loads(json.dumps(search_value(searched))), SCREENED) == searched


def test_what_goes_on_as_expected_takes_little() -> None:
    """Configs of a unit one after another are one number, as units in the order of asking need none."""
    steps: list[Step] = [AskStep(9, tuple(UNITS[:3]))]
    for number, unit in enumerate(UNITS[:3]):
        steps.append(TellStep(Compiled(unit, str(number), False)))
        steps.extend(TellStep(Measured(config, US[config.name])) for config in unit.configs)
    value = search_value(SearchRecord("predicted", 0, CONFIGS, (), tuple(steps)))
    assert value["steps"] == [["a", 9, 3], *[["c", 0], ["m", 3]] * 3]
    assert value["units"] == [[0, 1, 1], [3, 1, 1], [6, 1, 1]]


@pytest.mark.parametrize("steps", [[["x", 1]], [["m", 1, 99, 9]], [["a"]], [["d", 0]], [["c", 0, 7, 1]], ["c"], [[]]])
def test_damage_is_told(steps: list[Any]) -> None:
    """By one of the errors that readers of journals expect."""
    value = search_value(SearchRecord("predicted", 0, CONFIGS, (), (AskStep(1, (UNITS[0],)),)))
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        parse_search({**value, "steps": steps}, SCREENED)


def test_a_time_that_nobody_measured_is_damage() -> None:
    """The journal's measurements have the times."""
    steps = (AskStep(1, (UNITS[0],)), TellStep(Measured(CONFIGS[0], US[CONFIGS[0].name])))
    value = search_value(SearchRecord("predicted", 0, CONFIGS, (), steps))
    with pytest.raises(LookupError):
        parse_search(value, {})


def test_a_journal_keeps_a_search_as_it_stands(tmp_path: Path) -> None:
    """A run that goes on reads past it; whoever asks for it has it, in a journal that was read."""
    problem = GemmProblem(64, 128, 256)
    steps = (AskStep(9, (UNITS[0],)), *(TellStep(Measured(config, US[config.name])) for config in UNITS[0].configs))
    searched = SearchRecord("predicted", 0, CONFIGS, (CONFIGS[0],), steps)
    for _ in range(2):
        journal = Journal(tmp_path / "journal", {})
        journal.add_begun(problem, Begun(1, 0, 1.0))
        for config in UNITS[0].configs:
            journal.add_screened(problem, SCREENED[config.name])
        journal.add_search(problem, searched)
        journal.close()
    facts = read_journal(tmp_path / "journal").of(problem)
    assert facts.searched == searched
    assert len(facts.search) < 2000
    assert read_ends(tmp_path / "journal").of(problem).searched is None
    line = bytearray(facts.search)
    line[len(line) // 2] ^= 1
    path = tmp_path / "journal"
    path.write_bytes(path.read_bytes().replace(facts.search, bytes(line)))
    with pytest.raises(UnusableJournal, match="damaged"):
        Journal(path, {})
