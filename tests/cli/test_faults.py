"""Whole runs of the command with faulty kernels, on a device that is not there but whose process is real.

The profilers' own tests have each fault at each stage; here it goes through farm, journal, choice and results. Each
test of a fault prints how long it took until the next candidate was timed (pytest -rP shows it).
"""

from __future__ import annotations

import csv
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import Ran, ended, run, run_here, start
from machines import machine
from processes import assert_gone, until
from tiny_space import EVERYTHING, FASTER, NAMES, tiny_command, traced

SIZE = "- {'M': 64, 'N': 128, 'K': 256}\n"
TIMEOUT_S = 1.0
# What a fault may cost beyond the time that the config itself was given; a busy machine included.
RECOVERY_S = 5.0
BEST = min(NAMES, key=FASTER.__getitem__)
FAULTY = [name for name in NAMES if name != BEST]
# What the process does, how the candidate ends, and what its message holds.
FAULTS = {
    "hang": ("timed_out", "did not answer in 1 s"),
    "segfault": ("crashed", "killed by SIGSEGV"),
    "killed": ("crashed", "killed by SIGKILL"),
    "exits": ("crashed", "exit code 0"),
    "illegal": ("crashed", "exit code 1; CUDA error: an illegal memory access was encountered"),
    "memory": ("crashed", "MemoryError"),
    "refused": ("launch_failed", "out of resource: shared memory"),
}


