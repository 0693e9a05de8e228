"""A module as the measured process loads it, whose configs do what kernels should not. C[0, j] = A[0, 0] B[0, j].

The family of a config says what it does: `good`; on the GPU `spin` (for ever), `illegal` and `misaligned` (addresses),
`trap`; on the host `killed`, `exits`, `segfault`. With the prefix `late_` it does so once the file beside this one
with the suffix .late is there.
"""

import ctypes
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import triton
import triton.language as tl

from genkern.kernels.contract.argument import Constant, Integer, Pointer
from genkern.kernels.plan import LaunchPlan, PlannedLaunch

SIZE = 1 << 20
BLOCK = 1024
SIGNATURE = (("a_ptr", "*fp32"), ("b_ptr", "*fp32"), ("c_ptr", "*fp32"), ("n", "i32"))
ON_GPU = ("good", "spin", "illegal", "misaligned", "trap")
ON_HOST = ("killed", "exits", "segfault")


@triton.jit
def good(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c_ptr + offsets, tl.load(a_ptr) * tl.load(b_ptr + offsets, offsets < n), offsets < n)


@triton.jit
def spin(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    value = tl.load(a_ptr)
    while value < 1e30:  # random normal numbers are
        value = tl.load(a_ptr, volatile=True)
    tl.store(c_ptr, value)


@triton.jit
def illegal(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    far = n.to(tl.int64) << 24
    tl.store(c_ptr + far, 1.0)


@triton.jit
def misaligned(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    address = c_ptr.to(tl.int64) + 2
    tl.store(address.to(tl.pointer_type(tl.float32)), 1.0)


@triton.jit
def trap(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    value = tl.inline_asm_elementwise("trap; mov.u32 $0, $1;", "=r,r", [n], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(c_ptr, value.to(tl.float32))


class Faulty:
    """C, but for whoever asks for its address: then the process ends as `kind` says."""

    def __init__(self, kind, c):
        self._kind, self._c = kind, c
        self.shape, self.stride, self.element_size = c.shape, c.stride, c.element_size

    def data_ptr(self):
        kind = self._kind
        if kind.startswith("late_"):
            kind = kind.removeprefix("late_") if Path(__file__).with_suffix(".late").exists() else ""
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "exits":
            os._exit(0)
        elif kind == "segfault":
            ctypes.string_at(0)
        return self._c.data_ptr()


def plan(family):
    """How a config of this family is launched, as JSON."""
    c = "c" if family.removeprefix("late_") in ON_GPU else family
    arguments = (
        Pointer("a_ptr", "a"),
        Pointer("b_ptr", "b"),
        Pointer("c_ptr", c),
        Integer("n", SIZE),
        Constant("BLOCK", BLOCK),
    )
    kernel = family.removeprefix("late_") if c == "c" else "good"
    return LaunchPlan((PlannedLaunch(kernel, (SIZE // BLOCK, 1, 1), 1, False, arguments),), 0, "fp32", 0).to_json()


LATE_AND_SOON = tuple(f"{late}{kind}" for late in ("", "late_") for kind in ON_HOST)
# The weights, which take many copies, are what a call finds cold.
OPERANDS = {
    name: SimpleNamespace(rotates=name == "b", row_major=name != "b") for name in ("a", "b", "c", *LATE_AND_SOON)
}


def make_operands(device, seed=0, init="randn"):
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    a, b = (torch.randn(n, generator=generator, device=device) for n in (1, SIZE))
    c = torch.empty((1, SIZE), device=device)
    faulty = {kind: Faulty(kind, c) for kind in LATE_AND_SOON}
    return {"a": a.reshape(1, 1), "b": b.reshape(SIZE, 1).T, "c": c, **faulty}


def reference(operands):
    return operands["a"] * operands["b"]


def vendor(operands):
    return operands["c"].copy_(reference(operands))
