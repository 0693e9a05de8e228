"""`SlurmJob`: submits a batch script that starts Dask's workers on nodes, and cancels it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path

from genkern.errors import InputError
from genkern.file_io import shown_path

# The environment variable by which the script gets the scheduler's address; templates/batch/workers.sh.j2 reads it.
SCHEDULER = "DASK_SCHEDULER_ADDRESS"
_ANSWER_S = 60.0
_JOB = re.compile(r"([0-9]+)(;\S+)?")
# States in squeue of jobs that have nodes or may get them.
_ALIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING"}


class SlurmJob:
    """A Slurm job; its script runs with the scheduler's address in its environment."""

    def __init__(self, script: str, scheduler: str) -> None:
        """Submit the script. Raises InputError if the script or Slurm is missing, or Slurm refuses it."""
        if not Path(script).is_file():
            raise InputError(f"--cluster slurm:{shown_path(script)}: no such file; genkern sbatch writes workers.sh")
        # The job's logs go to the script's folder, whatever the current folder is.
        at, name = os.path.split(os.path.abspath(script))
        said = _slurm("sbatch", "--parsable", "--export=ALL", name, cwd=at, changes={SCHEDULER: scheduler})
        if (match := _JOB.fullmatch(said.strip())) is None:
            raise InputError(f"--cluster slurm: sbatch gave no job number, but {said.strip()[:80]!r}")
        self.number = match[1]

    def is_alive(self) -> bool:
        """Return True if a task of the job waits or runs, or if Slurm does not answer just now."""
        with contextlib.suppress(InputError):
            states = _slurm("squeue", "--noheader", "--jobs", self.number, "--format=%T").split()
            return not _ALIVE.isdisjoint(states)
        return _is_known(self.number)

    def cancel(self) -> None:
        with contextlib.suppress(InputError):
            _slurm("scancel", self.number)


def _is_known(number: str) -> bool:
    """Return False if the job is gone. squeue fails both for a job that ended long ago and without the controller."""
    with contextlib.suppress(InputError):
        _slurm("squeue", "--noheader", "--format=%T")
        return False
    return True


def _slurm(*command: str, cwd: str | None = None, changes: dict[str, str] | None = None) -> str:
    """Run one of Slurm's programs and return its output. Raises InputError."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | (changes or {}),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise InputError(f"--cluster slurm: there is no {command[0]} here; run on a node that submits jobs") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"--cluster slurm: {command[0]} does not answer ({error})") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[:200]
        raise InputError(f"--cluster slurm: {command[0]} refuses: {said or f'exit status {done.returncode}'}")
    return done.stdout
