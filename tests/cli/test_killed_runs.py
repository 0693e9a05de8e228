"""A run that is killed at any moment, again and again, ends as if nobody had disturbed it, and leaves nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import environment, run, start
from long_tests import repeats, spread
from machines import machine
from processes import assert_gone, until
from tiny_space import FASTER, NAMES, tiny_command

from genkern.journal.batch import measurements_of
from genkern.journal.journal_line import entry_of

# `make test-long` kills 50 times.
KILLS = repeats(3, 50)
# How the machine names the stages whose times are these facts.
STAGES = {"screened": "screen", "retimed": "retime", "confirmed": "confirm"}
SIZES = "".join(f"- {{'M': {m}, 'N': 128, 'K': 256}}\n" for m in spread((16, 32, 64, 128), 2))
# How long processes below a killed command may live on; a busy machine included.
GONE_S = 10.0
# The same where it is in the middle of compiling, on an idle machine; a feed that is closed would wait for 5 s.
COLD_GONE_S = 3.0
# What a process takes there that does nothing.
NOTHING_S = 0.05
Life = Callable[[list[object], float | None], tuple[int, float]]


@contextmanager
def lives(env: dict[str, str]) -> Iterator[Life]:
    """Starts the command, kills it after so many seconds, and says how it ended and how long something outlived it."""
    program = [sys.executable, str(Path(__file__).parents[1] / "forked_runs.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, text=True, env=environment(env), **pipes) as process:  # type: ignore[call-overload]
        assert process.stdin is not None
        assert process.stdout is not None

        def live(argv: list[object], kill_after_s: float | None) -> tuple[int, float]:
            print(json.dumps([list(map(str, argv)), kill_after_s]), file=process.stdin, flush=True)
            status, outlived_s = json.loads(process.stdout.readline())
            return os.waitstatus_to_exitcode(status), outlived_s

        yield live
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize("gpus", spread([2, 1], 2))
def test_killed_again_and_again(gpus: int, cache_dir: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments of runs of some sizes, each followed by the same command: 25 on one device, 25 on two.

    The devices say another time whenever they are asked, so that a fact that was lost would show: none is there twice.
    Whenever a run comes to its end, its results and candidates are those of a run that was never killed and whose
    devices say the times that are in the journal. On one device configs often tie, and then the winners so far
    decide; on two it depends on the moment which of them are known, so none tie there. No process outlives a killed
    command, and after the next one that has something to tune no lock, temporary folder or module of it is left.
    """
    temporary, cache, taken = (tmp_path / name for name in ("temporary", "cache", "taken"))
    for folder in (temporary, cache, taken):
        folder.mkdir()
    # A copy, since other tests may be storing some.
    shutil.copytree(cache_dir / "binaries", cache / "binaries", ignore=shutil.ignore_patterns(".unborn"))
    moments = random.Random(2026)
    drifting = machine(tmp_path, gpus=2, taken=str(taken), **{"apart": NAMES} if gpus > 1 else {})
    replaying = machine(tmp_path, gpus=2, replay=str(tmp_path / "replay"))
    kills, ends, longest_s = 0, 0, 0.0

    def command(name: str, most: int = gpus) -> list[object]:
        files = [*tiny_command(tmp_path, cache, SIZES, f"{name}.yaml"), "-o2", tmp_path / f"{name}.csv"]
        return [*files, "--ngpus", moments.randint(1, most)]

    def outcome(name: str) -> list[list[str]]:
        # Two devices finish sizes in another order than one, and those that were finished stay in front.
        return [sorted((tmp_path / f"{name}.{suffix}").read_text().splitlines()) for suffix in ("yaml", "csv")]

    own = {"TMPDIR": str(temporary)}
    with lives({**drifting, **own}) as live, lives({**replaying, **own}) as live_again:
        assert live(command("first"), None)[0] == 0  # compiles
        started_s = time.monotonic()
        assert live(command("undisturbed"), None)[0] == 0
        usual_s = time.monotonic() - started_s
        while kills < KILLS // 2 or ends == 0:
            name = f"run{ends}"
            status, outlived_s = live(command(name), moments.uniform(0, usual_s) if kills < KILLS // 2 else None)
            longest_s = max(longest_s, outlived_s)
            if status == 0:
                times = times_in(tmp_path / f"{name}.yaml.journal.previous")
                (tmp_path / "replay").write_text(json.dumps(times))
                assert live_again(command(f"replay{ends}", 1), None)[0] == 0
                assert outcome(name) == outcome(f"replay{ends}")
                ends += 1
            else:
                assert status == -signal.SIGKILL
                kills += 1
        assert live(command(f"run{ends}"), None)[0] == 0
        # The last kill may have come when all was tuned, and then the command had nothing to do but to say so.
        assert live(command("last"), None)[0] == 0
    print(f"{kills} kills, {ends + 2} runs came to their end; a process outlived a kill by {longest_s:.2f} s at most")
    assert longest_s < GONE_S
    assert list(temporary.iterdir()) == []
    assert list((cache / "modules").iterdir()) == []
    assert not list((cache / "binaries").glob(".unborn/*"))
    assert not list(tmp_path.glob("*.lock"))
    assert not list(tmp_path.glob("*.journal"))


def times_in(journal: Path) -> dict[str, dict[str, dict[str, float]]]:
    """What the devices said, by size, stage and config: each time is in the journal once."""
    sizes: list[str] = []
    times: dict[str, dict[str, dict[str, float]]] = {}
    for line in journal.read_bytes().splitlines():
        entry = entry_of(line)
        fact, value = entry["fact"], entry["value"]
        if fact == "problem":
            sizes.append("{M}x{N}x{K}".format(**value))
            times[sizes[-1]] = {stage: {} for stage in STAGES.values()}
        elif fact in STAGES:
            of_stage = times[sizes[entry["problem"]]][STAGES[fact]]
            for one in measurements_of(value):
                assert one.config not in of_stage
                of_stage[one.config] = one.samples_us[0]
    return times


@pytest.mark.parametrize("gpus", spread([2, 1], 2))
def test_killed_while_compiling(gpus: int, tmp_path: Path) -> None:
    """SIGKILL with a cold cache leaves the compilers' files behind; the next run removes them.

    The processes are gone at once, those of several devices too, whose threads wait for what is being compiled.
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    two = "".join(SIZES.splitlines(keepends=True)[:2])
    command = [*tiny_command(tmp_path, tmp_path / "cache", two), "--ngpus", gpus]
    env = {**machine(tmp_path, gpus=gpus, faster=FASTER), "TMPDIR": str(temporary)}
    process = start(*command, env=env)
    until(lambda: list(temporary.glob("genkern-*/genkern-triton-*/*")), process)
    process.kill()
    process.wait()
    killed_s = time.monotonic()
    assert_gone(tmp_path)
    outlived_s = time.monotonic() - killed_s
    print(f"a process outlived a kill by {outlived_s:.2f} s, {gpus} devices")
    started_s = time.monotonic()
    subprocess.run([sys.executable, "-S", "-c", ""], check=True)
    assert outlived_s < COLD_GONE_S * max(1.0, (time.monotonic() - started_s) / NOTHING_S)
    assert list(temporary.glob("genkern-*/"))
    resumed = run(*command, env=env)
    assert (resumed.status, resumed.err) == (0, "")
    assert list(temporary.iterdir()) == []
