"""Sums: the order in which a config's kernels add up K, as its family says it, of the problem without M.

Two calls of equal Sums on one kind of GPU give equal rows of A equal bits, whatever M, the tile, and the row's place.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import groupby, pairwise

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op

# Bytes along K of one matrix instruction: what wgmma, tcgen05.mma and mma.sync have in common (PTX ISA, "shape").
INSTRUCTION_BYTES = 32
# Of parts of many lengths the text says no more.
_LONGEST = 80


@dataclass(frozen=True)
class Sums:
    """How an element of C is added up along K.

    `instruction`: what multiplies, and how many elements of K at a time, all of one accumulator in the order of K:
    "wgmma k16". Lengths of blocks and stages are no part of it, for they change nothing of that order. "exact": no
    order changes the sum.
    `promoted`: so many elements are added up by themselves, and that sum is added in float32; 0: they are not.
    `scaled`: by one rounding with the product of that sum and a scale.
    `parts`: elements of K that have an accumulator each, which are added one after the other, from zero and from the
    first on. Who adds them changes nothing: a kernel, the last program of a tile, another program of a cluster.
    `like`: the config whose compiled kernels alone are known to have that order; "" where any with the rest have.
    `finish`: whose finish is part of it, where languages compile one differently: its scales and its activation.
    """

    instruction: str
    parts: tuple[int, ...] = ()
    promoted: int = 0
    scaled: bool = False
    like: str = ""
    finish: str = ""

    @property
    def text(self) -> str:
        """A line of printable ASCII without commas, the same for equal ones alone: `wgmma k16; 4 parts of 1024`."""
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
    """Elements of K of each of so many shares that differ by a block at most; those that have any."""
    blocks = -(-k // block)
    return _lengths(k, block, [number * blocks // count for number in range(count + 1)])


def equal_shares(k: int, block: int, count: int) -> tuple[int, ...]:
    """The same of shares of equally many blocks, as long as there are any."""
    blocks = -(-k // block)
    each = -(-blocks // count)
    return _lengths(k, block, [min(number * each, blocks) for number in range(count + 1)])


def _lengths(k: int, block: int, ends: list[int]) -> tuple[int, ...]:
    places = [min(end * block, k) for end in ends]
    return tuple(last - first for first, last in pairwise(places) if last > first)


def instruction_k(dtype: str) -> int:
    """Elements of K of one matrix instruction, of this type of A."""
    return INSTRUCTION_BYTES // DTYPES[dtype].size_bytes


def is_exact(problem: GemmProblem) -> bool:
    """Whether sums are of integers, which have no order, from the first product to the last."""
    op = get_op(problem.op)
    return op.accumulator(problem) == "int32" and not op.step_operands(problem)


def own_finish(problem: GemmProblem, language: str) -> str:
    """The language, where the finish does more than to add a bias: two compilers round or contract that differently."""
    scales = any(operand.role == "scale" for operand in get_op(problem.op).finish_operands(problem))
    return language if scales or problem.activation != "none" else ""


def like(config: Config) -> str:
    """The config by what its main kernel is compiled with."""
    return config.having(GROUP_SIZE_M=1, SPLIT_K=1).name
