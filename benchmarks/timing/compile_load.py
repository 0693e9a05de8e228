"""A load for other benchmarks: the farm compiling on all cores in a process of its own, paused and resumed at will.

python -m benchmarks.timing.compile_load ARCH JOBS FOLDER     compiles until standard input ends, into caches in FOLDER
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Has more than 1,000 binaries in the default spaces; it stands for any.
PROBLEM = (4096, 6144, 4096)
START_S = 120.0
_LOOK_S = 0.01


def descendants(root: int, parents: Mapping[int, int]) -> list[int]:
    """`root` and all that descend from it, by the parent of each process."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def read_stat(text: str) -> tuple[int, str, float]:
    """Parent, state, and clock ticks of the process and of its children that ended, from /proc/PID/stat."""
    fields = text.rpartition(")")[2].split()
    return int(fields[1]), fields[0], float(sum(map(int, fields[11:15])))


def processes() -> dict[int, tuple[int, str, float]]:
    """`read_stat` of every process that can be seen."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            found[int(folder.name)] = read_stat((folder / "stat").read_text(errors="replace"))
    return found


class CompileLoad:
    """`jobs` compile workers for `arch`, with throwaway caches in `folder`; compiling from the start."""

    def __init__(self, arch: str, jobs: int, folder: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        # Anything but the user's own.
        environment["CUDA_VISIBLE_DEVICES"] = ""
        argv = [sys.executable, __file__, arch, str(jobs), folder]
        self._process: subprocess.Popen[Any] = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S)
        if not readable or "compiling" not in self._process.stdout.readline():
            self.close()
            raise RuntimeError("the compile farm of the load did not start")

    def pause(self) -> None:
        """Stop every process of the load; returns when all of them stand."""
        while moving := [pid for pid, state in self._tree().items() if state not in "TtZX"]:
            _signal(moving, signal.SIGSTOP)

    def resume(self) -> None:
        _signal(self._tree(), signal.SIGCONT)

    def cpu_s(self) -> float:
        """CPU seconds that the load has used so far."""
        found = processes()
        tree = descendants(self._process.pid, {pid: stat[0] for pid, stat in found.items()})
        return sum(found[pid][2] for pid in tree if pid in found) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End every process of the load."""
        if self._process.poll() is None:
            # Stopped first: then none of them starts another.
            self.pause()
            tree = list(self._tree())
            _signal(tree, signal.SIGKILL)
            self._process.wait()
            while any(processes().get(pid, (0, "X", 0.0))[1] not in "ZX" for pid in tree):
                time.sleep(_LOOK_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _tree(self) -> dict[int, str]:
        found = processes()
        tree = descendants(self._process.pid, {pid: stat[0] for pid, stat in found.items()})
        return {pid: found[pid][1] for pid in tree if pid in found}


def _signal(pids: Any, number: signal.Signals) -> None:
    for pid in list(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def compile_for_ever(arch: str, jobs: int, folder: Path) -> None:
    """Compile all binaries of one problem, again and again, each time into another cache."""
    from benchmarks.farm.rate import all_specs, triton_target_of
    from genkern.command.target import versions
    from genkern.farm.cache import BinaryCache
    from genkern.farm.farm import Farm
    from genkern.gemm.problem import GemmProblem
    from genkern.space.space import load_space

    problem = GemmProblem(*PROBLEM)
    text, specs = all_specs(problem, load_space(None, arch, problem.op), arch)
    path = folder / "load.py"
    path.write_text(text)
    order = list(specs)
    for number in itertools.count():
        random.Random(number).shuffle(order)
        farm = Farm(
            BinaryCache(folder / f"load_{number}"),
            triton_target_of(arch),
            versions()["triton"],
            jobs=jobs,
            timeout_s=3600,
        )
        for _ in farm.compile(str(path), order):
            if number == 0 and farm.counts.compiled + farm.counts.failed == 1:
                print("compiling", flush=True)


def end_with_parent() -> None:
    """End when standard input does: whoever wanted the load is gone. The workers end with their driver."""
    # Not through sys.stdin: a process forked meanwhile would inherit its lock, and wait for it for ever.
    while os.read(0, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    compile_for_ever(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