@pytest.fixture(scope="module")
def faulty(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """One run in which seven of eight configs each have a fault of their own."""
    folder, sound = (tmp_path_factory.mktemp(name) for name in ("faulty", "sound"))
    # The limit below holds for compiles too, which may take longer on a busy machine: they are in the cache then.
    compiled = run(*tiny_command(sound, cache_dir, SIZE), *EVERYTHING, env=machine(sound, gpus=1, faster=FASTER))
    assert compiled.status == 0
    faults = dict(zip(FAULTY, FAULTS, strict=True))
    env = machine(folder, gpus=1, trace=str(folder / "trace"), faults=faults, faster=FASTER)
    options = [*EVERYTHING, "--timeout", TIMEOUT_S, "-o2", folder / "candidates.csv"]
    ran = run(*tiny_command(folder, cache_dir, SIZE), *options, env=env)
    assert_gone(folder)
    return ran, folder


def candidates(folder: Path) -> dict[str, dict[str, str]]:
    with open(folder / "candidates.csv") as file:
        return {row["config"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_faulty_kernel_costs_itself_and_a_restart(kind: str, faulty: tuple[Ran, Path]) -> None:
    """It has its outcome and what was said; the next candidate is timed within seconds."""
    _, folder = faulty
    name = dict(zip(FAULTS, FAULTY, strict=True))[kind]
    outcome, said = FAULTS[kind]
    row = candidates(folder)[name]
    assert (row["outcome"], row["us"]) == (outcome, "")
    assert said in row["message"]
    events = traced(folder / "trace")
    at = next(number for number, event in enumerate(events) if event["event"] == f"screen {name}")
    recovery_s = events[at + 1]["monotonic_s"] - events[at]["monotonic_s"] - (TIMEOUT_S if kind == "hang" else 0)
    print(f"recovery {kind}: {max(0.0, recovery_s):.2f} s")
    assert recovery_s < RECOVERY_S


def test_the_others_of_the_size_are_measured(faulty: tuple[Ran, Path]) -> None:
    """The run ends well: the one sound config wins, every other is counted, no process is left."""
    ran, folder = faulty
    assert (ran.status, ran.err) == (0, "")
    (entry,) = yaml.safe_load((folder / "r.yaml").read_text())
    assert (entry["config"], entry["time_us"]) == (BEST, pytest.approx(FASTER[BEST], rel=1e-3))
    outcomes = Counter(row["outcome"] for row in candidates(folder).values())
    assert outcomes == {"measured": 1, "crashed": 5, "timed_out": 1, "launch_failed": 1}
    assert "candidates: measured 1, crashed 5, timed_out 1, launch_failed 1\n" in ran.out


def test_a_process_killed_from_outside_costs_one_candidate(cache_dir: Path, tmp_path: Path) -> None:
    """As the kernel's out-of-memory killer does it, while a candidate is under way: that one is lost, no other."""
    victim = FAULTY[2]
    env = machine(tmp_path, gpus=1, trace=str(tmp_path / "trace"), faults={victim: "waits"}, faster=FASTER)
    process = start(*tiny_command(tmp_path, cache_dir, SIZE), "-o2", tmp_path / "candidates.csv", env=env)
    under_way: list[dict[str, Any]] = []

    def is_under_way() -> bool:
        under_way[:] = [event for event in traced(tmp_path / "trace") if event["event"] == f"screen {victim}"]
        return bool(under_way)

    until(is_under_way, process)
    os.kill(under_way[0]["pid"], signal.SIGKILL)
    killed_s = time.monotonic()
    assert ended(process).status == 0
    rows = candidates(tmp_path)
    assert {name for name, row in rows.items() if row["outcome"] != "measured"} == {victim}
    assert "killed by SIGKILL" in rows[victim]["message"]
    events = traced(tmp_path / "trace")
    after = next(event for event in events if event["pid"] != under_way[0]["pid"])
    print(f"recovery killed from outside: {after['monotonic_s'] - killed_s:.2f} s")
    assert after["monotonic_s"] - killed_s < RECOVERY_S
    assert_gone(tmp_path)


def test_a_device_that_stays_broken_is_reported(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says which and what to try; what it had measured is kept, and on a sound device the run goes on.

    The first loss may have broken the device and is not tried again; those after it say nothing of their configs.
    """
    again = [*tiny_command(tmp_path, cache_dir, SIZE), *EVERYTHING, "-o2", tmp_path / "candidates.csv"]
    log = {"trace": str(tmp_path / "trace"), "faster": FASTER}
    ran = run_here(capsys, *again, env=machine(tmp_path, gpus=1, broken={"0": 2}, **log))
    assert "GPU 0 is broken: 5 measured processes in a row were lost" in ran.refusal
    assert "try another --gpu_ids" in ran.refusal
    assert_gone(tmp_path)
    status = run_here(capsys, "status", tmp_path / "r.yaml").out
    assert "measured 2, crashed 1" in status
    resumed = run_here(capsys, *again, env=machine(tmp_path, gpus=1, **log))
    assert (resumed.status, resumed.err) == (0, "")
    outcomes = Counter(row["outcome"] for row in candidates(tmp_path).values())
    assert outcomes == {"measured": 7, "crashed": 1}


def test_a_clock_that_steps_back(cache_dir: Path, tmp_path: Path) -> None:
    """Every reading of the wall clock, in every process, is an hour before the last: same results, same outcomes."""
    texts = []
    for clock in ("", "backwards"):
        folder = tmp_path / f"clock {clock}"
        folder.mkdir()
        faults = {FAULTY[0]: "waits", FAULTY[1]: "killed"}
        env = machine(folder, gpus=1, faults=faults, faster=FASTER, clock=clock)
        options = [*EVERYTHING, "--timeout", TIMEOUT_S, "-o2", folder / "candidates.csv", "-v"]
        ran = run(*tiny_command(folder, cache_dir, SIZE), *options, env=env)
        assert (ran.status, ran.err) == (0, "")
        texts.append((folder / "r.yaml").read_text() + (folder / "candidates.csv").read_text())
        stages = next(line for line in ran.out.splitlines() if "compile and screen" in line)
        assert TIMEOUT_S < float(stages.split("compile and screen ")[1].split()[0]) < 60
        assert "last fact is 0.0 s old" in run("status", folder, env=env).out or not clock
    assert texts[0] == texts[1]
