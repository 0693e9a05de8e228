"""A journal that the release before wrote: its run goes on, and every fact of it has the names of today."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from test_journal import CHECK, FINALS, HANGING, HEADER, LOST, NAME, PROBLEM, START, WINNER, opened

from genkern.errors import ResultsError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.batch import columns, unfit_columns
from genkern.journal.facts import read_ends, read_journal
from genkern.journal.header import SCHEMA
from genkern.journal.line import entry_of, journal_line, values_of

SWAPPED = Config("tiled", 16, 64, 32, reduce="semaphore", swapped=1)
PAIR = Config("cute_wgmma", 128, 176, 64, 16, 1, 8, 5, schedule="ping_pong", cluster="2x1")
SHARED = Config("warp_specialized", 16, 64, 64, cluster_k=4, swapped=1)
BEFORE = {
    SWAPPED.name: "tiled_swapped_BM16_BN64_BK32_GM1_SK1_nW4_nS2",
    PAIR.name: "cute_ping_pong_2x1_BM128_BN176_BK64_GM16_SK1_nW8_nS5",
    SHARED.name: "warp_specialized_swapped_cluster4_BM16_BN64_BK64_GM1_SK1_nW4_nS2",
}
# What was said of a space then is of another text.
SPACE_THEN = {"a16w16": {"name": "default", "digest": "0123456789abcdef"}}
THEN = {**HEADER, "schema": SCHEMA, "genkern": "0.1.0", "space": SPACE_THEN}
NOW = {**HEADER, "genkern": "0.2.0", "space": {"a16w16": {"name": "default", "sha256": "fedcba9876543210"}}}


def screened(name: str, us: float) -> Measurement:
    return Measurement(name, Outcome.MEASURED, "cudagraph", "screen", us, (us,))


def written(path: Path) -> None:
    """The lines as that release wrote them: the form is today's, the names are not."""
    swapped, pair, shared = BEFORE.values()
    winner = values_of(replace(WINNER, config=PAIR, runner_up=swapped))
    check = asdict(replace(CHECK, config=pair))
    won = {**winner, "config": pair, "check": {**check, "passed": True}}
    finals = [replace(FINALS[0], config=pair), replace(FINALS[0], config=swapped, duration_us=12.5), FINALS[1]]
    facts: list[tuple[str, Any]] = [
        ("unfit", unfit_columns([([shared, NAME], HANGING)])),
        ("screened", columns([screened(swapped, 13.0), screened(pair, 12.5), screened("tiled_BM1", 14.0)])),
        ("retracted", ["tiled_BM1"]),
        ("retimed", columns(finals)),
        ("checked", check),
        ("unchecked", asdict(replace(LOST, config=swapped))),
        ("won", won),
    ]
    lines = [journal_line("header", THEN), journal_line("problem", asdict(PROBLEM))]
    lines += [journal_line("started", {**asdict(START), "problems": [0]})]
    path.write_bytes(b"".join([*lines, *(journal_line(fact, value, 0) for fact, value in facts)]))


def test_every_fact_has_the_names_of_today(tmp_path: Path) -> None:
    """What is in the text by names of before: configs, checks, runner-up; other names, and times, are as they were."""
    path = tmp_path / "j"
    written(path)
    journal = opened(path, NOW)
    facts = journal.of(PROBLEM)
    assert set(facts.unfit) == {SHARED.name, NAME}
    assert facts.screened == {SWAPPED.name: screened(SWAPPED.name, 13.0), PAIR.name: screened(PAIR.name, 12.5)}
    assert [final.config for final in facts.finals] == [PAIR.name, SWAPPED.name, "vendor"]
    assert {name: check.config for name, check in facts.checks.items()} == {PAIR.name: PAIR.name}
    assert {name: check.config for name, check in facts.unchecked.items()} == {SWAPPED.name: SWAPPED.name}
    assert facts.winner is not None
    assert facts.winner.check is not None
    assert (facts.winner.config, facts.winner.runner_up, facts.winner.check.config) == (PAIR, SWAPPED.name, PAIR.name)
    # A neighbour's win counts for the config, whatever it was called.
    assert journal.wins.of(GemmProblem(1, 1280, 8192), [PAIR.name]) == {PAIR.name: 1}
    journal.close()
    assert read_journal(path).facts == journal.facts
    assert read_ends(path).winners() == journal.winners()


