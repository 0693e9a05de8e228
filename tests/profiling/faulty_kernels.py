"""A module as the measured process loads it, whose configs do what kernels should not. C[i] = A[i] where they work.

The family of a config says what it does: `good`; on the GPU `spin` (for ever), `illegal` and `misaligned` (addresses),
`trap`; on the host `killed`, `exits`, `segfault`. With the prefix `late_` it does so once the file beside this one
with the suffix .late is there.
"""

import ctypes
import os
import signal
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import triton
import triton.language as tl

SIZE = 1 << 20
BLOCK = 1024
SIGNATURE = (("a_ptr", "*fp32"), ("c_ptr", "*fp32"), ("n", "i32"))
ON_GPU = ("good", "spin", "illegal", "misaligned", "trap")
Config = namedtuple("Config", "family")
Launch = namedtuple("Launch", "kernel grid args constants options")


@triton.jit
def good(a_ptr, c_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c_ptr + offsets, tl.load(a_ptr + offsets, offsets < n), offsets < n)


@triton.jit
def spin(a_ptr, c_ptr, n, BLOCK: tl.constexpr):
    value = tl.load(a_ptr)
    while value < 1e30:  # random normal numbers are
        value = tl.load(a_ptr, volatile=True)
    tl.store(c_ptr, value)


@triton.jit
def illegal(a_ptr, c_ptr, n, BLOCK: tl.constexpr):
    far = n.to(tl.int64) << 24
    tl.store(c_ptr + far, 1.0)


@triton.jit
def misaligned(a_ptr, c_ptr, n, BLOCK: tl.constexpr):
    address = c_ptr.to(tl.int64) + 2
    tl.store(address.to(tl.pointer_type(tl.float32)), 1.0)


@triton.jit
def trap(a_ptr, c_ptr, n, BLOCK: tl.constexpr):
    value = tl.inline_asm_elementwise("trap; mov.u32 $0, $1;", "=r,r", [n], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(c_ptr, value.to(tl.float32))


class _Configs:
    """Every family is known, by the name of its config."""

    def __getitem__(self, name):
        return Config(name.partition("_BM")[0])


CONFIGS = _Configs()


def launches(config, operands, units):
    family = config.family
    if family.startswith("late_"):
        family = family.removeprefix("late_") if Path(__file__).with_suffix(".late").exists() else "good"
    if family == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif family == "exits":
        os._exit(0)
    elif family == "segfault":
        ctypes.string_at(0)
    args = [operands["a"], operands["c"], SIZE]
    return [Launch(None, (SIZE // BLOCK, 1, 1), args, {"BLOCK": BLOCK}, {})]


# The weights, which take many copies, are what a call finds cold.
OPERANDS = {"b": SimpleNamespace(rotates=True)}


def make_operands(device, seed=0, init="randn"):
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    a = torch.randn((1, SIZE), generator=generator, device=device)
    return {"a": a, "b": torch.zeros((1024, 1024), device=device), "c": torch.empty_like(a)}


def reference(operands):
    return operands["a"]


def vendor(operands):
    return operands["c"].copy_(operands["a"])
