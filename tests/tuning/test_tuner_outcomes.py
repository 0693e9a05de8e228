"""Every candidate has exactly one outcome, and nothing is measured twice."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from small_gemms import target_of

from genkern.cli.target import versions
from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.farm import Farm
from genkern.errors import ProfilerError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Binary, Candidate, Check, Measurement, Outcome, Unfit
from genkern.journal.journal import Journal
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.specs import kernel_specs
from genkern.ops.op import get_op
from genkern.search.cost_model.predict import promising_first
from genkern.search.limit import NO_LIMIT, Limit
from genkern.search.strategies import chosen_strategy
from genkern.space.prune import prune
from genkern.space.space import Space, load_space
from genkern.timing.profiler import ExclusiveDevice
from genkern.timing.session import Budget, Session
from genkern.tuning.preparation import Preparation
from genkern.tuning.progress import Progress
from genkern.tuning.tune import Provenance, Report, Tuner

PROBLEM = GemmProblem(16, 128, 256)
SPACE, GPU = load_space("amd_quick", "gfx942", "a16w16"), gpu_for_arch("gfx942")
KEPT = [config.name for config in prune(SPACE, PROBLEM, GPU).kept]
# A winner of an earlier run with another space.
OUTSIDER = Config("tiled", 64, 32, 64, num_warps=2, num_stages=2)
SCREENED = (
    *[Outcome.MEASURED] * 3,
    *(Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.LAUNCH_FAILED, Outcome.NOT_SEEN, Outcome.OVER_RESOURCES),
)


Outcomes = dict[str, Outcome]


class Killed(BaseException):
    """The run ends here."""


class Scripted(ExclusiveDevice):
    """Profiler and checker with outcomes by name; ends the run after `lives` facts."""

    time_source = "cudagraph"
    quick = True
    rows = None

    def __init__(self, script: Outcomes, finals: Outcomes, wrong: set[str], lives: int = 10**6) -> None:
        self._script, self._finals, self._wrong, self._lives = script, finals, wrong, lives
        self.asked: list[str] = []
        self.best_us: float | None = None

    def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
        self.best_us = session.best_us
        for candidate in itertools.chain.from_iterable(units):
            yield self._measurement(candidate.config.name, self._script, "screen")

    def retime(self, session: Session, finalists: Sequence[Candidate]) -> list[Measurement]:
        self._live("finals")
        return [self._measurement(one.config.name, self._finals, "final") for one in finalists]

    def confirm(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        self._live("confirm")
        return [self._measurement(one.config.name, self._finals, "final") for one in finalists]

    def can_check(self, config: Config) -> bool:
        return True

    def check(self, session: Session, candidate: Candidate) -> Check:
        name = candidate.config.name
        self._live(f"check {name}")
        return Check(name, name not in self._wrong, 0.5, 0.5, session.problem.size, "gpu")

    def close(self) -> None:
        pass

    def _measurement(self, name: str, script: Outcomes, stage: str) -> Measurement:
        if stage == "screen":
            self._live(f"screen {name}")
        outcome = script.get(name, Outcome.MEASURED)
        place = KEPT.index(name) if name in KEPT else 5
        us = 10.0 + place if outcome is Outcome.MEASURED else None
        return Measurement(name, outcome, self.time_source, stage, us, () if us is None else (us,) * 5)

    def _live(self, event: str) -> None:
        self._lives -= 1
        if self._lives < 0:
            raise Killed
        self.asked.append(event)


@pytest.fixture(scope="module")
def workshop(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildEnvironment]:
    """A build environment with a cache that has everything after the first test."""
    farm = Farm(BinaryCache(cache_dir / "binaries"), target_of("gfx942"), versions()["triton"], jobs=2, timeout_s=60)
    folder = tmp_path_factory.mktemp("modules")
    with closing(farm):
        yield BuildEnvironment(
            farm, GPU, "gfx942", Budget(), init_type="randn", module_dir=str(folder), keep_modules=False
        )


def tuned(
    build_environment: BuildEnvironment,
    journal: Path,
    script: Scripted,
    space: Space = SPACE,
    incumbent: Config | None = None,
    search: str = "predicted",
    limit: Limit = NO_LIMIT,
) -> Report:
    """One size tuned, with facts in `journal`; `incumbent` won it before."""
    with closing(Journal(journal, {})) as facts:
        tuner = Tuner(
            lambda op: space,
            build_environment,
            script,
            script,
            facts,
            Progress(Console()),
            Provenance("gfx942", "AMD Instinct MI300X", ()),
            Budget(finalists=4),
            strategy=chosen_strategy(search),
            limit=limit,
            incumbents={PROBLEM: incumbent} if incumbent else {},
        )
        return tuner.tune(PROBLEM)


SCRIPTS = st.dictionaries(st.sampled_from(KEPT), st.sampled_from(SCREENED))
FINALS = st.dictionaries(st.sampled_from(KEPT), st.sampled_from([Outcome.MEASURED, Outcome.CRASHED, Outcome.NOT_SEEN]))
WRONG = st.sets(st.sampled_from(KEPT))
QUICK = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(script=SCRIPTS, finals=FINALS, wrong=WRONG)
def test_every_candidate_ends_in_exactly_one_outcome(
    script: Outcomes,
    finals: Outcomes,
    wrong: set[str],
    workshop: BuildEnvironment,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever happens to whom: the counts add up to the space, and the winner is the best of those that are right."""
    report = tuned(workshop, tmp_path_factory.mktemp("journal") / "j", Scripted(script, finals, wrong))
    assert set(report.candidates) == set(KEPT)
    assert all(name == m.config for name, m in report.candidates.items())
    assert sum(report.outcomes.values()) == SPACE.size
    assert report.outcomes[Outcome.PRUNED] == SPACE.size - len(KEPT)
    counted = Counter(m.outcome for m in report.candidates.values())
    assert all(report.outcomes[outcome] == count for outcome, count in counted.items())
    first = [name for name in KEPT if script.get(name, Outcome.MEASURED) is Outcome.MEASURED][:4]
    right = [name for name in first if finals.get(name, Outcome.MEASURED) is Outcome.MEASURED and name not in wrong]
    assert (report.winner.config.name if report.winner else None) == (right[0] if right else None)
    assert bool(report.message) == (report.winner is None)
    for name, measurement in report.candidates.items():
        if measurement.outcome is Outcome.WRONG:
            assert name in wrong


