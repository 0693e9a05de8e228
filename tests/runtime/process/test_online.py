"""Online tuning: one process at a time in the background, no call waits for it, and ranks change over together."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from command import environment
from library_rows import Card, Driver, library_bundle, library_rows, problem
from machines import machine
from processes import assert_gone, until
from tiny_space import FASTER, tiny_command

from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.table import Choice
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.process import online as module
from genkern.runtime.process.online import Online, Ranks, of_first, ranks
from genkern.runtime.process.size_recorder import PREFIXES

MISS = Choice("not tuned")
WAIT_S = 30.0


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


class Tuner:
    """Starts commands that are none: once it is `opened`, the library wins, unless it `fails`."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.tuned: list[GemmProblem] = []
        self.running = 0
        self.most_running = 0
        self.arguments: list[Sequence[str]] = []
        self.fails = False

    def __call__(self, arguments: Sequence[str], log: Path, nice: bool) -> Any:
        assert nice
        self.arguments.append(arguments)
        return Pack(arguments) if arguments[0] == "pack" else Command(self, arguments)


class Command:
    def __init__(self, tuner: Tuner, arguments: Sequence[str]) -> None:
        self._tuner = tuner
        size, self._results = Path(arguments[1]), Path(arguments[3])
        (self._problem,) = read_sizes(str(size), GemmDefaults(), "sm_90").problems
        self.last_line = "no such luck"
        self.ended = False
        tuner.running += 1
        tuner.most_running = max(tuner.running, tuner.most_running)

    def wait(self, timeout_s: float | None = None) -> int:
        while not self._tuner.opened.wait(0.01):
            if self.ended:
                return -15
        self._tuner.running -= 1
        if self._tuner.fails:
            return 2
        self._tuner.tuned.append(self._problem)
        library_rows(self._results, [each.M for each in self._tuner.tuned])
        return 0

    def end(self) -> None:
        self.ended = True


class Pack:
    def __init__(self, arguments: Sequence[str]) -> None:
        self._files = Path(arguments[1]), Path(arguments[3])

    def wait(self, timeout_s: float | None = None) -> int:
        library_bundle(*self._files)
        return 0

    def end(self) -> None:
        pass


@pytest.fixture
def tuner() -> Tuner:
    return Tuner()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def online(tuner: Tuner, said: list[str], tmp_path: Path) -> Iterator[Online]:
    made = Online(tmp_path / "recorded", said.append, ["--space", "x"], {}, tuner)
    yield made
    made.close()


@pytest.fixture
def card() -> Card:
    return Card()


@pytest.fixture
def context(online: Online, card: Card) -> Context:
    made = Context(lambda op: online.bundles(), {-1: card}.get, watches=[online])  # type: ignore[arg-type]
    online.context = made
    return made


def call(gemm: Gemm, m: int) -> None:
    gemm(torch.zeros(m, 4096, dtype=torch.bfloat16), torch.zeros(4096, 4096, dtype=torch.bfloat16))


def exact(context: Context, card: Card, m: int) -> bool:
    return context.find(card, problem(m)).exact  # type: ignore[arg-type]


def test_a_miss_is_tuned_and_served(
    online: Online, context: Context, card: Card, tuner: Tuner, said: list[str], tmp_path: Path
) -> None:
    """Calls go on while a size is tuned; once it is, they find it, and a process that comes later does too."""
    gemm = Gemm("a16w16", context)
    call(gemm, 3)
    wait(lambda: tuner.running)
    call(gemm, 3)
    assert not exact(context, card, 3)
    tuner.opened.set()
    wait(lambda: exact(context, card, 3))
    assert tuner.tuned == [problem(3)]
    asked, packed = tuner.arguments
    # What is timed beside this program says so, and its rows never replace those of an idle GPU.
    assert asked[4:] == ["--gpu_ids", "-1", "--jobs", asked[7], "--shared_gpu", "--space", "x"]
    assert packed[0] == "pack"
    later = Online(tmp_path / "recorded", said.append, (), {}, tuner)
    assert [each.problem for bundle in later.bundles() for each in bundle.winners] == [problem(3)]
    later.context = Context(lambda op: later.bundles(), {-1: card}.get, watches=[later])  # type: ignore[arg-type]
    call(Gemm("a16w16", later.context), 3)
    later.close()
    assert len(tuner.arguments) == 2
    assert said == []


def test_one_at_a_time(online: Online, context: Context, card: Card, tuner: Tuner, tmp_path: Path) -> None:
    """Two processes with one folder take turns, and the second does not tune again what the first has tuned."""
    other = Online(tmp_path / "recorded", pytest.fail, (), {}, tuner)
    other.context = Context(lambda op: other.bundles(), {-1: card}.get, watches=[other])  # type: ignore[arg-type]
    for each in (online, other):
        each(card, problem(3), MISS)  # type: ignore[arg-type]
    wait(lambda: tuner.running)
    time.sleep(0.3)
    tuner.opened.set()
    wait(lambda: exact(context, card, 3) and exact(other.context, card, 3))
    other.close()
    assert (tuner.most_running, tuner.tuned) == (1, [problem(3)])


