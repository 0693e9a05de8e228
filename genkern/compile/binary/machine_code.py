"""Basic blocks of a kernel, and the kind of each instruction, from NVIDIA's machine code or AMD's assembly.

NVIDIA publishes no encodings. These were derived from nvdisasm's output for kernels and for hand-written PTX of sm_80
to sm_121. An instruction has 16 bytes. Its operation is in the lowest 12 bits, of which the highest 3 tell the kind of
its operands (register, constant, uniform register).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

BYTES = 16
# From sm_90 on, the distance of a branch has 8 more bits, which are its lowest.
_OLDEST, _WITH_LONG_BRANCHES, _NEWEST = 80, 90, 121

OTHER, MATRIX, FMA, SHARED, LOAD, SYNC, BRANCH, END = range(8)
# By the lowest 9 bits: the operation without the kind of its operands.
_OPERATIONS = {
    # IMMA, HMMA, BMMA, DMMA, QMMA, OMMA, UTC*MMA, HGMMA, IGMMA, BGMMA, QGMMA.
    MATRIX: (0x037, 0x03C, 0x03D, 0x03F, 0x07A, 0x07F, 0x1EA, 0x1F0, 0x1F1, 0x1F2, 0x1F3),
    # FFMA, IDP (dp4a), DFMA, HFMA2, FFMA2.
    FMA: (0x023, 0x026, 0x02B, 0x031, 0x049),
    # LDSM, STSM, LDS, STS.
    SHARED: (0x03B, 0x044, 0x184, 0x188),
    # LDG, LDGSTS, UTMALDG, UBLKCP.
    LOAD: (0x181, 0x1AE, 0x1B4, 0x1BA),
    # DEPBAR, BAR, SYNCS (three), LDGDEPBAR, ARRIVES, WARPGROUP, UCGABAR, UTCBAR.
    SYNC: (0x11A, 0x11D, 0x1A7, 0x1B1, 0x1B2, 0x1AF, 0x1B0, 0x1C5, 0x1C7, 0x1E9),
    # BRA and BRA.U, which have the same number.
    BRANCH: (0x147,),
    # BRX, JMP, EXIT, RET, BRXU: the next instruction is not reached from here.
    END: (0x149, 0x14A, 0x14D, 0x150, 0x158),
}
# HFMA2.MMA up to sm_90; IADD on later GPUs.
_HFMA2_MMA = 0x035
# HFMA2 and HFMA2.MMA with a constant, which ptxas uses to load a number into a register.
_NO_FMA = (0x431, 0x435)
_BRA = 0x947
# Prefixes of AMD's instructions (ISA guides of CDNA 3 and RDNA 4, LLVM's AMDGPU syntax); all others are of kind OTHER.
_NAMES = {
    MATRIX: ("v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_"),
    FMA: ("v_fma_", "v_fmac_", "v_pk_fma_", "v_dot"),
    SHARED: ("ds_read", "ds_write", "ds_load", "ds_store"),
    LOAD: ("buffer_load_", "global_load_", "flat_load_"),
    SYNC: ("s_waitcnt", "s_wait_", "s_barrier"),
    BRANCH: ("s_branch", "s_cbranch_"),
    END: ("s_endpgm", "s_setpc_", "s_swappc_"),
}
_LABEL = re.compile(r"([.\w$]+):")
_INSTRUCTION = re.compile(r"\s+([a-z]\w*)(?:\s+([.\w$]+))?")


def _kinds_of(operations: dict[int, tuple[int, ...]]) -> bytes:
    """Return the kind of each of the 4,096 values of the lowest 12 bits."""
    kinds = bytearray(4096)
    for kind, codes in operations.items():
        for code in codes:
            kinds[code::512] = bytes([kind]) * 8
    for code in _NO_FMA:
        kinds[code] = OTHER
    return bytes(kinds)


_KINDS = _kinds_of(_OPERATIONS)
_KINDS_BEFORE_SM_100 = _kinds_of({**_OPERATIONS, FMA: (*_OPERATIONS[FMA], _HFMA2_MMA)})


@dataclass(frozen=True)
class Blocks:
    """Basic blocks, numbered in the order of their addresses.

    kinds: the kind of each instruction of the code
    starts: index of each block's first instruction, and the number of instructions
    follows: for each block, the blocks that may run after it
    """

    kinds: bytes
    starts: Sequence[int]
    follows: Sequence[Sequence[int]]

    def count(self, block: int, kind: int) -> int:
        return self.kinds.count(kind, self.starts[block], self.starts[block + 1])


def blocks_of_code(code: bytes, compute_capability: int) -> Blocks | None:
    """Return the blocks of a kernel's machine code for sm_`compute_capability`; None if its encoding is unknown."""
    if not _OLDEST <= compute_capability <= _NEWEST:
        return None
    kind_of = _KINDS if compute_capability >= 100 else _KINDS_BEFORE_SM_100
    long_branches = compute_capability >= _WITH_LONG_BRANCHES
    size = len(code) // BYTES
    words = struct.unpack_from(f"<{2 * size}Q", code)
    kinds = bytes([kind_of[word & 0xFFF] for word in words[::2]])
    targets: dict[int, int | None] = {}
    falls_through: dict[int, bool] = {}
    for at, kind in enumerate(kinds):
        if kind >= BRANCH:
            low, high = words[2 * at], words[2 * at + 1]
            targets[at] = _target(at, low, high, long_branches, size) if kind == BRANCH else None
            falls_through[at] = not _is_always_taken(low, high, kind)
    starts = sorted({0, *(at + 1 for at in targets), *(at for at in targets.values() if at is not None), size})
    numbers = {start: number for number, start in enumerate(starts)}
    follows = []
    for number, end in enumerate(starts[1:]):
        after = []
        if falls_through.get(end - 1, True) and end < size:
            after.append(number + 1)
        target = targets.get(end - 1)
        if target is not None:
            after.append(numbers[target])
        follows.append(after)
    return Blocks(kinds, starts, follows)


