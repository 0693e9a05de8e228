"""Tests of genkern/tuning/tune.py: choosing a winner from finals and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from genkern.compile.candidate_builder import ProblemBuild
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Candidate, Check, Measurement, Outcome, Unfit
from genkern.journal.facts import ProblemFacts
from genkern.journal.journal import Journal
from genkern.result.result import Result
from genkern.timing.libraries import VENDOR, StoredAlgorithm, library_of
from genkern.timing.profiler import ExclusiveDevice
from genkern.timing.session import Budget, Session
from genkern.tuning.confirmation import ConfirmationRound
from genkern.tuning.tune import Provenance, Report, Tuner

PROBLEM = GemmProblem(64, 4096, 4096)
PLAIN = Config("tiled", 64, 64, 32)
SPLIT = replace(PLAIN, SPLIT_K=4)
DEEP, LAST = (replace(PLAIN, num_stages=stages) for stages in (5, 6))
ALGORITHM, OTHER = (StoredAlgorithm(131000, bytes([i] * 64)).name for i in (1, 2))


def final(name: str, us: float) -> Measurement:
    samples = tuple(us * (1 + 0.0002 * (i - 5)) for i in range(11))
    return Measurement(name, Outcome.MEASURED, "cudagraph", "final", us, samples, discarded=2)


class Finals(ExclusiveDevice):
    """A profiler that knows how the finals end, and counts how often it is asked."""

    time_source = "cudagraph"

    def __init__(self, finals: list[Measurement]) -> None:
        self._finals = finals
        self.asked: list[list[str]] = []
        self.confirmed: list[list[str]] = []
        self.again: dict[str, Measurement] = {}  # what is other than in the finals

    def semifinal(self, session: Session, candidates: Sequence[Candidate], most: int) -> list[str]:
        return [candidate.config.name for candidate in candidates[-most:]]

    def retime(self, session: Session, finalists: Sequence[Candidate]) -> list[Measurement]:
        self.asked.append([candidate.config.name for candidate in finalists])
        return self._finals

    def confirm(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        self.confirmed.append([*(candidate.config.name for candidate in finalists), *calls])
        return [self.again.get(m.config, m) for m in self._finals if m.config in self.confirmed[-1]]


class Verdicts:
    """A checker for which these configs are wrong."""

    def __init__(self, *wrong: Config, quick: bool = True) -> None:
        self.quick, self.rows = quick, cast(Any, None)
        self._wrong = {config.name for config in wrong}
        self.wrong_calls: tuple[str, ...] = ()
        self.checked: list[str] = []

    def can_check(self, config: Config) -> bool:
        return config.family != "warp_specialized"

    def check(self, session: Session | None, candidate: Candidate) -> Check:
        name = candidate.config.name
        self.checked.append(name)
        return Check(name, name not in self._wrong, 0.5, 0.25, "64x4096x4096", "gpu")

    def check_call(self, session: Session | None, name: str) -> Check:
        self.checked.append(name)
        return Check(name, name not in self.wrong_calls, 0.5, 0.25, "64x4096x4096", "gpu")


def a_session(folder: Path) -> Session:
    return Session("m.py", PROBLEM, "sm_90", 0, str(folder), Budget())


def a_tuner(journal: Journal, checker: Verdicts | None, profiler: Finals | None = None) -> Tuner:
    """One that has what choosing takes."""
    nothing: Any = None
    provenance = Provenance("sm_90", "NVIDIA H200", (("triton", "3.7.0"),))
    return Tuner(nothing, nothing, profiler or nothing, checker, journal, nothing, provenance, Budget())


def choose(
    tmp_path: Path,
    finals: list[Measurement],
    checker: Verdicts | None = None,
    before: Sequence[Result] = (),
    profiler: Finals | None = None,
    libraries: str = Budget().libraries,
) -> tuple[Result | None, Report]:
    """The winner of these finals, every config having been screened."""
    journal = Journal(tmp_path / "journal", {})
    for winner in before:
        journal.add_winner(winner)
    tuner = a_tuner(journal, checker, profiler or Finals(finals))
    tuner = replace(tuner, budget=replace(tuner.budget, libraries=libraries))
    ours = [m for m in finals if library_of(m.config) == "triton"]
    configs = [Config.parse(m.config) for m in ours]
    ready = {config.name: Candidate(config, ()) for config in configs}
    report = Report(PROBLEM)
    report.candidates = {m.config: replace(m, stage="screen") for m in ours}
    chosen = tuner._choose(ProblemBuild(a_session(tmp_path), ready), journal.of(PROBLEM), report)
    journal.close()
    return chosen, report


def test_a_winner_carries_what_it_takes_to_trust_it(tmp_path: Path) -> None:
    """Interval, samples, discarded ones, runner-up, margin, and the vendor library with its interval."""
    finals = [final(PLAIN.name, 100), final(SPLIT.name, 110), final(DEEP.name, 105), final(VENDOR, 120)]
    winner, _ = choose(tmp_path, finals, Verdicts())
    assert winner is not None
    assert (winner.config, winner.duration_us, winner.samples, winner.discarded) == (PLAIN, 100, 11, 2)
    assert winner.interval_us is not None
    assert 99.9 <= winner.interval_us[0] <= 100 <= winner.interval_us[1] <= 100.1
    assert (winner.runner_up, winner.runner_up_us, winner.margin) == (DEEP.name, 105, 1.05)
    assert winner.vendor_us == 120
    assert winner.vendor_interval_us is not None
    assert winner.choice == "config"
    assert winner.check is not None
    assert winner.device == "NVIDIA H200"


def test_long_calls_have_semifinals(tmp_path: Path) -> None:
    """Where more are near the fastest than the finals have, the profiler says under load who comes into these."""
    near = [final(replace(PLAIN, GROUP_SIZE_M=number).name, 280 + number / 10) for number in range(1, 16)]
    profiler = Finals(near[-12:])
    winner, _ = choose(tmp_path, near, Verdicts(), profiler=profiler)
    assert profiler.asked == [[m.config for m in near[-12:]]]
    assert winner is not None
    assert winner.duration_us == near[3].duration_us


def test_the_librarys_best_is_the_vendor_time(tmp_path: Path) -> None:
    """Not PyTorch's choice, which stands beside it; the result says which call it was, and a tie goes to it."""
    finals = [final(PLAIN.name, 100), final(VENDOR, 110), final(ALGORITHM, 104), final(OTHER, 107)]
    checker = Verdicts()
    winner, report = choose(tmp_path, finals, checker)
    assert winner is not None
    assert (winner.vendor, winner.vendor_us, winner.torch_us, winner.choice) == (ALGORITHM, 104, 110, "config")
    assert winner.vendor_interval_us is not None
    assert winner.vendor_interval_us[0] < 104 < winner.vendor_interval_us[1]
    assert (report.vendor, report.torch) == (finals[2], finals[1])
    assert checker.checked == [ALGORITHM, PLAIN.name]
    assert winner.runner_up == ""
    (tmp_path / "tie").mkdir()
    finals[2] = final(ALGORITHM, 100.2)
    winner, _ = choose(tmp_path / "tie", finals, Verdicts())
    assert winner is not None
    assert winner.choice == "tie"


