"""Tests of genkern.farm.farm: real worker processes that compile, hang, die and are interrupted."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from long_tests import spread
from small_gemms import AMD, AMD_SPLIT, TRITON_VERSION, specs_of, target_of, write_module
from trouble_kernels import trouble_spec

import genkern.farm.farm
from genkern.errors import BugError, OutputError
from genkern.farm.cache import BinaryCache, Failure
from genkern.farm.compiler import CompileJob
from genkern.farm.farm import Farm
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Outcome
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
from genkern.farm.cache import BinaryCache
from genkern.farm.farm import Farm

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
    again._pool = None  # type: ignore[assignment]  # would raise if it were used
    assert compiled(again, trouble, PLAIN) == results
    assert (again.counts.wanted, again.counts.cached, again.counts.compiled) == (4, 4, 0)


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_nothing_is_begun_once_it_is_enough(
    make_farm: Callable[..., Farm], trouble: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """What is taken from the list before that still has a result; nothing else has, nor is the pool started again."""
    pools = []

    def results_of(jobs: Iterable[CompileJob], workers: int) -> Iterator[Failure]:
        pools.append(workers)
        taken = iter(jobs)
        while some := list(itertools.islice(taken, 2)):
            yield from (Failure(job.key, Outcome.COMPILE_FAILED, "no") for job in some)

    monkeypatch.setattr("genkern.farm.pool.results_of", results_of)
    found: list[Binary | Failure] = []
    for result in make_farm().compile(str(trouble), map(trouble_spec, PLAIN), lambda: len(found) >= most):
        found.append(result)
    assert len(found) == (most + 1) // 2 * 2
    assert len(pools) == 1


def test_what_the_cache_has_waits_for_its_turn(
    make_farm: Callable[..., Farm], trouble: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes first, or in turn, behind what promised more; what is left at the end is neither begun nor counted."""
    compiled(make_farm(), trouble, cached := [PLAIN[0], PLAIN[2], PLAIN[3]])
    names = [PLAIN[0], "a", PLAIN[2], "b", "c", PLAIN[3], "d"]

    def results_of(jobs: Iterable[CompileJob], workers: int) -> Iterator[Failure]:
        yield from (Failure(job.key, Outcome.COMPILE_FAILED, "no") for job in jobs)

    monkeypatch.setattr("genkern.farm.pool.results_of", results_of)
    key_of = make_farm().key
    name_of = {key_of(trouble_spec(name)): name for name in names}

    def order(most: int = len(names), **options: bool) -> list[str]:
        farm, found = make_farm(), list[str]()
        specs = map(trouble_spec, names)
        for result in farm.compile(str(trouble), specs, lambda: len(found) >= most, **options):
            found.append(name_of[result.key])
        assert farm.counts.cached == len({*found} & {*cached})
        return found

    assert order() == [*cached, "a", "b", "c", "d"]
    assert order(in_turn=True) == names
    assert order(4, in_turn=True) == names[:4]
    assert order(5, in_turn=True) == names[:5]


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
    monkeypatch.setattr(genkern.farm.farm, "_FRUITLESS_RESTARTS", 2)
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
    with pytest.raises(BugError, match="NameError: tile_of is not defined") as caught:
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
