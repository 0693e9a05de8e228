"""Tests of genkern.compile.farm: real worker processes that compile, hang, die and are interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from long_tests import spread
from small_gemms import AMD, AMD_SPLIT, TRITON_VERSION, specs_of, target_of, write_module
from trouble_kernels import trouble_spec

import genkern.compile.farm
from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.errors import BugError, OutputError
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Outcome, Resources
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec

ROOT = Path(__file__).parents[2]
PLAIN = [f"plain_{number}" for number in range(4)]
# Compiles argv[3:] of the module argv[2] into the cache argv[1], and prints what became of them. It closes its farm, as
# the command does: a Ctrl-C may come where nothing else ends the workers. A shell that runs the tests in the background
# has SIGINT ignored in all that it starts.
_DRIVER = """
import contextlib, json, signal, sys
from pathlib import Path
from small_gemms import TRITON_VERSION, target_of
from trouble_kernels import trouble_spec
from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm

cache, module, *names = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)
farm = Farm(BinaryCache(cache), target_of("gfx942"), TRITON_VERSION, jobs=2, timeout_s=300)
with contextlib.closing(farm):
    results = list(farm.compile(module, [trouble_spec(name) for name in names]))
print(json.dumps([len(results), farm.counts.compiled, "torch" in sys.modules]))
"""


@pytest.fixture
def make_farm(hostile_path: Path) -> Callable[..., Farm]:
    """Make a farm for gfx942 with two workers and an empty cache."""

    def make(cache: Path = hostile_path / "cache", timeout_s: float = 60.0) -> Farm:
        return Farm(BinaryCache(cache), target_of("gfx942"), TRITON_VERSION, jobs=2, timeout_s=timeout_s)

    return make


def compiled(farm: Farm, module: Path, names: Sequence[str]) -> dict[str, Binary | Failure]:
    """What became of each named kernel."""
    specs = {farm.key(trouble_spec(name)): name for name in names}
    results = list(farm.compile(str(module), map(trouble_spec, names)))
    assert len(results) == len(specs)
    return {specs[result.key]: result for result in results}


def test_one_result_for_each_distinct_spec(make_farm: Callable[..., Farm], trouble: Path, cache_dir: Path) -> None:
    """Each spec is compiled once, however often it is wanted; a second run compiles nothing and starts no pool."""
    farm = make_farm()
    results = compiled(farm, trouble, PLAIN * 3)
    assert {name: type(result) for name, result in results.items()} == dict.fromkeys(PLAIN, Binary)
    assert (farm.counts.wanted, farm.counts.cached, farm.counts.compiled, farm.counts.failed) == (4, 0, 4, 0)
    assert farm.counts.compile_s > 0

    again = make_farm()
    again._work = None  # type: ignore[assignment,method-assign]  # would raise if it were used
    assert compiled(again, trouble, PLAIN) == results
    assert (again.counts.wanted, again.counts.cached, again.counts.compiled) == (4, 4, 0)


class HeldPool:
    """A pool of workers that begin what they are given and end it when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: dict[str, Future[Binary | Failure]] = {}
        monkeypatch.setattr("genkern.compile.pool.submit", self._begin)
        monkeypatch.setattr("genkern.compile.pool.ready", lambda workers: Future())

    def _begin(self, job: CompileJob, workers: int) -> Future[Binary | Failure]:
        self.begun[job.spec.function] = Future()
        return self.begun[job.spec.function]

    def wait_for(self, *names: str) -> None:
        """Wait until these are begun, and no others are."""
        deadline = time.monotonic() + 20
        while list(self.begun) != list(names):
            assert time.monotonic() < deadline, (list(self.begun), names)
            time.sleep(0.005)

    def end(self, farm: Farm, name: str) -> None:
        key = farm.key(trouble_spec(name))
        self.begun.pop(name).set_result(Binary(key, "/entry", name, Resources()))