def test_a_wrong_algorithm_is_no_vendor_time(tmp_path: Path) -> None:
    """It would make every config look slow; the next best that is right counts, and PyTorch's own is not checked."""
    finals = [final(PLAIN.name, 100), final(VENDOR, 110), final(ALGORITHM, 80), final(OTHER, 112)]
    checker = Verdicts()
    checker.wrong_calls = (ALGORITHM,)
    winner, _ = choose(tmp_path, finals, checker)
    assert winner is not None
    assert (winner.vendor, winner.vendor_us, winner.torch_us, winner.choice) == ("torch", 110, 110, "config")
    assert checker.checked == [ALGORITHM, PLAIN.name]
    journal = Journal(tmp_path / "journal", {})
    assert not journal.of(PROBLEM).checks[ALGORITHM].passed
    journal.close()


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        ("triton,torch,cublaslt", (ALGORITHM, 90, 110, "vendor")),
        ("triton,torch", ("torch", 110, 110, "config")),
        ("triton", ("", None, 110, "config")),
        ("torch,cublaslt", (ALGORITHM, 90, 110, "vendor")),
        ("torch", ("torch", 110, 110, "vendor")),
    ],
)
def test_which_libraries_may_win(tmp_path: Path, libraries: str, expected: tuple[Any, ...]) -> None:
    """One that may not is no vendor time; PyTorch's own is told in any case, as what everybody has."""
    finals = [final(PLAIN.name, 100), final(VENDOR, 110), final(ALGORITHM, 90)]
    winner, _ = choose(tmp_path, finals, Verdicts(), libraries=libraries)
    assert winner is not None
    assert (winner.vendor, winner.vendor_us, winner.torch_us, winner.choice) == expected


