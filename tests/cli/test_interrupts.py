"""Runs that are stopped or killed: nothing is left behind, and the same command makes the same results."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from command import SMALL, Ran, ended, run, start
from long_tests import spread
from machines import machine
from processes import assert_gone, relatives, until
from small_gemms import needs_interpreter
from tiny_space import EVERYTHING, TINY_AMD, tiny_command

LINE = "genkern: stopped; run the same command again to continue\n"


# One in five of these has each signal, each number of devices, and a moment at the start, within a size and later.
MOMENTS = [
    (gpus, moment, number)
    for gpus, moment in ((1, 1), (2, 20), (1, 80), (1, 20), (2, 1))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
]


@pytest.fixture(scope="module")
def undisturbed(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    """The results of a run that nobody disturbs, and how many measurements it takes; its cache is warm."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ran = run(*command(folder, cache_dir), env=machine(folder, gpus=1, log=str(folder / "log")))
    assert ran.status == 0, ran
    return (folder / "r.yaml").read_text(), screened(folder)


def command(folder: Path, cache: Path) -> list[object]:
    # Everything is measured, 32 configs of each size, so that who goes on measures what is left, and no more.
    tiny = tiny_command(folder, cache, SMALL, groups=range(1, 9))
    return [*tiny, "-o2", folder / "candidates.csv", *EVERYTHING, "--compare"]


def screened(folder: Path) -> int:
    """How many candidates were measured so far."""
    return events(folder).count("screen")


def events(folder: Path) -> list[str]:
    log = folder / "log"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def stop(process: subprocess.Popen[str], number: signal.Signals) -> Ran:
    """Ctrl-C goes to the whole group, as from a terminal; other signals to the command alone."""
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    return ended(process)


@pytest.mark.parametrize(("gpus", "moment", "number"), spread(MOMENTS, 5))
def test_stopped_while_measuring(
    number: signal.Signals, gpus: int, moment: int, undisturbed: tuple[str, int], tmp_path: Path, cache_dir: Path
) -> None:
    """At the first measurement, in the middle of a size, in a later size: what was measured is not measured again."""
    expected, measurements = undisturbed
    gate, log = tmp_path / "gate", tmp_path / "log"
    again = command(tmp_path, cache_dir)
    env = machine(tmp_path, gpus=gpus, log=str(log), gate=[moment, str(gate)])
    process = start(*again, "--ngpus", gpus, env=env)
    until(lambda: events(tmp_path).count("gate") == gpus, process)
    ran = stop(process, number)
    assert_gone(tmp_path)
    if number is signal.SIGKILL:
        assert ran.status == -signal.SIGKILL
        assert list((cache_dir / "modules").iterdir())
    else:
        assert (ran.status, ran.err) == (130, LINE)
        assert not list((cache_dir / "modules").iterdir())
    if (tmp_path / "r.yaml").exists():
        assert yaml.safe_load((tmp_path / "r.yaml").read_text())
    gate.touch()
    resumed = run(*again, env=machine(tmp_path, gpus=1, log=str(log)))
    assert (resumed.status, resumed.err) == (0, "")
    assert (tmp_path / "r.yaml").read_text() == expected
    # Lost at most: what the measured process had answered and nobody had read, and by a kill what waited to be written
    # of a size, one of the three.
    unwritten = measurements // 3 if number is signal.SIGKILL else 0
    assert measurements <= screened(tmp_path) <= measurements + (20 + unwritten) * gpus
    assert not list((cache_dir / "modules").iterdir())
    lines = (tmp_path / "candidates.csv").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 1 + measurements


@pytest.mark.parametrize("number", spread([signal.SIGTERM, signal.SIGINT, signal.SIGKILL], 2))
def test_stopped_while_compiling(number: signal.Signals, tmp_path: Path) -> None:
    """With a cold cache, when the first binary is there: the workers end too, and what is compiled stays so."""
    cache = tmp_path / "cache"
    again = [
        *command(tmp_path, cache)[:2],
        "-o",
        tmp_path / "r.yaml",
        "--arch",
        "gfx942",
        "--profiler",
        "predict",
        "--compile",
    ]
    again += ["--space", TINY_AMD, "--cache_dir", cache]
    process = start(*again, env={"HERE": str(tmp_path)})
    until(lambda: list(cache.glob("binaries/*/[0-9a-f]*/genkern.json")), process)
    ran = stop(process, number)
    assert_gone(tmp_path)
    if number is not signal.SIGKILL:
        assert (ran.status, ran.err) == (130, LINE)
    binaries = len(list(cache.glob("binaries/*/[0-9a-f]*/genkern.json")))
    assert binaries >= 1
    assert not (tmp_path / "r.yaml").exists()
    if number is signal.SIGTERM:
        resumed = run(*again)
        assert (resumed.status, resumed.err) == (0, "")
        assert len(yaml.safe_load((tmp_path / "r.yaml").read_text())) == 3
        compiled = next(line for line in resumed.out.splitlines() if line.startswith("binaries: "))
        assert int(compiled.split()[1]) == len(list(cache.glob("binaries/*/[0-9a-f]*/genkern.json"))) - binaries


@needs_interpreter
def test_stopped_while_checking_results(cache_dir: Path, tmp_path: Path) -> None:
    """The interpreters that check several configs at once end with the command."""
    config = "'BLOCK_SIZE_M': 256, 'BLOCK_SIZE_N': 256, 'BLOCK_SIZE_K': 64"
    (tmp_path / "r.yaml").write_text(
        "".join(f"- {{'M': 4096, 'N': 4096, 'K': {4096 + i}, {config}}}\n" for i in range(40))
    )
    options = [
        "-i",
        tmp_path / "r.yaml",
        "--profiler",
        "predict",
        "--compile",
        "--arch",
        "gfx942",
        "--cache_dir",
        cache_dir,
    ]
    process = start("--compare_wo_tuning", *options, "--jobs", 2, env={"HERE": str(tmp_path)})
    until(lambda: sum("genkern.profiling.checking.interpret" in line for line in relatives(tmp_path)) >= 2, process)
    ran = stop(process, signal.SIGTERM)
    assert (ran.status, ran.err) == (130, "genkern: stopped; the same command starts anew\n")
    assert_gone(tmp_path)
    assert not list((cache_dir / "modules").iterdir())
