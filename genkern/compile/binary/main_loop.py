"""The main loop of a kernel, and the number of its instructions of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from genkern.compile.binary.machine_code import (
    FMA,
    LOAD,
    MATRIX,
    SHARED,
    SYNC,
    Blocks,
    blocks_of_assembly,
    blocks_of_code,
)


@dataclass(frozen=True)
class MainLoop:
    """Number of instructions in the text of a main loop; each instruction counts in one kind only.

    instructions: all instructions
    matrix: instructions of tensor cores
    fma: multiply-adds
    shared: loads from and stores to shared memory
    global_loads: loads from global memory, including copies to shared memory
    syncs: barriers and waits

    Predicated instructions count like others. The retry of a wait whose barrier was not ready lies behind the loop and
    does not count.
    """

    instructions: int
    matrix: int
    fma: int
    shared: int
    global_loads: int
    syncs: int


def main_loop(code: bytes, compute_capability: int) -> MainLoop | None:
    """Return the main loop of the kernel with machine code `code` for sm_`compute_capability`.

    The main loop is the innermost loop with the most matrix instructions; without matrix instructions, the one with the
    most multiply-adds; without those, the longest. None if there is no loop, or the encoding is unknown.
    """
    blocks = blocks_of_code(code, compute_capability)
    return None if blocks is None else _main_loop(blocks)


def main_loop_of_assembly(text: str) -> MainLoop | None:
    """Return the main loop of an AMD kernel, from the assembly that LLVM writes (Triton's asm["amdgcn"])."""
    return _main_loop(blocks_of_assembly(text))


def _main_loop(blocks: Blocks) -> MainLoop | None:
    numbers = range(len(blocks.follows))
    # Only loops with work count as inner loops: a wait for a barrier is a loop too, inside the main one.
    for kind in (MATRIX, FMA, None):
        work = [1 if kind is None else blocks.count(block, kind) for block in numbers]
        loops = list(_innermost(set(numbers), blocks.follows, work)) if any(work) else []
        if loops:
            found = [_counts(blocks, _in_line(loop, blocks.follows)) for loop in loops]
            return max(found, key=lambda loop: (loop.matrix, loop.fma if kind == FMA else 0, loop.instructions))
    return None


def _counts(blocks: Blocks, loop: set[int]) -> MainLoop:
    kinds = (MATRIX, FMA, SHARED, LOAD, SYNC)
    instructions = sum(blocks.starts[block + 1] - blocks.starts[block] for block in loop)
    return MainLoop(instructions, *(sum(blocks.count(block, kind) for block in loop) for kind in kinds))


def _innermost(among: set[int], follows: Sequence[Sequence[int]], work: Sequence[int]) -> Iterator[set[int]]:
    """Yield the blocks of each loop with work that has no other loop with work inside."""
    left = [among]
    while left:
        for loop in _cycles(left.pop(), follows):
            if not any(work[block] for block in loop):
                continue
            # Without its first block the loop is broken; cycles that remain are inner loops.
            rest = loop - {_head(loop, follows)}
            inner = [cycle for cycle in _cycles(rest, follows) if any(work[block] for block in cycle)]
            if inner:
                left.append(rest)
            else:
                yield loop


def _in_line(loop: set[int], follows: Sequence[Sequence[int]]) -> set[int]:
    """Return the loop without the blocks behind its last backward branch.

    ptxas puts retries of waits there, which seldom run.
    """
    head = _head(loop, follows)
    last = max((block for block in loop if head in follows[block]), default=head)
    return {block for block in loop if block <= last} if head == min(loop) else loop


def _head(loop: set[int], follows: Sequence[Sequence[int]]) -> int:
    """Return the first block of a loop that is entered from outside."""
    entered = {after for block, found in enumerate(follows) if block not in loop for after in found}
    return min(entered & loop or loop)


def _cycles(among: set[int], follows: Sequence[Sequence[int]]) -> Iterator[set[int]]:
    """Yield the strongly connected components that have an edge, by Tarjan's algorithm (1972) without recursion."""
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