def test_every_finalist_is_checked_on_request(tmp_path: Path) -> None:
    """The wrong ones lose, fast or slow, and have their outcome; otherwise only who would win, or be second."""
    finals = [final(PLAIN.name, 100), final(SPLIT.name, 110), final(DEEP.name, 105), final(LAST.name, 120)]
    names = [config.name for config in (PLAIN, DEEP, SPLIT, LAST)]
    for check_all, checked in ((False, names[:3]), (True, names)):
        journal = Journal(tmp_path / f"all_{check_all}", {})
        journal.add_retimed(PROBLEM, finals)
        configs = {config.name: Candidate(config, ()) for config in (PLAIN, SPLIT, DEEP, LAST)}
        report = Report(PROBLEM)
        report.candidates = {name: Measurement(name, Outcome.MEASURED, "cudagraph") for name in configs}
        checker = Verdicts(DEEP)
        tuner = replace(a_tuner(journal, checker, Finals(finals)), check_all=check_all)
        winner = tuner._choose(ProblemBuild(a_session(tmp_path), configs, {}), journal.of(PROBLEM), report)
        journal.close()
        assert winner is not None
        assert winner.config == PLAIN
        assert winner.check is not None
        assert checker.checked == checked
        assert report.candidates[DEEP.name].outcome is Outcome.WRONG
        assert winner.runner_up == SPLIT.name


def test_a_runner_up_is_checked_where_that_is_quick(tmp_path: Path) -> None:
    """Under the interpreter, where a check takes seconds, the winner's is the only one."""
    finals = [final(PLAIN.name, 100), final(DEEP.name, 105)]
    for quick, checked, runner_up in ((True, [PLAIN.name, DEEP.name], ""), (False, [PLAIN.name], DEEP.name)):
        checker = Verdicts(DEEP, quick=quick)
        winner, _ = choose(tmp_path / f"{quick}", finals, checker)
        assert winner is not None
        assert (checker.checked, winner.runner_up) == (checked, runner_up)


@pytest.mark.parametrize(("vendor_us", "choice"), [(90, "vendor"), (100.2, "tie"), (103, "config")])
def test_a_config_wins_loses_or_ties(vendor_us: float, choice: str, tmp_path: Path) -> None:
    """The config is recorded all the same; a dispatcher uses it where it wins."""
    winner, _ = choose(tmp_path, [final(PLAIN.name, 100), final(VENDOR, vendor_us)])
    assert winner is not None
    assert (winner.config, winner.choice, winner.runner_up, winner.margin) == (PLAIN, choice, "", None)


@pytest.mark.parametrize("known", [True, False], ids=["unfit", "gone"])
def test_a_finalist_without_a_binary_cannot_be_checked(known: bool, tmp_path: Path) -> None:
    """As when its entry of the cache is lost, and its compile fails this time: the next one is chosen.

    That is no fact: a later run may have the binary again. What was checked before needs none.
    """
    finals = [final(PLAIN.name, 100), final(DEEP.name, 110)]
    why = Unfit(Outcome.COMPILE_TIMED_OUT, "no result after 1 s")
    for checked_before in (False, True):
        journal = Journal(tmp_path / f"journal_{checked_before}", {})
        journal.add_retimed(PROBLEM, finals)
        if checked_before:
            journal.add_check(PROBLEM, Verdicts().check(None, Candidate(PLAIN, ())))
        unfit = {PLAIN.name: why} if known else {}
        build = ProblemBuild(a_session(tmp_path), {DEEP.name: Candidate(DEEP, ())}, unfit)
        report = Report(PROBLEM)
        report.candidates = {name: Measurement(name, Outcome.MEASURED, "cudagraph") for name in (*unfit, DEEP.name)}
        winner = a_tuner(journal, Verdicts(), Finals(finals))._choose(build, journal.of(PROBLEM), report)
        journal.close()
        assert winner is not None
        if checked_before:
            assert winner.config == PLAIN
            continue
        assert (winner.config, winner.runner_up) == (DEEP, "")
        assert list(report.candidates) == [*unfit, DEEP.name]
        if known:
            lost = report.candidates[PLAIN.name]
            assert (lost.outcome, lost.duration_us) == (Outcome.COMPILE_TIMED_OUT, 100)
            assert lost.message.endswith("no result after 1 s")
        facts = journal.of(PROBLEM)
        assert (list(facts.checks), facts.unchecked) == ([DEEP.name], {})