def test_not_while_a_graph_is_captured(online: Online, context: Context, card: Card, tuner: Tuner) -> None:
    """A size that is new while a graph is captured waits for its end."""
    card.driver.capturing = 5
    call(Gemm("a16w16", context), 3)
    time.sleep(0.3)
    assert tuner.running == 0
    card.driver.capturing = 0
    wait(lambda: tuner.running)


def test_a_graph_is_captured_with_what_was_there() -> None:
    """What comes while a graph is captured serves calls after that only."""
    seen: list[GemmProblem] = []
    card = Card(driver=Driver())
    watch = lambda gpu, problem, choice: seen.append(problem)  # noqa: E731
    context = Context(lambda op: [], {-1: card}.get, watches=[watch])  # type: ignore[arg-type]
    gemm = Gemm("a16w16", context)
    call(gemm, 3)
    card.driver.capturing = 5
    context.renew()
    context.renew()
    call(gemm, 3)
    assert seen == [problem(3)]
    card.driver.capturing = 0
    call(gemm, 3)
    assert seen == [problem(3)] * 2


def test_after_three_failures_nothing_more_is_tuned(
    online: Online, context: Context, card: Card, tuner: Tuner, said: list[str]
) -> None:
    """A size that cannot be tuned is said with the command's own line, and after three nothing is tried any more."""
    tuner.fails = True
    tuner.opened.set()
    for m in range(1, 6):
        online(card, problem(m), MISS)  # type: ignore[arg-type]
    wait(lambda: online._wanted.empty() and len(said) == 3)
    time.sleep(0.1)
    assert len(tuner.arguments) == 3
    assert all("no such luck" in line for line in said)
    assert "tuning at run time stops" in said[-1]


def test_what_nothing_serves_comes_first(online: Online, context: Context, card: Card, tuner: Tuner) -> None:
    """A size that a neighbour's kernel serves waits for those that none serves; exact ones and CPUs are not tuned.

    Calls are looked up anew once, when all are done.
    """
    changes: list[int] = []
    context.on_change(lambda: changes.append(len(tuner.tuned)))
    served = Choice("tuned for M = 4", call=object())  # type: ignore[arg-type]
    online(card, problem(1), MISS)  # type: ignore[arg-type]
    wait(lambda: tuner.running)
    online(card, problem(2), served)  # type: ignore[arg-type]
    online(card, problem(3), MISS)  # type: ignore[arg-type]
    online(card, problem(4), Choice("tuned", exact=True))  # type: ignore[arg-type]
    online(None, problem(5), None)
    tuner.opened.set()
    wait(lambda: changes)
    assert [each.M for each in tuner.tuned] == [1, 3, 2]
    assert changes == [3]


def test_close_ends_what_goes_on(online: Online, card: Card, tuner: Tuner, said: list[str]) -> None:
    """At once, without a word, and nothing is started after it."""
    online(card, problem(1), MISS)  # type: ignore[arg-type]
    wait(lambda: tuner.running)
    online.close()
    online(card, problem(2), MISS)  # type: ignore[arg-type]
    assert (len(tuner.arguments), said) == (1, [])


def test_folder_in_a_package(tmp_path: Path) -> None:
    """As recorded sizes, it is never inside an installed package."""
    with pytest.raises(InputError, match="GENKERN_RECORD_DIR"):
        Online(tmp_path / "site-packages" / "x", pytest.fail)


