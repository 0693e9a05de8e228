"""The machine that runs PTX does what the PTX ISA says of sm_90's instructions, and says what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from ptx_gemm import stored
from ptx_machine import Machine
from ptx_tensor import TensorMap
from ptx_text import read_program

# Where shared memory begins, and what a thread has at its start.
_START, _REGISTERS = 1024, 168
# Of operands that run along K, 64 elements of 16 bits a row, swizzled by 128 bytes.
_DESCRIPTOR = 1 << 62 | (1024 >> 4) << 32
_A, _B = _START, _START + 64 * 128


def machine_of(lines: Sequence[str], *, warps: int = 4, seed: int = 0) -> Machine:
    """One CTA that is about to run these lines; %r1 is a thread's number."""
    text = ".entry k()\n{\n" + "\n".join(["mov.u32 %r1, %tid.x;", *lines, "ret;"]) + "\n}"
    return Machine(
        read_program(text),
        [],
        cluster=1,
        first=0,
        programs=1,
        threads=32 * warps,
        registers=_REGISTERS,
        shared_bytes=1 << 15,
        memory={},
        random=Random(seed),
    )


@pytest.mark.parametrize("turned", ["", ".trans"])
def test_matrices_are_stored(turned: str) -> None:
    """A lane has two neighbours of a row of 8, or of a column; the first 8 lanes say where the rows go."""
    machine = machine_of(
        [
            "mul.lo.s32 %r2, %r1, 131074;",
            "add.s32 %r3, %r2, 65536;",
            "shl.b32 %r4, %r1, 5;",
            "add.s32 %r5, %r4, __dynamic_shmem__0;",
            f"stmatrix.sync.aligned.m8n8.x1{turned}.shared.b16 [%r5], {{%r3}};",
        ],
        warps=1,
    )
    machine.run()
    rows = machine.ctas[0].shared[_START : _START + 256].reshape(8, 32)[:, :16].copy().view(np.uint16)
    wanted = np.arange(64).reshape(8, 8)
    np.testing.assert_array_equal(rows, wanted.T if turned else wanted)


PRODUCT = (
    "wgmma.fence.sync.aligned;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r10, %r11, %r12, %r13}, "
    f"{_DESCRIPTOR | _A >> 4}, {_DESCRIPTOR | _B >> 4}, 0, 1, 1, 0, 0;",
    "wgmma.commit_group.sync.aligned;",
    "wgmma.wait_group.sync.aligned 0;",
    "mov.b32 %r20, %r10;",
)


def test_products() -> None:
    """Each warp has 16 rows; of 8 columns a lane has two, in its row and in the one 8 below."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, 64)).astype(np.float32) for rows in (64, 8))
    for seed in range(4):
        machine = machine_of(PRODUCT, seed=seed)
        shared = machine.ctas[0].shared
        for start, values in ((_A, a), (_B, b)):
            raw = stored(values, "bf16")
            shared[TensorMap(raw, len(raw), 128, 2, 3).places(start)] = raw
        machine.run()
        wanted = a[:, :16] @ b[:, :16].T
        for warp in machine.warps:
            for number in range(4):
                got = warp.registers[f"%r{10 + number}"].view(np.float32)
                lane = np.arange(32)
                row, column = 16 * warp.number + lane // 4 + 8 * (number // 2), lane % 4 * 2 + number % 2
                np.testing.assert_array_equal(got, wanted[row, column])


@pytest.mark.parametrize(
    ("missing", "said"), [(0, "no wgmma.fence"), (2, "before it was summed"), (3, "before it was summed")]
)
def test_products_need_fence_commit_and_wait(missing: int, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        machine_of(PRODUCT[:missing] + PRODUCT[missing + 1 :]).run()


def test_registers_of_sums_are_fenced() -> None:
    """What a thread has read or written, wgmma may not write before the next fence."""
    with pytest.raises(AssertionError, match="behind what used the registers"):
        machine_of((*PRODUCT, *PRODUCT[1:])).run()
    machine_of((*PRODUCT, *PRODUCT)).run()


def parted(first: str, others: str) -> list[str]:
    """Warp 0 does the one, the other warps do the other."""
    return ["setp.gt.u32 %p1, %r1, 31;", f"@!%p1 {first}", f"@%p1 {others}"]


def test_named_barriers() -> None:
    """Who syncs waits for all that the count says; who arrives goes on."""
    machine_of(parted("bar.sync 1, 128;", "bar.arrive 1, 128;")).run()
    with pytest.raises(AssertionError, match="nobody can go on"):
        machine_of(parted("bar.sync 1, 160;", "bar.arrive 1, 160;")).run()
    with pytest.raises(AssertionError, match="do not agree"):
        machine_of(parted("bar.sync 1, 128;", "bar.arrive 1, 96;")).run()


def test_registers_are_given_back_first() -> None:
    """What some threads take is what others have given."""
    less, more = "setmaxnreg.dec.sync.aligned.u32 24;", "setmaxnreg.inc.sync.aligned.u32"
    machine_of(parted(f"{more} 248;", less)).run()
    with pytest.raises(AssertionError, match="nobody can go on"):
        machine_of(parted(less, f"{more} 248;")).run()


def test_lanes_meet_where_branches_join() -> None:
    """Also where the text has a branch behind what it joins at, as compilers put what is rare."""
    lines = ["mov.u32 %r2, 0;", "setp.lt.s32 %p1, %r1, 1;", "@%p1 bra $OUT;", "$JOIN:"]
    lines += ["shfl.sync.idx.b32 %r3, %r2, 0, 31, -1;", "bra $END;", "$OUT:", "mov.u32 %r2, 5;", "bra $JOIN;", "$END:"]
    machine = machine_of(lines, warps=1)
    machine.run()
    np.testing.assert_array_equal(machine.warps[0].registers["%r3"], np.full(32, 5))