def test_without_the_vendor_library_the_config_is_chosen(tmp_path: Path) -> None:
    """As for formats that it does not support."""
    winner, _ = choose(tmp_path, [final(PLAIN.name, 100)])
    assert winner is not None
    assert (winner.vendor_us, winner.vendor_interval_us, winner.choice) == (None, None, "config")


def test_a_vendor_library_without_a_time_is_told_and_changes_nothing(tmp_path: Path) -> None:
    """As where a trace does not show for certain what its call was: the report says why."""
    reason = "the vendor library is not timed: its calls differ"
    vendor = Measurement(VENDOR, Outcome.NOT_SEEN, "rocprofv3", "final", message=reason)
    winner, report = choose(tmp_path, [final(PLAIN.name, 100), vendor])
    assert winner is not None
    assert (winner.vendor_us, winner.vendor_interval_us, winner.choice) == (None, None, "config")
    assert report.vendor == vendor
    assert VENDOR not in report.candidates


def test_a_tie_goes_to_the_config_that_wins_neighbours(tmp_path: Path) -> None:
    """Winners of this run that the journal knows decide between equals; then the margin may be below 1."""
    finals = [final(PLAIN.name, 100), final(DEEP.name, 100.2)]
    alone, _ = choose(tmp_path / "alone", finals)
    assert alone is not None
    assert alone.config == PLAIN
    before = [replace(alone, problem=replace(PROBLEM, M=m), config=DEEP) for m in (32, 128)]
    winner, _ = choose(tmp_path / "neighbours", finals, before=before)
    assert winner is not None
    assert winner.config == DEEP
    assert winner.margin == pytest.approx(100 / 100.2)


def test_the_wrong_never_win(tmp_path: Path) -> None:
    """The next best takes the place; the wrong one is neither winner nor runner-up, and its outcome says so."""
    finals = [final(SPLIT.name, 90), final(PLAIN.name, 100), final(DEEP.name, 105)]
    checker = Verdicts(SPLIT)
    winner, report = choose(tmp_path, finals, checker)
    assert winner is not None
    assert (winner.config, winner.runner_up) == (PLAIN, DEEP.name)
    assert checker.checked == [SPLIT.name, PLAIN.name, DEEP.name]
    assert report.candidates[SPLIT.name].outcome is Outcome.WRONG
    assert "error ratio 0.5, worst row 0.25" in report.candidates[SPLIT.name].message


def test_times_beside_another_program_say_so(tmp_path: Path) -> None:
    """In the winner's source; that of its candidates is their timer's."""
    tuner, build = a_tuner(None, None), ProblemBuild(a_session(tmp_path), {})  # type: ignore[arg-type]
    tuner = replace(tuner, provenance=replace(tuner.provenance, shared=True))
    chosen = ConfirmationRound(final(PLAIN.name, 1)), ProblemFacts(), Report(PROBLEM)
    assert tuner._winner(build, *chosen).time_source == "cudagraph_shared"


def test_nobody_right_is_no_winner(tmp_path: Path) -> None:
    """And the report says why."""
    winner, report = choose(tmp_path, [final(PLAIN.name, 90), final(VENDOR, 80)], Verdicts(PLAIN))
    assert winner is None
    assert "correct" in report.message


def test_a_resumed_choice_is_the_same_and_measures_nothing(tmp_path: Path) -> None:
    """From the journal's samples and checks alone, the same winner to the last digit."""
    finals = [final(PLAIN.name, 100), final(SPLIT.name, 100.1), final(DEEP.name, 104), final(VENDOR, 101)]
    first, _ = choose(tmp_path, finals, Verdicts())
    profiler, checker = Finals([]), Verdicts()
    again, _ = choose(tmp_path, finals, checker, profiler=profiler)
    assert again == first is not None
    assert profiler.asked == []
    assert checker.checked == []