class Owner:
    """Orders jobs of a farm by name, each with a rank, and keeps what it is told."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm
        self.told: list[str] = []

    def order(self, *named: tuple[int, str]) -> None:
        specs = [(rank, trouble_spec(name)) for rank, name in named]
        jobs = [(rank, self._farm.job(self._farm.key(spec), "/module.py", spec)) for rank, spec in specs]
        self._farm.order(self, jobs, self._tell)

    def drop(self, *names: str) -> None:
        self._farm.drop(self, [self._farm.key(trouble_spec(name)) for name in names])

    def _tell(self, key: str, result: Binary | Failure | Exception) -> None:
        self._farm.claim((key,))
        self.told.append(result.symbol if isinstance(result, Binary) else type(result).__name__)


def test_what_is_wanted_most_is_begun_next(make_farm: Callable[..., Farm], monkeypatch: pytest.MonkeyPatch) -> None:
    """However late it was ordered; what is dropped is not begun, and of what was begun before nobody is told."""
    pool, farm = HeldPool(monkeypatch), make_farm()
    owner = Owner(farm)
    owner.order(*((rank, f"k{rank}") for rank in range(10)))
    # Two workers, and two jobs that wait for them.
    pool.wait_for("k0", "k1", "k2", "k3")
    owner.order((-1, "late"))
    owner.drop("k1", "k4", "k5")
    pool.end(farm, "k0")
    pool.wait_for("k1", "k2", "k3", "late")
    pool.end(farm, "k1")
    pool.wait_for("k2", "k3", "late", "k6")
    assert owner.told == ["k0"]
    pool.end(farm, "late")
    assert owner.told == ["k0", "late"]
    farm.drop(owner)
    for name in ("k2", "k3", "k6", "k7"):
        if name in pool.begun:
            pool.end(farm, name)
    assert owner.told == ["k0", "late"]


def test_owners_share_the_pool_evenly(make_farm: Callable[..., Farm], monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is long and was there first lets the other one's begin; each its own most wanted first."""
    pool, farm = HeldPool(monkeypatch), make_farm()
    one, other = Owner(farm), Owner(farm)
    one.order(*((rank, f"a{rank}") for rank in range(10)))
    pool.wait_for("a0", "a1", "a2", "a3")
    other.order((7, "b7"), (5, "b5"), (6, "b6"))
    pool.end(farm, "a0")
    pool.wait_for("a1", "a2", "a3", "b5")
    pool.end(farm, "a1")
    pool.wait_for("a2", "a3", "b5", "b6")
    pool.end(farm, "b5")
    pool.wait_for("a2", "a3", "b6", "b7")
    pool.end(farm, "a2")
    pool.wait_for("a3", "b6", "b7", "a4")
    assert (one.told, other.told) == (["a0", "a1", "a2"], ["b5"])