def blocks_of_assembly(text: str) -> Blocks:
    """Return the blocks of an AMD kernel, from the assembly that LLVM writes."""
    kinds, labels, branches = bytearray(), dict[str, int](), dict[int, tuple[str, bool]]()
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(kinds)
        elif found := _INSTRUCTION.match(line):
            kind = next((kind for kind, names in _NAMES.items() if found[1].startswith(names)), OTHER)
            if kind >= BRANCH:
                branches[len(kinds)] = found[2] or "", not found[1].startswith("s_cbranch_")
            kinds.append(kind)
    size = len(kinds)
    starts = sorted({0, size, *(at + 1 for at in branches), *(at for at in labels.values() if at < size)})
    numbers = {start: number for number, start in enumerate(starts)}
    follows = []
    for number, end in enumerate(starts[1:]):
        target, is_always_taken = branches.get(end - 1, ("", False))
        after = [number + 1] if not is_always_taken and end < size else []
        follows.append([*after, *(numbers[at] for at in [labels.get(target, size)] if at < size)])
    return Blocks(bytes(kinds), starts, follows)


def _target(at: int, low: int, high: int, long_branches: bool, size: int) -> int | None:
    """Return the index of the instruction that the branch at `at` goes to; None if it lies outside of the code.

    Also None for a branch to itself, which ends each kernel's code and is never reached.
    """
    # Bits 34 to 81 of 128, signed, in units of 4 bytes, relative to the next instruction.
    distance = (high & 0x3FFFF) << 30 | low >> 34
    if distance >> 47:
        distance -= 1 << 48
    if long_branches:
        distance = distance << 8 | low >> 16 & 0xFF
    target = at + 1 + distance * 4 // BYTES
    return target if 0 <= target < size and target != at else None


def _is_always_taken(low: int, high: int, kind: int) -> bool:
    """Return True if all threads take the branch: its predicates are true, and it is neither BRA.U nor BRA.DIV."""
    predicates = low >> 12 & 0xF, high >> 23 & 0xF
    if kind == BRANCH:
        return predicates == (7, 7) and low & 0xFFF == _BRA and not low >> 32 & 3
    return predicates == (7, 7)
