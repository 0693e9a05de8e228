"""`Package`: what a bundle adds to a result, so that a program can launch it without Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from genkern.decoding import Flag, Sha256, Symbol, Text
from genkern.gemm.operand import Operand
from genkern.gemm.problem import INT32

if TYPE_CHECKING:
    from genkern.kernels.plan import LaunchPlan
else:
    # msgspec cannot check a launch plan, whose arguments are one of several dataclasses: LaunchPlan.from_data does.
    LaunchPlan = Any

# Largest number of M for which a call lists a proof.
MOST_PROVED = 64
Rows = Annotated[int, Meta(ge=1, le=INT32, description=f"an M from 1 to {INT32}")]

Proved = Annotated[tuple[Rows, ...], Meta(max_length=MOST_PROVED, description=f"a list of up to {MOST_PROVED} M")]


@dataclass(frozen=True)
class PackedCall:
    """How a winner is launched for a range of M.

    least_m, most_m: the smallest and the largest M that it serves.
    plan: the launch plan.
    binaries: the sha256 of a binary for each launch of the plan.
    code: digest of the machine code of the binaries (genkern.gemm.records.code_digest).
    proved: the M, in ascending order, for which its output was proved right on the winner's device, launched as it is
        packed (genkern.packing.proof).
    sums: the order of sums along K (genkern.kernels.contract.sum_order); "" if unknown. A row of A has the same bits in
        all calls with the same order.
    """

    least_m: Rows
    most_m: Rows
    plan: LaunchPlan
    binaries: tuple[Sha256, ...]
    code: Text
    proved: Proved = ()
    sums: Text = ""

    def serves(self, m: int) -> bool:
        """Return True if the call can be launched for M: it is in the range, and kernels' assumptions about M hold."""
        return self.least_m <= m <= self.most_m and self.plan.keeps_promises(m)

    @property
    def is_proved(self) -> bool:
        """True if it was proved at both ends of its range of M."""
        return self.proved[:1] == (self.least_m,) and self.proved[-1:] == (self.most_m,)


@dataclass(frozen=True)
class PackedOperand:
    """How a winner's kernels read an operand of the format; fields as in `genkern.gemm.operand.Operand`."""

    name: Symbol
    dtype: Text
    row_major: Flag
    packed: Annotated[int, Meta(ge=1, le=64, description="a whole number from 1 to 64")]

    @classmethod
    def of(cls, operand: Operand) -> PackedOperand:
        return cls(operand.name, operand.dtype, operand.row_major, operand.packed)

    def __str__(self) -> str:
        more = f", {self.packed} in one" if self.packed > 1 else ""
        return f"{self.name} {self.dtype}{more}, {'row' if self.row_major else 'column'}-major"


@dataclass(frozen=True)
class Package:
    """How a bundle's winner is called.

    calls: the calls; the first call is for the problem's own M. If the library won, they serve other M.
    operands: the operands of the format when the winner was packed.
    deterministic: True if two runs give equal bits.
    """

    calls: tuple[PackedCall, ...] = ()
    operands: tuple[PackedOperand, ...] = ()
    deterministic: Flag = True
