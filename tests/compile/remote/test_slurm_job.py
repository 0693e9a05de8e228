"""Tests of genkern.compile.remote.slurm_job: what is asked of Slurm's programs, with stand-ins that only know these."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from genkern.compile.remote.slurm_job import SlurmJob
from genkern.errors import InputError

_SBATCH = """[ "$*" = "--parsable --export=ALL workers.sh" ] || exit 9
[ -f workers.sh ] || exit 8
echo "$DASK_SCHEDULER_ADDRESS" > submitted
echo '%s'"""
_SQUEUE = """case "$*" in
    "--noheader --jobs 12 --format=%%T") %s ;;
    "--noheader --format=%%T") %s ;;
    *) exit 9 ;;
esac"""


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> None:
    """Programs of Slurm's by their texts."""
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture
def script(hostile_path: Path) -> Path:
    (hostile_path / "workers.sh").touch()
    return hostile_path / "workers.sh"


def test_a_job_is_submitted_where_its_script_lies(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns of the scheduler, and is cancelled by its number; a federation's name behind that is none of it."""
    programs(tmp_path, monkeypatch, sbatch=_SBATCH % "12;cluster", scancel=f'echo "$@" > "{tmp_path}/cancelled"')
    job = SlurmJob(str(script), "tcp://node:1")
    assert job.number == "12"
    assert (script.parent / "submitted").read_text() == "tcp://node:1\n"
    job.cancel()
    assert (tmp_path / "cancelled").read_text() == "12\n"


@pytest.mark.parametrize(
    ("of_job", "of_all", "alive"),
    [
        ("echo RUNNING; echo COMPLETED", "exit 9", True),
        ("echo PENDING", "exit 9", True),
        ("echo COMPLETED; echo FAILED", "exit 9", False),
        ("true", "exit 9", False),
        # The number is forgotten; the controller is away.
        ("exit 1", "echo RUNNING", False),
        ("exit 1", "exit 1", True),
    ],
)
def test_whether_a_job_may_have_nodes(
    of_job: str, of_all: str, alive: bool, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that does not answer ends nothing."""
    programs(tmp_path, monkeypatch, sbatch=_SBATCH % 12, squeue=_SQUEUE % (of_job, of_all))
    assert SlurmJob(str(script), "tcp://node:1").is_alive() is alive


def test_what_cannot_be_submitted_is_refused(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line: no such script, no Slurm, a refusal of its own, and what is no number."""
    for text, said in (
        ("echo no; echo 'bad\\n account' >&2; exit 1", "sbatch refuses: bad"),
        ("echo x", "no job number"),
    ):
        programs(tmp_path, monkeypatch, sbatch=text)
        with pytest.raises(InputError, match=said) as caught:
            SlurmJob(str(script), "tcp://node:1")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="genkern sbatch"):
        SlurmJob(str(tmp_path / "none.sh"), "tcp://node:1")
    monkeypatch.setenv("PATH", str(script.parent))
    with pytest.raises(InputError, match="sbatch"):
        SlurmJob(str(script), "tcp://node:1")
