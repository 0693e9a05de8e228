"""The main loop of a kernel, from NVIDIA's machine code or AMD's assembly: how many instructions of each kind it has.

No public text gives the encodings. Those below are what nvdisasm prints for kernels and for hand-written PTX of
sm_80 to sm_121: an instruction has 16 bytes, and its operation is in the lowest 12 bits, of which the highest 3
say what its operands are (a register, a constant, a uniform register).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_BYTES = 16
# From sm_90 on, the distance of a branch has 8 more bits, its lowest.
_OLDEST, _WITH_LONG_BRANCHES, _NEWEST = 80, 90, 121

_OTHER, _MATRIX, _FMA, _SHARED, _LOAD, _SYNC, _BRANCH, _END = range(8)
# By the lowest 9 bits, which are the operation without the form of its operands.
_OPERATIONS = {
    # IMMA, HMMA, BMMA, DMMA, QMMA, OMMA, UTC*MMA, HGMMA, IGMMA, BGMMA, QGMMA.
    _MATRIX: (0x037, 0x03C, 0x03D, 0x03F, 0x07A, 0x07F, 0x1EA, 0x1F0, 0x1F1, 0x1F2, 0x1F3),
    # FFMA, IDP (dp4a), DFMA, HFMA2, FFMA2.
    _FMA: (0x023, 0x026, 0x02B, 0x031, 0x049),
    # LDSM, STSM, LDS, STS.
    _SHARED: (0x03B, 0x044, 0x184, 0x188),
    # LDG, LDGSTS, UTMALDG, UBLKCP.
    _LOAD: (0x181, 0x1AE, 0x1B4, 0x1BA),
    # DEPBAR, BAR, SYNCS (three), LDGDEPBAR, ARRIVES, WARPGROUP, UCGABAR, UTCBAR.
    _SYNC: (0x11A, 0x11D, 0x1A7, 0x1B1, 0x1B2, 0x1AF, 0x1B0, 0x1C5, 0x1C7, 0x1E9),
    # BRA, and BRA.U of the same number.
    _BRANCH: (0x147,),
    # BRX, JMP, EXIT, RET, BRXU: what comes after is not in this text's reach.
    _END: (0x149, 0x14A, 0x14D, 0x150, 0x158),
}
# HFMA2.MMA, up to sm_90; then IADD.
_HFMA2_MMA = 0x035
# HFMA2 and HFMA2.MMA with a constant: how ptxas writes a number into a register.
_NO_FMA = (0x431, 0x435)
_BRA = 0x947
# AMD's by their names (ISA guides of CDNA 3 and RDNA 4, LLVM's AMDGPU syntax); what begins with none is another one.
_NAMES = {
    _MATRIX: ("v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_"),
    _FMA: ("v_fma_", "v_fmac_", "v_pk_fma_", "v_dot"),
    _SHARED: ("ds_read", "ds_write", "ds_load", "ds_store"),
    _LOAD: ("buffer_load_", "global_load_", "flat_load_"),
    _SYNC: ("s_waitcnt", "s_wait_", "s_barrier"),
    _BRANCH: ("s_branch", "s_cbranch_"),
    _END: ("s_endpgm", "s_setpc_", "s_swappc_"),
}
_LABEL = re.compile(r"([.\w$]+):")
_INSTRUCTION = re.compile(r"\s+([a-z]\w*)(?:\s+([.\w$]+))?")


def _kinds_of(operations: dict[int, tuple[int, ...]]) -> bytes:
    """The kind of each of the 4,096 values of the lowest 12 bits."""
    kinds = bytearray(4096)
    for kind, codes in operations.items():
        for code in codes:
            kinds[code::512] = bytes([kind]) * 8
    for code in _NO_FMA:
        kinds[code] = _OTHER
    return bytes(kinds)


_KINDS = _kinds_of(_OPERATIONS)
_KINDS_BEFORE_SM_100 = _kinds_of({**_OPERATIONS, _FMA: (*_OPERATIONS[_FMA], _HFMA2_MMA)})


@dataclass(frozen=True)
class MainLoop:
    """How many instructions the text of a main loop has: all, and those of some kinds; none is counted twice.

    `matrix` are those of tensor cores, `shared` loads and stores of shared memory, `global_loads` also the copies
    from global to shared memory, `syncs` barriers and waits. Predicated instructions count as others do; what a wait
    does when its barrier was not ready the first time, and which lies behind the loop, does not count.
    """

    instructions: int
    matrix: int
    fma: int
    shared: int
    global_loads: int
    syncs: int


@dataclass(frozen=True)
class _Blocks:
    """Basic blocks by number, in the order of their addresses, with the kind of each instruction of the code."""

    kinds: bytes
    starts: Sequence[int]
    follows: Sequence[Sequence[int]]

    def count(self, block: int, kind: int) -> int:
        return self.kinds.count(kind, self.starts[block], self.starts[block + 1])


def main_loop(code: bytes, compute_capability: int) -> MainLoop | None:
    """The main loop of the kernel with machine code `code`, of sm_`compute_capability`.

    That is the innermost loop with most matrix instructions; without any, with most multiply-adds; without those, the
    longest innermost one. None where there is no loop, and for a GPU whose encoding is not known.
    """
    if not _OLDEST <= compute_capability <= _NEWEST:
        return None
    kind_of = _KINDS if compute_capability >= 100 else _KINDS_BEFORE_SM_100
    return _main_loop(_blocks(code, kind_of, compute_capability >= _WITH_LONG_BRANCHES))


def main_loop_of_assembly(text: str) -> MainLoop | None:
    """The same of an AMD kernel, from the assembly that LLVM writes (Triton's asm["amdgcn"])."""
    return _main_loop(_blocks_of_assembly(text))


def _main_loop(blocks: _Blocks) -> MainLoop | None:
    numbers = range(len(blocks.follows))
    # Innermost of those with work in them: waits for a barrier are loops as well, inside of the main one.
    for kind in (_MATRIX, _FMA, None):
        work = [1 if kind is None else blocks.count(block, kind) for block in numbers]
        loops = list(_innermost(set(numbers), blocks.follows, work)) if any(work) else []
        if loops:
            found = [_counts(blocks, _in_line(loop, blocks.follows)) for loop in loops]
            return max(found, key=lambda loop: (loop.matrix, loop.fma if kind == _FMA else 0, loop.instructions))
    return None


def _counts(blocks: _Blocks, loop: set[int]) -> MainLoop:
    kinds = (_MATRIX, _FMA, _SHARED, _LOAD, _SYNC)
    instructions = sum(blocks.starts[block + 1] - blocks.starts[block] for block in loop)
    return MainLoop(instructions, *(sum(blocks.count(block, kind) for block in loop) for kind in kinds))


def _blocks(code: bytes, kind_of: bytes, long_branches: bool) -> _Blocks:
    size = len(code) // _BYTES
    words = struct.unpack_from(f"<{2 * size}Q", code)
    kinds = bytes([kind_of[word & 0xFFF] for word in words[::2]])
    targets: dict[int, int | None] = {}
    falls_through: dict[int, bool] = {}
    for at, kind in enumerate(kinds):
        if kind >= _BRANCH:
            low, high = words[2 * at], words[2 * at + 1]
            targets[at] = _target(at, low, high, long_branches, size) if kind == _BRANCH else None
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
    return _Blocks(kinds, starts, follows)


def _blocks_of_assembly(text: str) -> _Blocks:
    kinds, labels, branches = bytearray(), dict[str, int](), dict[int, tuple[str, bool]]()
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(kinds)
        elif found := _INSTRUCTION.match(line):
            kind = next((kind for kind, names in _NAMES.items() if found[1].startswith(names)), _OTHER)
            if kind >= _BRANCH:
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
    return _Blocks(bytes(kinds), starts, follows)


def _target(at: int, low: int, high: int, long_branches: bool, size: int) -> int | None:
    """Number of the instruction that the branch at `at` goes to; None where that is outside of the code.

    None as well for a branch to itself, which ends each kernel's code and is never reached.
    """
    # Bits 34 to 81 of 128, signed, in units of 4 bytes, from the next instruction on.
    distance = (high & 0x3FFFF) << 30 | low >> 34
    if distance >> 47:
        distance -= 1 << 48
    if long_branches:
        distance = distance << 8 | low >> 16 & 0xFF
    target = at + 1 + distance * 4 // _BYTES
    return target if 0 <= target < size and target != at else None


def _is_always_taken(low: int, high: int, kind: int) -> bool:
    """Whether no thread goes on behind: true predicates, and for branches neither BRA.U nor BRA.DIV."""
    predicates = low >> 12 & 0xF, high >> 23 & 0xF
    if kind == _BRANCH:
        return predicates == (7, 7) and low & 0xFFF == _BRA and not low >> 32 & 3
    return predicates == (7, 7)


def _innermost(among: set[int], follows: Sequence[Sequence[int]], work: Sequence[int]) -> Iterator[set[int]]:
    """Blocks of each loop with work inside which there is no other loop with work."""
    left = [among]
    while left:
        for loop in _cycles(left.pop(), follows):
            if not any(work[block] for block in loop):
                continue
            # Without where it begins it is no loop any more: what still is one lies inside.
            rest = loop - {_head(loop, follows)}
            inner = [cycle for cycle in _cycles(rest, follows) if any(work[block] for block in cycle)]
            if inner:
                left.append(rest)
            else:
                yield loop


def _in_line(loop: set[int], follows: Sequence[Sequence[int]]) -> set[int]:
    """The loop without what lies behind its last branch back: there ptxas puts second tries of waits, seldom run."""
    head = _head(loop, follows)
    last = max((block for block in loop if head in follows[block]), default=head)
    return {block for block in loop if block <= last} if head == min(loop) else loop


def _head(loop: set[int], follows: Sequence[Sequence[int]]) -> int:
    """The first block of a loop that is entered from outside."""
    entered = {after for block, found in enumerate(follows) if block not in loop for after in found}
    return min(entered & loop or loop)


def _cycles(among: set[int], follows: Sequence[Sequence[int]]) -> Iterator[set[int]]:
    """Strongly connected parts that have an edge, after Tarjan (1972), without recursion."""
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for root in among:
        if root in order:
            continue
        calls = [(root, iter(follows[root]))]
        order[root] = lowest[root] = len(order)
        path.append(root)
        on_path.add(root)
        while calls:
            block, rest = calls[-1]
            for after in rest:
                if after not in among:
                    continue
                if after not in order:
                    order[after] = lowest[after] = len(order)
                    path.append(after)
                    on_path.add(after)
                    calls.append((after, iter(follows[after])))
                    break
                if after in on_path:
                    lowest[block] = min(lowest[block], order[after])
            else:
                calls.pop()
                if calls:
                    lowest[calls[-1][0]] = min(lowest[calls[-1][0]], lowest[block])
                if lowest[block] == order[block]:
                    part = set(path[path.index(block) :])
                    del path[-len(part) :]
                    on_path -= part
                    if len(part) > 1 or block in follows[block]:
                        yield part