class Broken(Scripted):
    """A device that this config breaks: it is lost, and so is each one after it, until the run is given up."""

    def __init__(self, breaks: str, lost: int) -> None:
        super().__init__({}, {}, set())
        self._breaks, self._lost = breaks, lost

    def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
        lost = 0
        for measurement in super().screen(session, units):
            if lost or measurement.config == self._breaks:
                lost += 1
                yield replace(measurement, outcome=Outcome.CRASHED, duration_us=None, samples_us=())
                if lost == self._lost:
                    raise ProfilerError("GPU 0 is broken")
            else:
                yield measurement


def test_what_breaks_the_device_is_not_tried_again(workshop: BuildEnvironment, tmp_path: Path) -> None:
    """Configs that were lost after it are: it was the device that failed them."""
    breaks = KEPT[0]
    with pytest.raises(ProfilerError):
        tuned(workshop, tmp_path / "j", Broken(breaks, 3))
    again = Scripted({}, {}, set())
    report = tuned(workshop, tmp_path / "j", again)
    assert f"screen {breaks}" not in again.asked
    assert report.candidates[breaks].outcome is Outcome.CRASHED
    assert report.outcomes[Outcome.CRASHED] == 1
    assert len(again.asked) == len(set(again.asked))


@QUICK
@given(script=SCRIPTS, finals=FINALS, wrong=WRONG, lives=st.lists(st.integers(0, len(KEPT) + 6), max_size=3))
def test_a_resumed_run_repeats_nothing(
    script: Outcomes,
    finals: Outcomes,
    wrong: set[str],
    lives: list[int],
    workshop: BuildEnvironment,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Killed any number of times, it asks for each fact once, and ends as an undisturbed one."""
    folder = tmp_path_factory.mktemp("journal")
    undisturbed = tuned(workshop, folder / "whole", Scripted(script, finals, wrong))
    asked: list[str] = []
    for some in [*lives, 10**6]:
        run = Scripted(script, finals, wrong, some)
        try:
            report = tuned(workshop, folder / "parts", run)
        except Killed:
            continue
        finally:
            asked += run.asked
    assert len(asked) == len(set(asked))
    assert report.winner == undisturbed.winner
    assert report.candidates == undisturbed.candidates
    assert report.outcomes == undisturbed.outcomes


def test_the_promising_are_screened_first(workshop: BuildEnvironment, tmp_path: Path) -> None:
    """With all binaries in the cache, in the predictor's order and not in that of the space."""
    script = Scripted({}, {}, set())
    for name in ("cold", "warm"):
        script = Scripted({}, {}, set())
        tuned(workshop, tmp_path / name, script)
    promising = promising_first(PROBLEM, map(Config.parse, KEPT), GPU)
    screened = [Config.parse(event.partition(" ")[2]) for event in script.asked if event.startswith("screen ")]

    def binaries(configs: Iterable[Config]) -> list[tuple[Config, bool]]:
        return list(dict.fromkeys((replace(c, GROUP_SIZE_M=1, SPLIT_K=1), c.SPLIT_K > 1) for c in configs))

    assert binaries(screened) == binaries(promising) != binaries(map(Config.parse, KEPT))


def test_a_resumed_run_knows_the_best_time(workshop: BuildEnvironment, tmp_path: Path) -> None:
    """The measured process hears it, since the best may have been measured by the one before."""
    first, second = Scripted({}, {}, set(), lives=5), Scripted({}, {}, set())
    with pytest.raises(Killed):
        tuned(workshop, tmp_path / "j", first)
    assert first.best_us is None
    tuned(workshop, tmp_path / "j", second)
    assert second.best_us == 10.0 + min(KEPT.index(event.partition(" ")[2]) for event in first.asked)


@pytest.mark.parametrize("incumbent", [OUTSIDER, Config.parse(KEPT[7])], ids=["outside the space", "in the space"])
def test_an_earlier_winner_races_again(workshop: BuildEnvironment, tmp_path: Path, incumbent: Config) -> None:
    """It is measured once and among the finalists, however it did in the screening, and can win again."""
    script = Scripted({}, {}, set(KEPT) - {incumbent.name})
    report = tuned(workshop, tmp_path / "j", script, incumbent=incumbent)
    assert report.winner is not None
    assert report.winner.config == incumbent
    assert script.asked.count(f"screen {incumbent.name}") == 1
    assert report.incumbent == report.candidates[incumbent.name]
    assert report.incumbent is not None
    assert report.incumbent.stage == "final"
    assert len(report.candidates) == len({*KEPT, incumbent.name})


def test_an_earlier_winner_that_cannot_compute_the_size_is_told(workshop: BuildEnvironment, tmp_path: Path) -> None:
    """It is neither generated nor measured, and another config wins."""
    illegal = Config("gemv", 1, 4, 512, num_warps=4, num_stages=1)
    script = Scripted({}, {}, set())
    report = tuned(workshop, tmp_path / "j", script, incumbent=illegal)
    assert report.winner is not None
    assert not [asked for asked in script.asked if illegal.name in asked]
    assert report.incumbent == report.candidates[illegal.name]
    assert (report.incumbent.outcome, report.incumbent.message) == (Outcome.ILLEGAL, "gemv multiplies one row of A")
    assert report.outcomes[Outcome.ILLEGAL] == 1


def test_an_earlier_winner_that_fails_is_no_finalist(workshop: BuildEnvironment, tmp_path: Path) -> None:
    """A driver or a compiler may have changed since; the report says how it ended."""
    report = tuned(workshop, tmp_path / "j", Scripted({OUTSIDER.name: Outcome.CRASHED}, {}, set()), incumbent=OUTSIDER)
    assert report.winner is not None
    assert report.winner.config.name == KEPT[0]
    assert report.incumbent is not None
    assert report.incumbent.outcome is Outcome.CRASHED


def test_a_lost_check_says_nothing_and_is_made_again(workshop: BuildEnvironment, tmp_path: Path) -> None:
    """The config does not win this time, and is not called wrong; when the run goes on it is checked, and wins."""

    class Lossy(Scripted):
        def check(self, session: Session, candidate: Candidate) -> Check:
            made = super().check(session, candidate)
            lost = candidate.config.name == KEPT[0]
            return replace(made, passed=False, method=NOT_CHECKED, lost=Outcome.CRASHED) if lost else made

    # Killed in the second check, after the first was lost; the runner-up's is the third, before the confirmation.
    whole = Lossy({}, {}, set())
    report = tuned(workshop, tmp_path / "whole", whole)
    assert report.winner is not None
    assert report.winner.config.name == KEPT[1]
    assert report.candidates[KEPT[0]].outcome is Outcome.CRASHED
    assert report.outcomes[Outcome.WRONG] == 0
    with pytest.raises(Killed):
        tuned(workshop, tmp_path / "parts", Lossy({}, {}, set(), lives=len(whole.asked) - 3))
    again = Scripted({}, {}, set())
    report = tuned(workshop, tmp_path / "parts", again)
    assert again.asked == [f"check {KEPT[0]}", f"check {KEPT[1]}", "confirm"]
    assert report.winner is not None
    assert report.winner.config.name == KEPT[0]


@pytest.mark.parametrize("lives", [0, 3, len(KEPT) - 2])
def test_what_did_not_compile_stays_out_of_the_race(
    workshop: BuildEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: int
) -> None:
    """A run that goes on does not compile it again, and ends as if nobody had killed it; a new run tries it."""
    # Of the most promising, so that it is known when the run is killed.
    most = promising_first(PROBLEM, map(Config.parse, KEPT), GPU)[0]
    refused = workshop.farm.key(specs_of(workshop, most.name)[0])
    losers = {name for name in KEPT if refused in map(workshop.farm.key, specs_of(workshop, name))}
    refusing, asked = [True], set()
    looked_up = workshop.farm.cache.get

    def look_up(key: str) -> Binary | Failure | None:
        asked.add(key)
        if refusing and key == refused:
            return Failure(refused, Outcome.COMPILE_TIMED_OUT, "no result after 60 s")
        return looked_up(key)

    monkeypatch.setattr(workshop.farm.cache, "get", look_up)
    whole = tuned(workshop, tmp_path / "whole", Scripted({}, {}, set()))
    assert whole.outcomes[Outcome.COMPILE_TIMED_OUT] == len(losers) > 0
    with pytest.raises(Killed):
        tuned(workshop, tmp_path / "parts", Scripted({}, {}, set(), lives))
    refusing.clear()
    asked.clear()
    resumed = tuned(workshop, tmp_path / "parts", Scripted({}, {}, set()))
    assert asked
    assert refused not in asked
    assert (resumed.winner, resumed.candidates) == (whole.winner, whole.candidates)
    assert resumed.outcomes == whole.outcomes
    anew = tuned(workshop, tmp_path / "anew", Scripted({}, {}, set()))
    assert anew.winner is not None
    assert anew.winner.config.name == KEPT[0]


def specs_of(build_environment: BuildEnvironment, name: str) -> list[KernelSpec]:
    """What a config is compiled from."""
    module = generate(PROBLEM, [Config.parse(kept) for kept in KEPT], build_environment.arch, build_environment.gpu)
    return kernel_specs(PROBLEM, Config.parse(name), get_op(PROBLEM.op), module.source_sha256, module.arch)


def test_a_config_that_was_screened_was_fit(workshop: BuildEnvironment, tmp_path: Path) -> None:
    """When its binary is lost and does not compile again, that is no fact: the next run that goes on may have it."""
    with closing(Journal(tmp_path / "j", {})) as journal:
        journal.add_screened(PROBLEM, Measurement(KEPT[0], Outcome.MEASURED, "cudagraph"))
        preparation = Preparation(workshop, journal, Budget(), chosen_strategy(), NO_LIMIT, 0)
        with workshop.open(PROBLEM, [Config.parse(name) for name in KEPT], 0) as builder:
            preparation._search(builder, journal.of(PROBLEM), [], [])
            builder.on_unfit(KEPT[:2], Unfit(Outcome.COMPILE_FAILED, "refused"))
        assert list(journal.of(PROBLEM).unfit) == KEPT[1:2]


def test_a_size_that_no_config_suits_is_counted(workshop: BuildEnvironment, tmp_path: Path) -> None:
    """All of the space is pruned, and the report says so."""
    script = Scripted({}, {}, set())
    with closing(Journal(tmp_path / "j", {})) as journal:
        nobody = SPACE.__class__(SPACE.name, SPACE.archs, SPACE.ops, SPACE.families[:0], SPACE.rules)
        provenance = Provenance("gfx942", "AMD Instinct MI300X", ())
        tuner = Tuner(lambda op: nobody, workshop, script, None, journal, Progress(Console()), provenance, Budget())
        report = tuner.tune(PROBLEM)
    assert report.winner is None
    assert "--explain" in report.message
    assert sum(report.outcomes.values()) == 0
    assert script.asked == []


@pytest.mark.parametrize("lives", [1, 3, 5])
def test_copies_are_not_measured_again_by_a_resumed_run(cache_dir: Path, tmp_path: Path, lives: int) -> None:
    """Of each pair of copies one is measured, the same one when the run goes on, and each config has its outcome.

    On gfx950 Triton ignores kpack.
    """
    gpu = gpu_for_arch("gfx950")
    (family,) = SPACE.families
    chosen = {"kpack": (1, 2), "BLOCK_SIZE_N": (64, 128), "BLOCK_SIZE_K": (64,)}
    ranges = tuple((name, chosen.get(name, values)) for name, values in family.ranges)
    space = replace(SPACE, families=(replace(family, ranges=ranges),))
    kept = [config.name for config in prune(space, PROBLEM, gpu).kept]
    farm = Farm(BinaryCache(cache_dir / "binaries"), target_of("gfx950"), versions()["triton"], jobs=2, timeout_s=60)
    modules = str(tmp_path / "modules")
    script = Scripted({}, {}, set(), lives)
    with closing(farm):
        build_environment = BuildEnvironment(
            farm, gpu, "gfx950", Budget(), init_type="randn", module_dir=modules, keep_modules=False
        )
        with pytest.raises(Killed):
            tuned(build_environment, tmp_path / "journal", script, space)
        measured = [event for event in script.asked if event.startswith("screen")]
        again = Scripted({}, {}, set())
        report = tuned(build_environment, tmp_path / "journal", again, space)
    assert not set(measured) & set(again.asked)
    outcomes = Counter(m.outcome for m in report.candidates.values())
    assert outcomes == {Outcome.MEASURED: len(kept) // 2, Outcome.IDENTICAL: len(kept) // 2}
    assert set(report.candidates) == set(kept)
    assert sum(report.outcomes.values()) == space.size
    for name, m in report.candidates.items():
        if m.outcome is Outcome.IDENTICAL:
            twin = m.message.split()[-1]
            assert report.candidates[twin].outcome is Outcome.MEASURED
            assert replace(Config.parse(twin), kpack=1) == replace(Config.parse(name), kpack=1)
