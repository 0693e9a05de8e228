"""Finds machine code of sm_90 that overwrites registers which a wgmma in flight still reads.

wgmma reads its first matrix from shared memory or from registers, until it is done. Writing such a register before a
wait has confirmed that the wgmma is done is undefined (PTX ISA, "wgmma.wait_group"): sums are wrong whenever the
product happens to be late, and a check of results may pass. Triton leaves several products in flight from one step of a
loop into the next, and ptxas before 13.3 then reuses their registers (triton-lang/triton#9433).
"""

from __future__ import annotations

import struct

from genkern.compile.binary.machine_code import BYTES, blocks_of_code

_COMPUTE_CAPABILITY = 90
# HGMMA, IGMMA, BGMMA and QGMMA with the first matrix in four registers, whose first number is a multiple of four.
_FROM_REGISTERS = frozenset({0xDF0, 0xDF1, 0xDF2, 0xDF3})
_REGISTERS = 4
# The same four instructions in any form, by the lowest 9 bits. Bits 20 to 22 of the high word are 7 if the group goes
# on.
_WGMMA = frozenset({0x1F0, 0x1F1, 0x1F2, 0x1F3})
_GROUP_AT, _GOES_ON = 20, 7
# WARPGROUP.DEPBAR waits until only as many groups are in flight as bits 8 to 13 of the high word say. Without bit 47 of
# the low word the instruction is WARPGROUP.ARRIVE, which does not wait.
_WARPGROUP, _IS_WAIT, _LEFT_AT, _LEFT_BITS = 0x9C5, 1 << 47, 8, 0x3F
# Bits of the low word with a register's number: the destination of an instruction, and the first source register of
# wgmma.
_WRITES_AT, _READS_AT, _NONE = 16, 24, 255
# Instructions that write no general register, by the lowest 9 bits; these bits have another meaning in them.
_WRITES_NONE = frozenset(
    [
        # FSETP, ISETP, DSETP, HSETP2, PLOP3, UPLOP3.
        *(0x00B, 0x00C, 0x02A, 0x034, 0x01C, 0x09C),
        # Instructions that write uniform registers: USEL, UISETP, UIADD3, ULEA, ULOP3, UPRMT, UIADD3.64, USHF, USGXT,
        # UIMAD (two), ULDC (two), UMOV, VOTEU, R2UR, S2UR, REDUX, UFLO, UPOPC, UBREV.
        *(0x087, 0x08C, 0x090, 0x091, 0x092, 0x096, 0x097, 0x099, 0x09A, 0x0A4, 0x0A5),
        *(0x0B9, 0x0BB, 0x082, 0x086, 0x0CA, 0x1C3, 0x1C4, 0x0BD, 0x0BF, 0x0BE),
        # STG, STL, STS, STSM, STAS, LDGSTS, UTMALDG, UTMASTG, UBLKCP, CCTL, UTMACMDFLUSH, UTMACCTL, UTMAPF, RED.
        *(0x186, 0x187, 0x188, 0x044, 0x1BD, 0x1AE, 0x1B4, 0x1B5, 0x1BA, 0x18F, 0x1B7, 0x1B9, 0x1B8, 0x18E, 0x1A6),
        # PREEXIT, ACQBULK, ELECT, NOP, DEPBAR, ENDCOLLECTIVE, BAR, BSYNC, BSSY, YIELD, BRA, WARPSYNC.
        *(0x02D, 0x02E, 0x02F, 0x118, 0x11A, 0x11B, 0x11D, 0x141, 0x145, 0x146, 0x147, 0x148),
        # BRX, EXIT, BREAK, JMP, RET, BRXU, NANOSLEEP, MEMBAR, ERRBAR.
        *(0x149, 0x14D, 0x142, 0x14A, 0x150, 0x158, 0x15D, 0x192, 0x1AB),
        # SYNCS (three), LDGDEPBAR, ARRIVES, WARPGROUP, FENCE, UCGABAR, USETMAXREG.
        *(0x1A7, 0x1B1, 0x1B2, 0x1AF, 0x1B0, 0x1C5, 0x1C6, 0x1C7, 0x1C8),
        *_WGMMA,
    ]
)
# More groups than any kernel leaves in flight; bounds the number of states.
_MOST_GROUPS = 64

# Groups of wgmma in flight, oldest first; the last one is still open. Each is a set of quads of registers that it
# reads.
_InFlight = tuple[frozenset[int], ...]


def overwrites(code: bytes, compute_capability: int) -> int | None:
    """Return the offset in bytes of the first instruction that overwrites a register which a wgmma in flight may read.

    `code` is the machine code of one kernel of sm_`compute_capability`. All paths through the branches are followed.
    Returns None if there is no such instruction, and for other GPUs, which have no wgmma.
    """
    if compute_capability != _COMPUTE_CAPABILITY:
        return None
    words = struct.unpack_from(f"<{len(code) // 8}Q", code)
    lows, highs = words[::2], words[1::2]
    if not any(low & 0xFFF in _FROM_REGISTERS for low in lows):
        return None
    blocks = blocks_of_code(code, compute_capability)
    assert blocks is not None
    found: list[int] = []
    nothing: _InFlight = (frozenset(),)
    seen = {(0, nothing)}
    left = [(0, nothing)]
    while left:
        block, groups = left.pop()
        for at in range(blocks.starts[block], blocks.starts[block + 1]):
            groups = _behind(groups, lows[at], highs[at])
            if lows[at] & 0x1FF not in _WRITES_NONE and _is_read(lows[at] >> _WRITES_AT & 0xFF, groups):
                found.append(at * BYTES)
                break
        else:
            states = {(after, groups) for after in blocks.follows[block]}
            left += states - seen
            seen |= states
    return min(found, default=None)


def _behind(groups: _InFlight, low: int, high: int) -> _InFlight:
    """Return the groups in flight after an instruction, given the groups before it."""
    if low & 0x1FF in _WGMMA:
        if low & 0xFFF in _FROM_REGISTERS:
            quad = (low >> _READS_AT & 0xFF) // _REGISTERS
            groups = *groups[:-1], groups[-1] | {quad}
        return groups if high >> _GROUP_AT & 7 == _GOES_ON else (*groups, frozenset())[-_MOST_GROUPS:]
    if low & 0xFFF == _WARPGROUP and low & _IS_WAIT:
        # The last group is still open, so no wait covers it.
        return groups[-1 - (high >> _LEFT_AT & _LEFT_BITS) :]
    return groups


def _is_read(register: int, groups: _InFlight) -> bool:
    # An instruction that writes several registers starts at a multiple of their number, so the first one suffices.
    return register != _NONE and any(register // _REGISTERS in quads for quads in groups)
