"""Work in two steps on a real Slurm: `make test-cluster`. The commands are those of docs/cluster.md."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_page import Lab, commands
from slurm_machine import NoSlurm, Slurm, slurm, why_not
from tiny_space import traced

from genkern.files.file_kind import read_results

pytestmark = pytest.mark.skipif(not os.environ.get("GENKERN_CLUSTER_TESTS"), reason="make test-cluster")
_WAIT_S = 120.0


@pytest.fixture(scope="module")
def running() -> Iterator[Slurm]:
    """Slurm with two nodes of two CPUs and two GPUs."""
    if reason := why_not():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        try:
            one = stack.enter_context(slurm())
        except NoSlurm as error:
            pytest.skip(f"Slurm does not start here: {' '.join(str(error).split())[-300:]}")
        yield one


def until(condition: Callable[[], object], said: Callable[[], str]) -> None:
    """Wait for what jobs bring about."""
    deadline_s = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, said()
        time.sleep(0.1)


def test_requeued_and_preempted_jobs_lose_no_size(running: Slurm, tmp_path: Path) -> None:
    """An array of four compiles, of which one job is requeued; another measures, of which one is pre-empted. No size is
    lost, and none that had its result is measured again. The signal that ends a job reaches genkern.
    """
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    lab = Lab(tmp_path / "lab", 8, gate=[1, str(gate)], trace=str(trace))
    write, submit, compile_there = commands("A lab with Slurm")
    assert "in 4 tasks" in lab.run(f"{write} --cpus 1 --partition low", **running.environment)
    _, compiling, _, measuring, _, collecting = lab.run(submit, **running.environment).split()
    work = lab.at / "work"

    def log() -> str:
        return "\n".join(f"{path.name}: {path.read_text()}" for path in sorted((work / "logs").glob("*.log")))

    until(lambda: "RUNNING" in running.states(f"{compiling}_2"), log)
    running.ask("scontrol", "requeue", f"{compiling}_2")
    until(lambda: sum(e["event"] == "gate" for e in traced(trace)) == 4, log)
    assert "Restarts=1" in running.ask("scontrol", "show", "job", f"{compiling}_2")
    assert [path.name for path in work.glob("part_*/results/*.yaml")] == []
    # All GPUs of a node, and more than is free.
    urgent = running.ask(
        "sbatch", "--parsable", "--partition=high", "--nodelist=n1", "--gpus=2", "--output=/dev/null", "--wrap=true"
    )
    running.wait(urgent)
    assert "genkern: stopped" in log()
    gate.touch()
    running.wait(collecting, said=log)
    # A job that is pre-empted is not of those that have failed.
    assert {*running.states(measuring)} == {"COMPLETED"}
    assert running.ask("scontrol", "show", "job", measuring).count("Restarts=1") == 2
    rows = read_results(str(work / "tuned.yaml"))
    assert [row.problem.M for row in rows] == [*range(16, 24)]
    assert "0 compiled" in log()
    tuned_where_slurm_compiles(running, lab, compile_there)


def tuned_where_slurm_compiles(running: Slurm, lab: Lab, command: str) -> None:
    """`dask worker` in an array compiles for a run here, and ends with it."""
    said = lab.run(command, GENKERN_CACHE_DIR=str(lab.at / "cold"), **running.environment)
    assert "waits for nodes" in said
    assert "4 compiled" in said
    assert len(read_results(str(lab.at / "tuned.yaml"))) == 8
    until(lambda: not running.ask("squeue", "--noheader"), lambda: running.ask("squeue"))
    assert list((lab.at / "work" / "logs").glob("workers_*.log"))


def test_scripts_that_slurm_cannot_run(running: Slurm, tmp_path: Path) -> None:
    """Are refused in one line: those that Slurm refuses, and those whose workers never come."""
    lab = Lab(tmp_path / "lab", 1)
    for text, said in (
        ("#!/bin/bash\n#SBATCH --partition=nowhere\n", "sbatch refuses: sbatch: error: invalid partition specified"),
        ("#!/bin/bash\nexit 1\n", "has ended without a node"),
    ):
        (lab.at / "own.sh").write_text(text)
        with lab.start("genkern -i sizes.yaml -o r.yaml --cluster slurm:own.sh", **running.environment) as process:
            out, _ = process.communicate(timeout=120)
        assert process.returncode == 2
        assert said in out
