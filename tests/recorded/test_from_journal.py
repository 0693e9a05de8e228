"""Rows of recorded tables are what the journal says, of every config of the space."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from recorded_runs import BEST, BROKEN, CONFIGS, COPIES, FIT, HEADER, LOST, PROBLEM, US, WRONG, journal

from genkern.errors import ResultsError
from genkern.gemm.records import Outcome
from genkern.journal.facts import JournalFacts
from genkern.journal.journal_line import entry_of, journal_line
from genkern.recorded.from_journal import rows_of, run_of


def test_every_config_of_the_space_has_its_row(tmp_path: Path) -> None:
    """In the order of the space: those that were timed, those that were lost or refused, and copies; then calls."""
    found = rows_of(PROBLEM, journal(tmp_path / "r.journal").of(PROBLEM))
    assert found.rows["config"] == [*(config.name for config in CONFIGS), "torch"]
    assert (found.space, found.whole) == (len(CONFIGS), True)
    outcomes = dict(zip(found.rows["config"], found.rows["outcome"], strict=True))
    assert {outcomes[config.name] for config in BROKEN} == {"compile_failed"}
    assert {outcomes[config.name] for config in COPIES} == {"identical"}
    assert [name for name, outcome in outcomes.items() if outcome == "crashed"] == [LOST]
    copies = {name: of for name, of in zip(found.rows["config"], found.rows["copy_of"], strict=True) if of}
    assert copies == {copy.name: of.name for copy, of in zip(COPIES, FIT[15:], strict=True)}
    assert dict(zip(found.rows["config"], found.rows["right"], strict=True))[WRONG.name] is False


def test_a_row_says_what_the_journal_does(tmp_path: Path) -> None:
    """Time, samples, what measuring and compiling took, what the binary needs, and how the finals ended."""
    facts = journal(tmp_path / "r.journal").of(PROBLEM)
    rows = rows_of(PROBLEM, facts).rows
    for place, config in enumerate(FIT):
        of = {name: values[place] for name, values in rows.items()}
        known = facts.screened[config.name]
        assert (of["screen_us"], of["took_ms"]) == (known.duration_us, known.took_ms)
        assert (of["samples_us"] or ([of["screen_us"]] if of["screen_us"] else [])) == list(known.samples_us)
        assert (of["unit"], of["compile_s"]) == (f"{place // 3:016x}", 0.5 + place // 3)
        assert (of["registers"], of["shared_bytes"], of["scalar_registers"]) == (168, 65536, None)
    best, call = rows["config"].index(BEST.name), rows["config"].index("torch")
    assert rows["final_us"][best] == US[BEST.name] * 1.0123456789
    assert rows["final_samples_us"][best] == list(facts.finals[1].samples_us)
    assert (rows["usual_mhz"][best], rows["watts"][best], rows["right"][best]) == (1755.5, 612.25, True)
    assert (rows["final_us"][call], rows["outcome"][call], rows["screen_us"][call]) == (9.9, "measured", None)


def test_a_space_that_was_left_is_not_whole(tmp_path: Path) -> None:
    """Nor one whose search has no end; what was left out in its measurement has an outcome."""
    found = rows_of(PROBLEM, journal(tmp_path / "r.journal", most=5).of(PROBLEM))
    assert (found.whole, found.space) == (False, None)
    left = journal(tmp_path / "left.journal", lost=Outcome.PREDICTED_OUT).of(PROBLEM)
    found = rows_of(PROBLEM, left)
    assert (found.whole, found.space, found.count) == (True, len(CONFIGS), len(CONFIGS) + 1)
    # What says of copies that they are some is of no use where measurements were retracted since.
    del left.screened[FIT[0].name]
    found = rows_of(PROBLEM, left)
    assert (found.whole, found.count) == (False, len(CONFIGS) - len(COPIES))


def test_a_run_says_where_it_comes_from(tmp_path: Path) -> None:
    """By a name that stays while the run goes on, and is another for another run."""
    run = run_of(journal(tmp_path / "r.journal"), "abcdef0")
    assert run.provenance["versions"] == {name: HEADER[name] for name in ("genkern", "triton", "torch", "driver")}
    said = [run.provenance[name] for name in ("device", "arch", "commit", "date", "command")]
    assert said == ["NVIDIA H200", "sm_90", "abcdef0", "2023-11-14T22:13:20Z", "genkern -i s.yaml --exhaustive"]
    assert run.name == run_of(journal(tmp_path / "half.journal", most=5)).name
    assert run.name != run_of(journal(tmp_path / "later.journal", time_s=1.8e9)).name


def test_folders_of_the_machine_are_not_recorded(tmp_path: Path) -> None:
    facts = journal(tmp_path / "r.journal")
    command = "genkern -i /home/me/s.yaml -o out/r.yaml --kernels=/data/x.kernels --cluster dask://host:1"
    facts.starts = [replace(facts.starts[0], command=command)]
    said = run_of(facts).provenance["command"]
    assert said == "genkern -i s.yaml -o out/r.yaml --kernels=x.kernels --cluster dask://host:1"


def test_what_nobody_measured_is_not_recorded(tmp_path: Path) -> None:
    """Neither predicted times nor nothing at all."""
    facts = journal(tmp_path / "r.journal")
    facts.header = {**facts.header, "time_source": "predicted"}
    with pytest.raises(ResultsError, match="predicted"):
        run_of(facts)
    empty = JournalFacts(tmp_path / "empty.journal")
    with pytest.raises(ResultsError, match="nothing is measured yet"):
        run_of(empty)


@pytest.mark.parametrize(
    "change",
    [
        {"config": [1, 2, 3]},
        {"config": None},
        {"config": ["no_such_family_BM1"]},
        {"units": "x"},
        {"steps": [["m", 1, 10**9]]},
        {"steps": [[{}]]},
        {"steps": 7},
        {"configs": "many"},
    ],
    ids=str,
)
def test_a_search_without_sense_is_one_line(change: dict[str, object], tmp_path: Path) -> None:
    """A line whose checksum is right may say anything: the run is refused, or recorded without what it says."""
    facts = journal(tmp_path / "r.journal")
    of = facts.of(PROBLEM)
    value = entry_of(of.search)["value"]
    of.search = journal_line("searched", {**value, **change}, 0)
    said = ""
    try:
        assert run_of(facts).problems
    except ResultsError as error:
        said = str(error)
    assert not said or ("r.journal" in said and "\n" not in said)
