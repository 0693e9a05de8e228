"""A module of kernels that make trouble while they are compiled: hang, die, are refused, kill the farm's worker.

Triton asks a kernel for its name in the middle of a compile; that is where each of these does its harm.
"""

from __future__ import annotations

from pathlib import Path

from genkern.kernels.kernel import KernelSpec

_TROUBLE = """
import faulthandler
import os
import signal
import time

import triton
import triton.language as tl


def _hang(specialization):
    open(f"{__file__}.hangs.{os.getpid()}", "x").close()
    time.sleep(3600)


def _die(specialization):
    faulthandler.disable()  # pytest's would print the stack to the terminal
    os.kill(os.getpid(), signal.SIGSEGV)


def _killed(specialization):
    os.kill(os.getpid(), signal.SIGKILL)


def _leave(specialization):
    os._exit(3)


def _refuse(specialization):
    raise ValueError("no such kernel,\\nsaid twice")


def _full(specialization):
    raise OSError(28, "No space left on device", "/somewhere/file")


def _kill_worker_once(specialization):
    try:
        open(__file__ + ".killed", "x").close()
    except FileExistsError:
        return "kill_worker_once"
    _kill_worker(specialization)


def _kill_worker(specialization):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)
"""
TROUBLES = ("hang", "die", "killed", "leave", "refuse", "full", "kill_worker_once", "kill_worker")
_KERNEL = """

@triton.jit(repr={repr})
def {name}(c_ptr, BINARY: tl.constexpr):
    tl.store(c_ptr, 1.0)
"""
_PLAIN = 8


def write_trouble(folder: Path) -> Path:
    """Write the module and return its path; `plain` and `plain_0` ... are kernels like any other."""
    path = folder / "trouble.py"
    kernels = [_KERNEL.format(name=name, repr=f"_{name}") for name in TROUBLES]
    plain = ["plain", *(f"plain_{number}" for number in range(_PLAIN))]
    kernels += [_KERNEL.format(name=name, repr=f'lambda _: "{name}"') for name in plain]
    path.write_text(_TROUBLE + "".join(kernels), encoding="utf-8")
    return path


def trouble_spec(name: str) -> KernelSpec:
    """The spec of one kernel of the module."""
    return KernelSpec(name, name, (("c_ptr", "*fp32"),), (("BINARY", "B"),), ("c_ptr",), (("num_warps", 4),))
