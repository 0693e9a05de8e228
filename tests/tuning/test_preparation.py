"""Sizes that are prepared ahead of their turn: what is done then, what is not, and who is told of what goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console
from small_gemms import target_of

from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.cache import BinaryCache
from genkern.compile.compile_queue import ResultCallback
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.errors import OutputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Candidate, Measurement, Resources
from genkern.journal.facts import read_journal
from genkern.journal.journal import Journal
from genkern.journal.search_steps import AskStep
from genkern.profiling.predict_profiler import PredictProfiler
from genkern.search.guided.predicted_order import PredictedOrder
from genkern.search.strategies import ChosenStrategy
from genkern.search.strategy import Strategy, Task
from genkern.space.space import load_space
from genkern.timing.session import Budget, Session
from genkern.tuning.progress import Progress
from genkern.tuning.tune import Provenance, Report, Tuner

GPU, SPACE = gpu_for_arch("gfx942"), load_space("amd_quick", "gfx942", "a16w16")
FIRST, NEXT = GemmProblem(16, 128, 256), GemmProblem(32, 128, 256)


class FarmOfNobody(Farm):
    """Makes every binary at once, and keeps who ordered and who stands behind."""

    def __init__(self, folder: Path) -> None:
        super().__init__(BinaryCache(folder), target_of("gfx942"), "3.6.0", jobs=2, timeout_s=1.0)
        self.ordered: dict[Hashable, list[CompileJob]] = {}
        self.standing: list[tuple[Hashable, bool]] = []
        self.gone: list[Hashable] = []

    def order(self, owner: Hashable, jobs: Sequence[tuple[int, CompileJob]], tell: ResultCallback) -> None:
        self.ordered.setdefault(owner, []).extend(job for _, job in jobs)
        for _, job in jobs:
            assert Path(job.module_path).exists()
            tell(job.key, Binary(job.key, "/entry", "symbol", Resources()))

    def set_background(self, owner: Hashable, *, background: bool) -> None:
        self.standing.append((owner, background))

    def drop(self, owner: Hashable, keys: object = None) -> None:
        self.gone.append(owner)


class Watched(PredictProfiler):
    """Calls `seen` with each session when it begins to measure."""

    def __init__(self, seen: Callable[[GemmProblem], None]) -> None:
        super().__init__()
        self._seen = seen

    def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
        self._seen(session.problem)
        return super().screen(session, units)


@dataclass
class Bench:
    """A tuner on a farm that makes everything at once, with a journal at `journal`."""

    tuner: Tuner
    farm: FarmOfNobody
    journal: Path
    modules: Path

    def prepared(self, problem: GemmProblem) -> None:
        """Have the problem prepared, and wait for it."""
        self.tuner.prepare(problem)
        self.tuner.preparations._on_the_way[problem]._thread.join()

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.modules.iterdir()) if self.modules.exists() else []


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    journals: list[Journal] = []

    def make(name: str = "one", seen: Callable[[GemmProblem], None] = lambda _: None, **changes: object) -> Bench:
        folder = tmp_path / name
        farm = FarmOfNobody(folder / "cache")
        where = {"module_dir": str(folder / "modules"), "keep_modules": False}
        build_environment = BuildEnvironment(farm, GPU, "gfx942", Budget(), init_type="hpl", **where)
        journals.append(journal := Journal(folder / "journal", {}))
        provenance, progress = Provenance("gfx942", "AMD Instinct MI300X", ()), Progress(Console(quiet=True))
        tuner = Tuner(lambda op: SPACE, build_environment, Watched(seen), None, journal, progress, provenance, Budget())
        return Bench(replace(tuner, **changes), farm, folder / "journal", folder / "modules")

    yield make
    for journal in journals:
        journal.close()


def outcome(report: Report) -> tuple[object, ...]:
    return report.winner, report.candidates, report.outcomes, report.message


def test_what_is_prepared_is_on_order_and_no_fact(make_bench: Callable[..., Bench]) -> None:
    """Its binaries are ordered behind others, its module is there, and the journal says nothing of it."""
    builder = make_bench()
    before = builder.journal.read_bytes()
    builder.prepared(NEXT)
    ((owner, ordered),) = builder.farm.ordered.items()
    assert len(ordered) == len({job.key for job in ordered}) >= 8
    assert builder.farm.standing == [(owner, True)]
    assert len(builder.files) == 2
    assert builder.journal.read_bytes() == before
    builder.tuner.close()
    assert builder.files == []
    assert owner in builder.farm.gone


def test_a_prepared_size_is_tuned_like_an_unprepared_one(make_bench: Callable[..., Bench]) -> None:
    """The same winner, the same outcomes, and the strategy is asked and told the same."""
    alone, ahead = make_bench("alone"), make_bench("ahead")
    ahead.prepared(NEXT)
    assert outcome(alone.tuner.tune(NEXT)) == outcome(ahead.tuner.tune(NEXT))
    assert ahead.files == []
    assert [behind for _, behind in ahead.farm.standing] == [True, False]
    steps = [found.steps for each in (alone, ahead) if (found := read_journal(each.journal).of(NEXT).searched)]
    asked = [[step for step in these if isinstance(step, AskStep)] for these in steps]
    assert asked[0] == asked[1] != []


def test_the_next_is_prepared_while_the_first_is_measured(make_bench: Callable[..., Bench]) -> None:
    """It may be once the first has ordered, and stands behind it to the end, when finals are timed too."""
    began: list[GemmProblem] = []

    def measuring(problem: GemmProblem) -> None:
        if problem == FIRST:
            deadline_s = time.monotonic() + 10
            while len(builder.farm.ordered) < 2:
                assert time.monotonic() < deadline_s
                time.sleep(0.005)
            began.extend(read_journal(builder.journal).facts)

    builder = make_bench(seen=measuring)
    builder.tuner.tune(FIRST, lambda: builder.tuner.prepare(NEXT))
    builder.tuner.preparations._on_the_way[NEXT]._thread.join()
    first, following = builder.farm.ordered
    assert began == [FIRST]
    assert builder.farm.standing == [(first, False), (following, True)]
    assert builder.tuner.tune(NEXT).winner is not None
    assert builder.farm.standing[2:] == [(following, False)]
    assert list(builder.farm.ordered) == [first, following]


@pytest.mark.parametrize("error", [KeyError("a bug"), OutputError("the disk is full")])
def test_what_goes_wrong_ahead_is_told_in_its_turn(error: Exception, make_bench: Callable[..., Bench]) -> None:
    """A bug ends the size that it is of, with the place where it happened; a full disk ends the run, but no sooner."""

    def make(task: Task) -> Strategy:
        if task.problem == NEXT:
            raise error
        return PredictedOrder(task)

    builder = make_bench(strategy=ChosenStrategy("own", make))
    builder.prepared(NEXT)
    assert builder.files == []
    assert builder.tuner.tune(FIRST).winner is not None
    if isinstance(error, OutputError):
        with pytest.raises(OutputError, match="the disk is full"):
            builder.tuner.tune(NEXT)
        return
    report = builder.tuner.tune(NEXT)
    assert report.message == "a bug in genkern: KeyError: 'a bug'"
    assert report.bug is not None
    assert "test_preparation.py" in report.bug.details
    assert list(read_journal(builder.journal).facts) == [FIRST, NEXT]


def test_what_is_forgotten_while_it_is_prepared_leaves_nothing(make_bench: Callable[..., Bench]) -> None:
    """Another device has taken it over: its orders are dropped, its module goes, nobody waits."""
    held, reached = threading.Event(), threading.Event()

    def make(task: Task) -> Strategy:
        reached.set()
        assert held.wait(10)
        return PredictedOrder(task)

    builder = make_bench(strategy=ChosenStrategy("own", make))
    builder.tuner.prepare(NEXT)
    assert reached.wait(10)
    thread = builder.tuner.preparations._on_the_way[NEXT]._thread
    builder.tuner.forget(NEXT)
    assert len(builder.files) == 2
    held.set()
    thread.join()
    assert builder.files == []
    assert set(builder.farm.ordered) == set(builder.farm.gone)
    assert (builder.farm.counts.wanted, builder.farm.counts.cached) == (0, 0)
    assert builder.tuner.tune(NEXT).winner is not None


def test_the_incumbent_is_made_first_also_ahead(make_bench: Callable[..., Bench]) -> None:
    """A winner of an earlier run is ordered before what the strategy asks for; one that is illegal is told as such."""
    outsider = Config("tiled", 64, 32, 64, num_warps=2, num_stages=2)
    builder = make_bench("legal", incumbents={NEXT: outsider})
    builder.prepared(NEXT)
    (ordered,) = builder.farm.ordered.values()
    assert dict(ordered[0].spec.constants)["BLOCK_SIZE_M"] == 64
    report = builder.tuner.tune(NEXT)
    assert report.incumbent is not None
    assert report.incumbent.config == outsider.name
    builder = make_bench("illegal", incumbents={NEXT: replace(outsider, SPLIT_K=0)})
    builder.prepared(NEXT)
    report = builder.tuner.tune(NEXT)
    assert report.incumbent is not None
    assert report.incumbent.message == "SPLIT_K is below 1"