def test_what_several_want_is_done_once(make_farm: Callable[..., Farm], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are told; it goes on where the one who was first wants it no more; to the others it was cached."""
    pool, farm = HeldPool(monkeypatch), make_farm()
    one, other, third = Owner(farm), Owner(farm), Owner(farm)
    one.order((0, "x"), (1, "y"))
    other.order((0, "x"), (1, "y"))
    pool.wait_for("x", "y")
    one.drop("y")
    pool.end(farm, "x")
    pool.end(farm, "y")
    assert (one.told, other.told) == (["x"], ["x", "y"])
    # Where the cache has lost what was made, or it was damaged, it is made again.
    third.order((0, "y"))
    pool.wait_for("y")
    made = Binary("key", "/entry", "x", Resources())
    monkeypatch.setattr(farm.cache, "get", lambda key: made)
    third.order((0, "x"))
    assert (third.told, farm.counts.compiled, farm.counts.cached) == (["x"], 2, 2)
    pool.end(farm, "y")


def test_an_owner_that_leaves_takes_no_other_ones_result(
    make_farm: Callable[..., Farm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a job whose owner is gone, with its module say, is not the other one's: that one's job is done."""
    pool, farm = HeldPool(monkeypatch), make_farm()
    one, other = Owner(farm), Owner(farm)
    one.order((0, "x"))
    other.order((0, "x"))
    pool.wait_for("x")
    farm.drop(one)
    pool.begun.pop("x").set_exception(BugError("no such module"))
    pool.wait_for("x")
    pool.begun.pop("x").set_exception(BugError("a bug"))
    assert (one.told, other.told) == ([], ["BugError"])


def test_sizes_share_binaries(make_farm: Callable[..., Farm], hostile_path: Path) -> None:
    """The second size with the same overhang compiles nothing, though its module is another file."""
    farm = make_farm()
    keys = []
    for problem in (GemmProblem(100, 64, 4097), GemmProblem(4000, 640, 129)):
        module = generate(problem, [AMD, AMD_SPLIT], "gfx942")
        path = write_module(hostile_path, module)
        specs = [spec for config in (AMD, AMD_SPLIT) for spec in specs_of(module, config)]
        keys.append({result.key for result in farm.compile(str(path), specs) if isinstance(result, Binary)})
    assert keys[0] == keys[1]
    assert (farm.counts.compiled, farm.counts.cached) == (3, 3)


def test_a_hang_and_a_death_cost_themselves_only(
    make_farm: Callable[..., Farm], trouble: Path, hostile_path: Path
) -> None:
    """A compile that hangs and one that dies each end in their outcome; all others are compiled.

    On the next run what hung or died is tried again, what was refused is not.
    """
    names = ["hang", "die", "refuse", *PLAIN]
    # On a machine that is busy the others take long too: a start and a compile, as they are now.
    started_s = time.monotonic()
    compiled(make_farm(hostile_path / "other_cache"), trouble, PLAIN[:1])
    farm = make_farm(timeout_s=1.0 + 5 * (time.monotonic() - started_s))
    results = compiled(farm, trouble, names)
    assert all(isinstance(results[name], Binary) for name in PLAIN)
    failures = {name: result for name, result in results.items() if isinstance(result, Failure)}
    assert {name: failure.outcome for name, failure in failures.items()} == {
        "hang": Outcome.COMPILE_TIMED_OUT,
        "die": Outcome.COMPILE_FAILED,
        "refuse": Outcome.COMPILE_FAILED,
    }
    assert "SIGSEGV" in failures["die"].message
    assert farm.counts.failures == {failure.key: failure.message for failure in failures.values()}
    assert (farm.counts.compiled, farm.counts.failed, farm.counts.restarts) == (4, 3, 0)

    again = make_farm(timeout_s=60.0)
    known = compiled(again, trouble, ["refuse", *PLAIN])
    assert known["refuse"] == failures["refuse"]
    assert (again.counts.cached, again.counts.compiled, again.counts.failed) == (5, 0, 0)
    assert again.cache.get(failures["hang"].key) is None
    assert again.cache.get(failures["die"].key) is None


def test_a_killed_worker_costs_nothing(make_farm: Callable[..., Farm], trouble: Path) -> None:
    """When a worker is killed (the kernel's out-of-memory killer, say) the farm starts anew and finishes."""
    farm = make_farm()
    compiled(farm, trouble, ["plain_4"])
    started_s = time.monotonic()
    results = compiled(farm, trouble, ["kill_worker_once", *PLAIN])
    print(f"recovery killed compile worker, and five compiles: {time.monotonic() - started_s:.2f} s")
    assert {type(result) for result in results.values()} == {Binary}
    assert farm.counts.restarts >= 1
    assert farm.counts.compiled == 6


def test_workers_that_are_always_killed_are_given_up(
    make_farm: Callable[..., Farm], trouble: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that kills every worker does not keep the farm busy for ever."""
    monkeypatch.setattr(genkern.compile.farm, "_FRUITLESS_RESTARTS", 2)
    farm = make_farm()
    failure = compiled(farm, trouble, ["kill_worker"])["kill_worker"]
    assert isinstance(failure, Failure)
    assert failure.outcome is Outcome.COMPILE_FAILED
    assert "workers keep" in failure.message
    assert farm.cache.get(failure.key) is None


def test_a_full_disk_stops_the_farm(make_farm: Callable[..., Farm], trouble: Path) -> None:
    """What a worker cannot write is an OutputError here, in the user's process."""
    with pytest.raises(OutputError, match="No space left on device"):
        compiled(make_farm(), trouble, ["full"])


def test_a_bug_comes_out_and_the_farm_goes_on(make_farm: Callable[..., Farm], trouble: Path) -> None:
    """A wrong text ends what it is asked with, in the user's process, with its traceback; the next is compiled."""
    farm = make_farm()
    with pytest.raises(BugError, match="NameError: tile_of") as caught:
        compiled(farm, trouble, ["no_name", *PLAIN])
    assert "Traceback" in caught.value.details
    assert farm.counts.failed == 0
    assert farm.cache.get(farm.key(trouble_spec("no_name"))) is None
    results = compiled(farm, trouble, [*PLAIN, "plain_4", "plain_5"])
    assert {type(result) for result in results.values()} == {Binary}


def test_failures_are_not_asked_twice(make_farm: Callable[..., Farm], trouble: Path) -> None:
    """Refused kernels come from the cache in the next run, with the same words."""
    farm = make_farm()
    spec: KernelSpec = trouble_spec("refuse")
    farm.cache.put_failure(Failure(farm.key(spec), Outcome.COMPILE_FAILED, "as remembered"))
    (result,) = farm.compile("/no/such/module.py", [spec])
    assert isinstance(result, Failure)
    assert result.message == "as remembered"
    assert farm.counts.cached == 1


def _environment(mark: str, first: Path) -> dict[str, str]:
    path = os.pathsep.join([str(first), str(ROOT), str(ROOT / "tests")])
    return {**os.environ, "PYTHONPATH": path, "GENKERN_TEST_MARK": mark}


def _marked(mark: str) -> dict[int, str]:
    """Processes that were started with this mark in their environment, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"GENKERN_TEST_MARK={mark}\0".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100]
    return found


def test_no_pytorch_and_no_gpu(trouble: Path, hostile_path: Path) -> None:
    """Neither the driver nor a worker nor a compile so much as tries to import PyTorch."""
    fake = hostile_path / "torch.py"
    fake.write_text(
        f"open({str(hostile_path / 'imported')!r}, 'x').close()\nraise ImportError('there is no PyTorch')\n"
    )
    argv = [sys.executable, "-c", _DRIVER, str(hostile_path / "cache"), str(trouble), *PLAIN]
    environment = _environment(uuid.uuid4().hex, hostile_path)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [4, 4, False]
    assert not (hostile_path / "imported").exists()


@pytest.mark.parametrize("how", spread([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], 2), ids=lambda how: how.name)
def test_nothing_outlives_the_driver(trouble: Path, hostile_path: Path, how: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and kill -9, in the middle of two compiles that hang, leave no process behind."""
    mark = uuid.uuid4().hex
    argv = [sys.executable, "-c", _DRIVER, str(hostile_path / "cache"), str(trouble), "hang", *PLAIN]
    with open(hostile_path / "said", "wb") as said:
        # No pipe: a process that stays behind would hold it open.
        driver = subprocess.Popen(
            argv, env=_environment(mark, hostile_path), start_new_session=True, stderr=said, stdout=said
        )
    try:
        deadline = time.monotonic() + 60
        while not list(hostile_path.glob("trouble.py.hangs.*")):
            assert driver.poll() is None, (hostile_path / "said").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(_marked(mark)) >= 3
        if how is signal.SIGINT:
            os.killpg(driver.pid, how)  # as the terminal does it
        else:
            driver.send_signal(how)
        driver.wait(60)
        assert driver.returncode != 0
        deadline = time.monotonic() + 20
        while left := _marked(mark):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
    finally:
        driver.kill()
        for pid in _marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_close_ends_what_hangs(make_farm: Callable[..., Farm], trouble: Path) -> None:
    """Closing a farm ends its workers in the middle of a compile; the thread that waits for them goes on at once."""
    farm = make_farm(timeout_s=300.0)
    raised: list[BaseException] = []

    def wait_for_it() -> None:
        try:
            compiled(farm, trouble, ["hang"])
        except BaseException as error:
            raised.append(error)

    waiting = threading.Thread(target=wait_for_it, daemon=True)
    waiting.start()
    deadline = time.monotonic() + 60
    while not list(trouble.parent.glob("trouble.py.hangs.*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    farm.close()
    waiting.join(30)
    assert not waiting.is_alive()
    assert len(raised) == 1
    # Another farm of this process starts workers of its own.
    assert isinstance(compiled(make_farm(), trouble, ["plain"])["plain"], Binary)