def test_a_retraction_of_before_holds_for_the_name_of_today(tmp_path: Path) -> None:
    """Also where the fact that it takes back has a name of the other release."""
    for first, then in ((SWAPPED.name, BEFORE[SWAPPED.name]), (BEFORE[SWAPPED.name], SWAPPED.name)):
        path = tmp_path / first
        journal = opened(path, NOW)
        journal.screened(PROBLEM, screened(first, 13.0))
        journal.close()
        again = opened(path, NOW)
        assert set(again.of(PROBLEM).screened) == {SWAPPED.name}
        again.retracted(PROBLEM, [then])
        again.close()
        assert read_journal(path).of(PROBLEM).screened == {}


def test_what_is_added_has_the_names_of_today(tmp_path: Path) -> None:
    """The lines of before stay to the byte."""
    path = tmp_path / "j"
    written(path)
    before = path.read_bytes()
    journal = opened(path, NOW)
    winner = journal.of(PROBLEM).winner
    assert winner is not None
    journal.won(winner)
    journal.screened(PROBLEM, screened(SHARED.name, 15.0))
    journal.close()
    assert path.read_bytes().startswith(before)
    added = [entry_of(line) for line in path.read_bytes().removeprefix(before).splitlines()]
    assert {entry["fact"] for entry in added} == {"won", "screened"}
    assert not [name for name in BEFORE.values() if name in str(added)]
    assert PAIR.name in str(added)
    assert SWAPPED.name in str(added)


@pytest.mark.parametrize("family", ["stream_k", "tiled_atomic"])
def test_families_that_are_no_more_decide_nothing(family: str, tmp_path: Path) -> None:
    """Their times are left out, and a size that one of them won is decided again."""
    gone, path = f"{family}_BM64_BN64_BK32_GM1_SK1_nW4_nS2", tmp_path / "j"
    lines = [journal_line("header", THEN), journal_line("problem", asdict(PROBLEM))]
    lines += [journal_line("screened", columns([screened(gone, 9.0), screened(NAME, 10.0)]), 0)]
    lines += [journal_line("retimed", columns([replace(final, config=gone) for final in FINALS[:1]] + FINALS), 0)]
    lines += [journal_line("won", {**values_of(WINNER), "config": gone}, 0)]
    lines += [journal_line("unfit", unfit_columns([([gone, SWAPPED.name], HANGING)]), 0)]
    path.write_bytes(b"".join(lines))
    facts = read_journal(path)
    assert set(facts.of(PROBLEM).screened) == {NAME}
    assert set(facts.of(PROBLEM).unfit) == {SWAPPED.name}
    assert facts.of(PROBLEM).finals == FINALS
    assert (facts.of(PROBLEM).winner, facts.winners()) == (None, [])


def test_only_the_name_of_a_space_is_compared(tmp_path: Path) -> None:
    """What that release wrote of its values is of another text; another space is another run as ever."""
    path = tmp_path / "j"
    written(path)
    opened(path, NOW).close()
    with pytest.raises(ResultsError, match="a16w16 was default, is wide"):
        opened(path, {**NOW, "space": {"a16w16": {"name": "wide", "sha256": "fedcba9876543210"}}})
    with pytest.raises(ResultsError, match=r"triton was '3\.7\.0', is '3\.8\.0'"):
        opened(path, {**NOW, "triton": "3.8.0"})


def test_other_releases_are_other_runs(tmp_path: Path) -> None:
    """It is the release before, and no earlier or later one, whose names are read."""
    for version in ("0.0.9", "0.3.0"):
        path = tmp_path / version
        opened(path, {**NOW, "genkern": version}).close()
        with pytest.raises(ResultsError, match=f"'{version}'.*'0.2.0'"):
            opened(path, NOW)
