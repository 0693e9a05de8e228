"""A run that is killed at any moment, again and again, ends as if nobody had disturbed it, and leaves nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from command import environment, run, start
from machines import machine
from processes import assert_gone, until
from tiny_space import FASTER, tiny_command

KILLS = 50
SIZES = "".join(f"- {{'M': {m}, 'N': 128, 'K': 256}}\n" for m in (16, 32, 64, 128))
# How long processes below a killed command may live on; a busy machine included.
GONE_S = 10.0
Life = Callable[[list[object], float | None], tuple[int, float]]


@contextmanager
def lives(env: dict[str, str]) -> Iterator[Life]:
    """Starts the command, kills it after so many seconds, and says how it ended and how long something outlived it."""
    program = [sys.executable, str(Path(__file__).with_name("forked_runs.py"))]
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


def test_killed_fifty_times(cache_dir: Path, tmp_path: Path) -> None:
    """SIGKILL at 50 random moments of runs of four sizes, each followed by the same command, on one device or on two.

    Whenever one comes to its end, its results and candidates are those of a run that was never killed. No process
    outlives a killed command, and after the next one no lock, scratch folder or module of it is left.
    """
    scratch, cache = tmp_path / "scratch", tmp_path / "cache"
    scratch.mkdir()
    (cache_dir / "binaries").mkdir(exist_ok=True)
    cache.mkdir()
    (cache / "binaries").symlink_to(cache_dir / "binaries")
    moments = random.Random(2026)
    env = {**machine(tmp_path, gpus=2, faster=FASTER), "TMPDIR": str(scratch)}
    kills, ends, longest_s = 0, 0, 0.0

    def command(name: str) -> list[object]:
        files = [*tiny_command(tmp_path, cache, SIZES, f"{name}.yaml"), "-o2", tmp_path / f"{name}.csv"]
        return [*files, "--ngpus", moments.choice((1, 2))]

    def outcome(name: str) -> list[list[str]]:
        # Two devices finish sizes in another order than one, and those that were finished stay in front.
        return [sorted((tmp_path / f"{name}.{suffix}").read_text().splitlines()) for suffix in ("yaml", "csv")]

    with lives(env) as live:
        assert live(command("first"), None)[0] == 0  # compiles
        started_s = time.monotonic()
        assert live(command("undisturbed"), None)[0] == 0
        usual_s = time.monotonic() - started_s
        expected = outcome("undisturbed")
        while kills < KILLS or ends == 0:
            status, outlived_s = live(command(f"run{ends}"), moments.uniform(0, usual_s) if kills < KILLS else None)
            longest_s = max(longest_s, outlived_s)
            if status == 0:
                assert outcome(f"run{ends}") == expected
                ends += 1
            else:
                assert status == -signal.SIGKILL
                kills += 1
        status, _ = live(command(f"run{ends}"), None)
        assert status == 0
        assert outcome(f"run{ends}") == expected
    print(f"{kills} kills, {ends + 1} runs came to their end; a process outlived a kill by {longest_s:.2f} s at most")
    assert longest_s < GONE_S
    assert list(scratch.iterdir()) == []
    assert list((cache / "modules").iterdir()) == []
    assert list((cache_dir / "binaries" / ".unborn").iterdir()) == []
    assert not list(tmp_path.glob("*.lock"))
    assert not list(tmp_path.glob("*.journal"))


def test_killed_while_compiling(tmp_path: Path) -> None:
    """SIGKILL with a cold cache leaves the compilers' files behind; the next run removes them."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = tiny_command(tmp_path, tmp_path / "cache", SIZES)
    env = {**machine(tmp_path, gpus=1, faster=FASTER), "TMPDIR": str(scratch)}
    process = start(*command, env=env)
    until(lambda: list(scratch.glob("genkern-*/genkern-triton-*/*")), process)
    process.kill()
    process.wait()
    assert_gone(tmp_path)
    assert list(scratch.glob("genkern-*/"))
    resumed = run(*command, env=env)
    assert (resumed.status, resumed.err) == (0, "")
    assert list(scratch.iterdir()) == []
