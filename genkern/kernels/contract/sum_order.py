"""`SumOrder`: the order in which a config's kernels add up K, as the family states it for a problem without its M.

Two calls with equal `SumOrder` on the same kind of GPU compute the same bits for equal rows of A, whatever M, the tile
and the row's place in it are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import groupby, pairwise

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op

# Bytes along K of one matrix instruction. wgmma, tcgen05.mma and mma.sync have this in common (PTX ISA, "shape").
INSTRUCTION_BYTES = 32
# Longest text for a list of parts, in characters. A longer list is replaced by its digest.
_LONGEST = 80


@dataclass(frozen=True)
class SumOrder:
    """How the products of one element of C are added up along K.

    instruction: the instruction and the elements of K that it multiplies, such as "wgmma k16". All its products go to
        one accumulator in the order of K. Block length and number of stages do not change this order, so they are not
        part of it. "exact": the sum is the same in any order.
    parts: lengths of the parts of K that have an accumulator each. The parts are added one after the other, from the
        first on, starting at zero. It does not matter what adds them: a kernel, the last program of a tile or another
        program of a cluster.
    promoted: number of elements whose sum is formed separately and then added in float32; 0 if sums are not promoted.
    scaled: True if each promoted sum is multiplied by a scale and added with a single rounding.
    like: name of the config whose compiled kernels are the only ones known to have this order. "" if the order is the
        same for all configs whose other fields are equal.
    finish: the language of the epilogue if compilers of different languages compile it to different arithmetic; else
        "".
    """

    instruction: str
    parts: tuple[int, ...] = ()
    promoted: int = 0
    scaled: bool = False
    like: str = ""
    finish: str = ""

    @property
    def text(self) -> str:
        """One line of printable ASCII without commas, such as `wgmma k16; 4 parts of 1024`.

        Two `SumOrder` have the same text only if they are equal.
        """
        said = [self.instruction]
        if self.promoted:
            said.append(f"{'scaled' if self.scaled else 'promoted'} every {self.promoted}")
        if len(self.parts) > 1:
            said.append(_parts_text(self.parts))
        if self.like:
            said.append(f"as {self.like}")
        if self.finish:
            said.append(f"{self.finish} finish")
        return "; ".join(said)


def _parts_text(parts: tuple[int, ...]) -> str:
    runs = [(length, len(list(run))) for length, run in groupby(parts)]
    if len(runs) == 1:
        return f"{len(parts)} parts of {parts[0]}"
    text = " + ".join(f"{count} x {length}" if count > 1 else str(length) for length, count in runs)
    if len(text) > _LONGEST:
        text = f"lengths {hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return f"{len(parts)} parts: {text}"


def near_shares(k: int, block: int, count: int) -> tuple[int, ...]:
    """Return the lengths of `count` shares of K whose numbers of blocks differ by at most one, without empty shares."""
    blocks = -(-k // block)
    return _lengths(k, block, [number * blocks // count for number in range(count + 1)])


def equal_shares(k: int, block: int, count: int) -> tuple[int, ...]:
    """Return the lengths of `count` shares of K with equal numbers of blocks.

    The last share may be shorter. Empty shares are omitted.
    """
    blocks = -(-k // block)
    each = -(-blocks // count)
    return _lengths(k, block, [min(number * each, blocks) for number in range(count + 1)])


def _lengths(k: int, block: int, ends: list[int]) -> tuple[int, ...]:
    places = [min(end * block, k) for end in ends]
    return tuple(last - first for first, last in pairwise(places) if last > first)


def instruction_k(dtype: str) -> int:
    """Return the elements of K that one matrix instruction multiplies if A has type `dtype`."""
    return INSTRUCTION_BYTES // DTYPES[dtype].size_bytes


def is_exact(problem: GemmProblem) -> bool:
    """Whether all sums are sums of integers, which do not depend on the order."""
    op = get_op(problem.op)
    return op.accumulator(problem) == "int32" and not op.step_operands(problem)


def own_finish(problem: GemmProblem, language: str) -> str:
    """Return `language` if the epilogue applies scales or an activation, else "".

    Compilers of different languages may round or contract such an epilogue differently. Adding a bias is the same in
    all.
    """
    scales = any(operand.role == "scale" for operand in get_op(problem.op).finish_operands(problem))
    return language if scales or problem.activation != "none" else ""


def like(config: Config) -> str:
    """Return the config's name with GROUP_SIZE_M and SPLIT_K set to 1: its main kernel is compiled without them."""
    return config.with_values(GROUP_SIZE_M=1, SPLIT_K=1).name
