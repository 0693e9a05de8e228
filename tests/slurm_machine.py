"""Slurm on this machine: a controller and two nodes on loopback, without systemd and beside any Slurm that is here.

As Debian has it (slurm-wlm, munge). It needs root, since slurmd starts jobs as their users. All files lie in one
folder, and all programs end with the test.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROGRAMS = "slurmctld", "slurmd", "sbatch", "munged"
# A mirror that does not answer, or another apt-get, is not waited for long.
_APT = "apt-get", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "DPkg::Lock::Timeout=10"
_INSTALL = *_APT, "install", "-y", "--no-install-recommends", "slurm-wlm", "munge"
_APT_S = 90.0
_WAIT_S = 60.0
_JOB_S = 300.0
# A job that was requeued waits until credentials of its first start have expired, which takes two minutes as a rule:
# https://slurm.schedmd.com/slurm.conf.html, AuthInfo, cred_expire.
_CONF = """ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={at}/munge.socket,cred_expire=5
SlurmUser=root
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool.%n
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.%n.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=200000,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1000 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=1000 Gres=gpu:2
PartitionName=low Nodes=n[1-2] Default=YES PriorityTier=1 State=UP
PartitionName=high Nodes=n[1-2] PriorityTier=9 PreemptMode=OFF State=UP
"""


def why_not() -> str:
    """Why there can be no Slurm here, after trying to install it; "" where there can."""
    if os.getuid() != 0:
        return "Slurm's daemons need root"
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        if shutil.which("apt-get") is None:
            return f"there is no {missing[0]}, and no apt-get to install it with"
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        try:
            for command in ((*_APT, "update"), _INSTALL):
                done = subprocess.run(
                    command, env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_APT_S
                )
        except subprocess.TimeoutExpired:
            return f"slurm-wlm cannot be installed: apt-get takes more than {_APT_S:.0f} s"
        if done.returncode:
            return f"slurm-wlm cannot be installed: {done.stderr.strip()[-200:]}"
    return ""


class NoSlurm(Exception):
    """Its daemons do not come up on this machine; the end of their logs."""


@dataclass(frozen=True)
class Slurm:
    """One that runs: what is to be in the environment of whoever asks it."""

    environment: dict[str, str]

    def ask(self, *command: str, cwd: Path | None = None) -> str:
        """What one of its programs says."""
        done = subprocess.run(
            command, env=os.environ | self.environment, cwd=cwd, capture_output=True, text=True, timeout=_WAIT_S
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout.strip()

    def states(self, job: str) -> list[str]:
        """Of each task of a job, as long as the controller knows it."""
        said = self.ask("scontrol", "show", "job", job, "--oneliner")
        return [line.partition("JobState=")[2].partition(" ")[0] for line in said.splitlines()]

    def wait(self, job: str, said: Callable[[], str] = lambda: "") -> None:
        """Wait until all tasks of the job have ended well."""
        deadline_s = time.monotonic() + _JOB_S
        while (states := {*self.states(job)}) != {"COMPLETED"}:
            assert time.monotonic() < deadline_s, said()
            assert not states & {"FAILED", "CANCELLED", "TIMEOUT"}, (states, said())
            time.sleep(0.2)


@contextlib.contextmanager
def slurm() -> Iterator[Slurm]:
    """Start it, and end it with all its jobs. Raises NoSlurm."""
    # munged wants that only root may write on the way to its socket, whose name is to be short.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/run") as at, _running(Path(at)) as running:
        yield running


@contextlib.contextmanager
def _running(at: Path) -> Iterator[Slurm]:
    for folder in ("state", "spool.n1", "spool.n2"):
        (at / folder).mkdir()
    host = socket.gethostname().partition(".")[0]
    (at / "slurm.conf").write_text(_CONF.format(at=at, host=host, ports=_free_ports(3)))
    # Any devices do for GPUs where jobs are not kept from others'.
    gpus = "".join(f"NodeName=n[1-2] Name=gpu File=/dev/{device}\n" for device in ("null", "zero"))
    (at / "gres.conf").write_text(f"AutoDetect=off\n{gpus}")
    key = at / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    running = Slurm({"SLURM_CONF": str(at / "slurm.conf")})
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={at}/munge.socket"]
    munged += [f"--pid-file={at}/munged.pid", f"--log-file={at}/munged.log", f"--seed-file={at}/munged.seed"]
    with contextlib.ExitStack() as stack:
        try:
            _start(stack, at, "munged", munged, running)
            _until(lambda: (at / "munge.socket").exists(), at)
            _start(stack, at, "slurmctld", ["slurmctld", "-D"], running)
            for node in ("n1", "n2"):
                _start(stack, at, node, ["slurmd", "-D", "-N", node], running)
            _until(lambda: _idle(running) == 2, at)
        except AssertionError as error:
            raise NoSlurm(str(error)) from None
        try:
            yield running
        finally:
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                running.ask("scancel", "--user=root")
                _until(lambda: not running.ask("squeue", "--noheader"), at)


def _idle(running: Slurm) -> int:
    with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
        return running.ask("sinfo", "--Node", "--noheader", "--partition=low", "--format=%t").split().count("idle")
    return 0


def _start(stack: contextlib.ExitStack, at: Path, name: str, command: list[str], running: Slurm) -> None:
    log = stack.enter_context((at / f"{name}.out").open("w"))
    process = subprocess.Popen(command, env=os.environ | running.environment, stdout=log, stderr=log)
    stack.callback(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_WAIT_S / 4)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _until(condition: Callable[[], object], at: Path) -> None:
    deadline_s = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            logs = [
                path.read_text(errors="replace")[-2000:] for path in sorted(at.glob("*.log")) + sorted(at.glob("*.out"))
            ]
            raise AssertionError("\n".join(logs))
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]
