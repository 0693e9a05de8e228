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


def _own_error(specialization):
    raise ValueError("no such\\nsymbol")


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
TROUBLES = ("hang", "die", "killed", "leave", "own_error", "full", "kill_worker_once", "kill_worker")
_KERNEL = """

@triton.jit(repr={repr})
def {name}(c_ptr, BINARY: tl.constexpr):
    tl.store(c_ptr, 1.0)
"""
_PLAIN = 8
# What Triton refuses, and texts that are wrong: a name, an attribute, an argument that is not there.
_BODIES = {
    "refuse": 'tl.static_assert(BINARY == "none", "no such kernel,\\nsaid twice")',
    "refuse_tile": "tl.store(c_ptr + tl.arange(0, 3), 1.0)",
    "refuse_dot": "tl.store(c_ptr, tl.sum(tl.dot(tl.zeros((16, 3), tl.float16), tl.zeros((3, 16), tl.float16))))",
    "no_name": "tl.store(c_ptr, tile_of(1))",
    "no_attribute": "tl.store(c_ptr, tl.no_such_thing(1))",
    "no_argument": "helper(c_ptr)",
    "no_language": "del c_ptr",
    "own_function": "tl.store(c_ptr, width_of(BINARY))",
}
_HELPERS = """

@triton.jit
def helper(c_ptr, value):
    tl.store(c_ptr, value)


@triton.constexpr_function
def width_of(name):
    raise ValueError("no such width")
"""


def write_trouble(folder: Path) -> Path:
    """Write the module and return its path; `plain` and `plain_0` ... are kernels like any other."""
    path = folder / "trouble.py"
    kernels = [_KERNEL.format(name=name, repr=f"_{name}") for name in TROUBLES]
    kernels.append(_HELPERS)
    for name, body in _BODIES.items():
        kernels.append(_KERNEL.format(name=name, repr=f'lambda _: "{name}"').replace("tl.store(c_ptr, 1.0)", body))
    plain = ["plain", *(f"plain_{number}" for number in range(_PLAIN))]
    kernels += [_KERNEL.format(name=name, repr=f'lambda _: "{name}"') for name in plain]
    path.write_text(_TROUBLE + "".join(kernels), encoding="utf-8")
    return path


def trouble_spec(name: str) -> KernelSpec:
    """The spec of one kernel of the module."""
    return KernelSpec(name, name, (("c_ptr", "*fp32"),), (("BINARY", "B"),), (("c_ptr", 16),), (("num_warps", 4),))
