"""Tests of genkern/tuning/row_comparison.py, by a tuner that chooses a winner of one order from finals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from test_tune import ALGORITHM, OTHER, PLAIN, PROBLEM, SPLIT, Finals, Verdicts, a_session, a_tuner, final

from genkern.compile.candidate_builder import ProblemBuild
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.records import Candidate, Check, Measurement, Outcome
from genkern.journal.journal import Journal
from genkern.result.result import Result
from genkern.timing.libraries import VENDOR, library_of
from genkern.timing.session import Session
from genkern.tuning.invariant.reference import reference_of
from genkern.tuning.invariant.sum_order_constraint import ANY_ORDER, SumOrderConstraint
from genkern.tuning.tune import Report

WHOLE, PARTS = "wgmma k16", "wgmma k16; 4 parts of 1024"
DEEP = replace(PLAIN, num_stages=5)
ASKED = SumOrderConstraint({PROBLEM: WHOLE})
REFERENCE = reference_of(PROBLEM, WHOLE, gpu_for_arch("sm_90"))


class Bits:
    """Compares rows: those of `wrong` configs have other bits, and calls have those of configs as `alike_` says."""

    def __init__(self, *wrong: Config, alike: dict[str, Config] | None = None) -> None:
        self._wrong = {config.name for config in wrong}
        self._alike = alike or {}
        self.asked: list[tuple[str, str | None]] = []
        self.calls: list[list[str]] = []

    def check(self, session: Session, name: str, candidate: Candidate | None, reference: Candidate | None) -> Check:
        self.asked.append((name, None if reference is None else reference.name))
        passed = name not in self._wrong
        message = "" if passed else "a row has other bits elsewhere"
        return Check(name, passed, 0.0, 0.0, "", "gpu", message, rounds=("rows",) * passed, row_bits="ab" * passed)

    def alike(self, session: Session, calls: Sequence[str], candidates: Sequence[Candidate]) -> dict[str, str]:
        self.calls.append(list(calls))
        names = {candidate.name for candidate in candidates}
        return {call: config.name for call, config in self._alike.items() if call in calls and config.name in names}


def choose(
    folder: Path,
    finals: list[Measurement],
    bits: Bits | None,
    orders: SumOrderConstraint = ASKED,
    before: Config | None = None,
    more: Sequence[Config] = (),
) -> tuple[Result | None, Report, Journal]:
    """The winner of these finals, all configs of which were screened, and `more`, which lost there."""
    checker = Verdicts()
    checker.rows = bits
    journal = Journal(folder / "journal", {})
    tuner = a_tuner(journal, checker, Finals(finals))
    build_environment: Any = SimpleNamespace(gpu=gpu_for_arch("sm_90"))
    incumbents = {PROBLEM: before} if before else {}
    tuner = replace(tuner, orders=orders, incumbents=incumbents, build_environment=build_environment)
    ours = [m for m in finals if library_of(m.config) == "triton"]
    configs = [*(Config.parse(m.config) for m in ours), *more]
    report = Report(PROBLEM)
    report.candidates = {m.config: replace(m, stage="screen") for m in ours}
    report.candidates |= {
        config.name: Measurement(config.name, Outcome.MEASURED, "x", duration_us=999.0) for config in more
    }
    ready = {config.name: Candidate(config, ()) for config in configs}
    winner = tuner._choose(ProblemBuild(a_session(folder), ready), journal.of(PROBLEM), report)
    return winner, report, journal


def test_a_faster_config_of_another_order_does_not_win(tmp_path: Path) -> None:
    """What that costs is said, against the fastest of all; the proof has what rows have shown."""
    finals = [final(SPLIT.name, 100), final(PLAIN.name, 110), final(DEEP.name, 120), final(VENDOR, 130)]
    winner, _, _ = choose(tmp_path, finals, Bits(), before=SPLIT)
    assert winner is not None
    assert (winner.config, winner.choice, winner.runner_up) == (PLAIN, "config", DEEP.name)
    assert winner.invariant_loss is not None
    assert round(winner.invariant_loss, 4) == 0.1
    assert winner.check is not None
    assert (winner.check.rounds, winner.check.row_bits) == (("rows",), "ab")


def test_a_config_whose_rows_have_other_bits_does_not_win(tmp_path: Path) -> None:
    """It is wrong as one that multiplies wrongly; its rows are compared with the reference of the order."""
    assert REFERENCE is not None
    bits = Bits(PLAIN)
    finals = [final(PLAIN.name, 100), final(DEEP.name, 120)]
    winner, report, journal = choose(tmp_path, finals, bits, more=[REFERENCE])
    assert winner is not None
    assert winner.config == DEEP
    assert report.candidates[PLAIN.name].outcome is Outcome.WRONG
    assert "other bits" in report.candidates[PLAIN.name].message
    assert set(bits.asked) == {(PLAIN.name, REFERENCE.name), (DEEP.name, REFERENCE.name)}
    journal.close()
    # A run that goes on knows it.
    again = Journal(tmp_path / "journal", {})
    assert {name: check.passed for name, check in again.of(PROBLEM).rows.items()} == {
        PLAIN.name: False,
        DEEP.name: True,
    }


def test_the_library_may_win_in_the_order(tmp_path: Path) -> None:
    """An algorithm whose bits are those of a config of it; one that is faster, of another order, is what it costs."""
    finals = [
        final(PLAIN.name, 110),
        final(SPLIT.name, 200),
        final(OTHER, 90),
        final(ALGORITHM, 100),
        final(VENDOR, 90),
    ]
    bits = Bits(alike={ALGORITHM: PLAIN, OTHER: SPLIT})
    winner, report, journal = choose(tmp_path, finals, bits)
    assert winner is not None
    assert (winner.choice, winner.vendor, winner.vendor_us, winner.vendor_sums) == ("vendor", ALGORITHM, 100, WHOLE)
    assert round(winner.invariant_loss or 0.0, 3) == 0.111
    assert report.sums == {ALGORITHM: WHOLE, OTHER: PARTS, VENDOR: ""}
    journal.close()
    assert Journal(tmp_path / "journal", {}).of(PROBLEM).sums == report.sums


def test_the_librarys_call_of_no_order_is_not_called(tmp_path: Path) -> None:
    """However fast: nobody knows that its rows have these bits. PyTorch's own may be of the order and is not either."""
    finals = [final(PLAIN.name, 110), final(ALGORITHM, 90), final(VENDOR, 80)]
    winner, _, _ = choose(tmp_path, finals, Bits(alike={VENDOR: PLAIN}))
    assert winner is not None
    assert (winner.choice, winner.config) == ("config", PLAIN)
    assert winner.vendor == "torch"
    assert winner.vendor_sums == WHOLE


def test_without_an_order_the_librarys_is_told(tmp_path: Path) -> None:
    """Every run says in which order the library's best call adds up; nothing else is compared."""
    finals = [final(PLAIN.name, 110), final(ALGORITHM, 90)]
    bits = Bits(alike={ALGORITHM: PLAIN})
    winner, _, _ = choose(tmp_path, finals, bits, ANY_ORDER)
    assert winner is not None
    assert (winner.choice, winner.vendor_sums, winner.invariant_loss) == ("vendor", WHOLE, None)
    assert (bits.asked, bits.calls) == ([], [[ALGORITHM]])


def test_where_nothing_can_be_compared_the_order_is_as_it_is_said(tmp_path: Path) -> None:
    """Without a GPU: the config is of the order that its family says, and the library's is nobody's."""
    winner, _, _ = choose(tmp_path, [final(SPLIT.name, 100), final(PLAIN.name, 110)], None)
    assert winner is not None
    assert (winner.config, winner.vendor_sums, winner.check and winner.check.row_bits) == (PLAIN, "", "")