@pytest.mark.parametrize(
    ("environ", "meant"),
    [
        ({}, Ranks(0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Ranks(0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, Ranks(3, 8, meet=False)),
        ({"RANK": "1"}, Ranks(1, 2, meet=False)),
        ({"RANK": "x", "WORLD_SIZE": "8"}, Ranks(0, 1)),
    ],
)
def test_ranks_by_the_launchers_words(environ: dict[str, str], meant: Ranks) -> None:
    """Before torch.distributed is initialised, RANK and WORLD_SIZE say who this is; then ranks cannot meet."""
    assert ranks(environ) == meant


def test_only_the_first_of_several_tunes(tuner: Tuner, card: Card, said: list[str], tmp_path: Path) -> None:
    """Others start nothing. What the first finds, and what lay there, nobody uses before all can."""
    both = [Online(tmp_path, said.append, (), {"RANK": rank, "WORLD_SIZE": "2"}, tuner) for rank in "01"]
    tuner.opened.set()
    for each in both:
        each(card, problem(3), MISS)  # type: ignore[arg-type]
    wait(lambda: said)
    assert "renew()" in said[0]
    assert len(tuner.arguments) == 2
    assert len(list(tmp_path.glob("online_*.genkern"))) == 1
    for each in both:
        each.agree()
        assert each.bundles() == []
        each.close()
    assert "GENKERN_CONFIG" in said[1]


# Each rank has another folder; the first one's has a winner. The second one is a fork, which saves an import.
_RANK = """
import os, sys
import torch.distributed as distributed
from genkern.runtime.process.online import Online
from genkern.runtime.process.online import ranks
rank = int(os.fork() == 0)
folder, meeting = sys.argv[1 + rank], sys.argv[3]
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
from pathlib import Path
online = Online(Path(folder), print)
# Each line at once, since both write to one pipe.
sys.stdout.write(f"{ranks({}).number} {len(online.bundles())}\\n")
sys.stdout.flush()
online.agree()
sys.stdout.write(f"{rank} {[winner.problem.M for bundle in online.bundles() for winner in bundle.winners]}\\n")
sys.stdout.flush()
distributed.destroy_process_group()
if rank:
    os._exit(0)
sys.exit(os.wait()[1])
"""


def test_ranks_agree(tmp_path: Path) -> None:
    """All have what the first one has once they have met, by torch.distributed, whatever lies in their own folders."""
    for rank, m in enumerate((3, 5)):
        results = library_rows(tmp_path / f"{rank}.yaml", [m])
        (tmp_path / str(rank)).mkdir()
        library_bundle(results, tmp_path / str(rank) / "online_x.genkern")
    argv = [sys.executable, "-c", _RANK, str(tmp_path / "0"), str(tmp_path / "1"), str(tmp_path / "meeting")]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 0", "0 [3]", "1 0", "1 [3]"]


def test_of_first_without_others() -> None:
    """Alone, a process has what it has."""
    assert of_first([1]) == [1]


# A program with one call, on a machine with a GPU that answers as a real one would.
_PROGRAM = """
import sys, time
from pathlib import Path
from library_rows import Card, problem
from genkern.runtime.calls.context import Context
from genkern.runtime.process.online import Online
online = Online(Path(sys.argv[1]), print, sys.argv[3:])
card = Card(index=0)
context = online.context = Context(lambda op: online.bundles(), {0: card}.get, watches=[online])
asked = __import__("genkern.gemm.problem", fromlist=["GemmProblem"]).GemmProblem(16, 128, 256)
online(card, asked, context.find(card, asked))
Path(sys.argv[1]).mkdir(exist_ok=True)
while sys.argv[2] == "stays" or (sys.argv[2] == "tunes" and not context.find(card, asked).exact):
    time.sleep(0.01)
if sys.argv[2] == "ends":
    while not Path(sys.argv[1], "at_gate").exists():
        time.sleep(0.01)
print(context.find(card, asked).winner)
"""


def program(tmp_path: Path, cache: Path, does: str, **what: object) -> subprocess.Popen[str]:
    options = [str(each) for each in tiny_command(tmp_path, cache, "[]")]
    here = environment(machine(tmp_path, gpus=1, faster=FASTER, **what))
    here["PYTHONPATH"] += f":{Path(__file__).parent}:{Path(__file__).parents[2]}"
    here["GENKERN_CACHE_DIR"] = str(cache)
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "online"), does, *options[4:]],
        env=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )


def test_a_real_tuning(tmp_path: Path, cache_dir: Path) -> None:
    """genkern itself tunes, packs and serves a size, while the program goes on; nothing is left when it ends."""
    said, _ = program(tmp_path, cache_dir, "tunes").communicate(timeout=120)
    best = min(FASTER, key=FASTER.__getitem__)
    assert f"kernel_name='{best}'" in said or "choice='vendor'" in said, said
    assert_gone(tmp_path)


@pytest.mark.parametrize("does", ["ends", "stays"])
def test_nothing_outlives_the_program(does: str, tmp_path: Path, cache_dir: Path) -> None:
    """Whether it ends in the middle of a tuning or is killed, and it ends with status 0 without waiting."""
    gate = [1, str(tmp_path / "gate")]
    (tmp_path / "online").mkdir()
    running = program(tmp_path, cache_dir, does, gate=gate, log=str(tmp_path / "online" / "at_gate"))
    until((tmp_path / "online" / "at_gate").exists, running)
    if does == "stays":
        running.kill()
    said, _ = running.communicate(timeout=30)
    assert running.returncode == (-9 if does == "stays" else 0), said
    assert_gone(tmp_path)


def test_module_names() -> None:
    """What is tuned online is not taken for recorded sizes by `genkern merge`."""
    assert not module._PREFIX.startswith(PREFIXES)