def test_what_cannot_be_checked_wins_all_the_same_and_is_said(tmp_path: Path) -> None:
    """A check never changes the choice: with one asked for, the same config is re-timed and wins."""
    gluon = Config("warp_specialized", 128, 160, 64)
    finals = [final(gluon.name, 90), final(PLAIN.name, 100)]
    checker = Verdicts()
    for name, asked in (("checked", checker), ("unchecked", None)):
        winner, report = choose(tmp_path / name, finals, asked)
        assert winner is not None
        assert (winner.config, winner.check) == (gluon, None)
        assert bool(report.unchecked) == (asked is checker)
    assert gluon.name not in checker.checked


def test_figures_are_of_rounds_that_chose_nobody(tmp_path: Path) -> None:
    """The config, the runner-up and the library's call are chosen by the finals; their times, and the tie, are not."""
    finals = [final(PLAIN.name, 100), final(DEEP.name, 102), final(VENDOR, 110), final(ALGORITHM, 104)]
    profiler = Finals(finals)
    again = [final(PLAIN.name, 103), final(DEEP.name, 102.5), final(VENDOR, 111), final(ALGORITHM, 103.2)]
    profiler.again = {m.config: m for m in again}
    winner, report = choose(tmp_path, finals, Verdicts(), profiler=profiler)
    assert winner is not None
    assert profiler.confirmed == [[PLAIN.name, DEEP.name, ALGORITHM, VENDOR]]
    assert (winner.config, winner.duration_us, winner.vendor, winner.vendor_us) == (PLAIN, 103, ALGORITHM, 103.2)
    assert (winner.runner_up, winner.runner_up_us, winner.torch_us, winner.choice) == (DEEP.name, 102.5, 111, "tie")
    assert winner.interval_us is not None
    assert winner.interval_us[0] < 103 < winner.interval_us[1]
    assert (report.vendor, report.torch) == (again[3], again[2])
    # Candidates' times are all of the rounds that chose.
    assert report.candidates[PLAIN.name].duration_us == 100


def test_a_config_lost_in_the_confirmation_does_not_win(tmp_path: Path) -> None:
    """The next one takes the place; what else is lost there is not compared with."""
    finals = [final(PLAIN.name, 100), final(DEEP.name, 102), final(SPLIT.name, 104), final(VENDOR, 110)]
    profiler = Finals(finals)
    lost = Measurement(PLAIN.name, Outcome.CRASHED, "cudagraph", "final", message="killed by SIGSEGV")
    profiler.again = {PLAIN.name: lost}
    winner, report = choose(tmp_path / "winner", finals, Verdicts(), profiler=profiler)
    assert winner is not None
    assert (winner.config, winner.runner_up) == (DEEP, SPLIT.name)
    assert report.candidates[PLAIN.name] == lost
    profiler = Finals(finals)
    gone = {name: Measurement(name, Outcome.NOT_SEEN, "cudagraph") for name in (DEEP.name, VENDOR)}
    profiler.again = gone
    winner, _ = choose(tmp_path / "others", finals, Verdicts(), profiler=profiler)
    assert winner is not None
    assert (winner.config, winner.duration_us, winner.runner_up_us) == (PLAIN, 100, None)
    assert (winner.vendor, winner.vendor_us, winner.torch_us, winner.choice) == ("", None, None, "config")


def test_the_winner_before_is_timed_beside_the_new_one(tmp_path: Path) -> None:
    """Or a line that names both would compare times of different rounds."""
    finals = [final(PLAIN.name, 100), final(DEEP.name, 102), final(SPLIT.name, 109)]
    profiler = Finals(finals)
    profiler.again = {SPLIT.name: final(SPLIT.name, 106)}
    journal = Journal(tmp_path / "journal", {})
    tuner = replace(a_tuner(journal, None, profiler), incumbents={PROBLEM: SPLIT})
    report = Report(PROBLEM)
    report.candidates = {m.config: replace(m, stage="screen") for m in finals}
    ready = {m.config: Candidate(Config.parse(m.config), ()) for m in finals}
    winner = tuner._choose(ProblemBuild(a_session(tmp_path), ready), journal.of(PROBLEM), report)
    journal.close()
    assert winner is not None
    assert profiler.confirmed == [[PLAIN.name, DEEP.name, SPLIT.name]]
    assert getattr(report.incumbent, "duration_us", None) == 106
