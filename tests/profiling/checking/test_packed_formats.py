"""Checks of formats whose elements are no numbers of their storage type, made of what the formats say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import Op, get_op, matrices
from genkern.profiling.checking.verdict import Checking, Subject, Verdict

torch = pytest.importorskip("torch")

Operands = dict[str, Any]
# The magnitudes of e2m1 by code (OCP Microscaling Formats, 1.0, section 5.3.3).
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
GROUP = 32


def encode_int4(numbers: Any) -> Any:
    return (numbers.float() * (1 if numbers.dtype == torch.int8 else 2)).round().clamp(-7, 7).to(torch.int8) & 15


def decode_int4(codes: Any) -> Any:
    return ((codes.int() ^ 8) - 8).double()


def encode_e2m1(numbers: Any) -> Any:
    distance = (numbers.float().abs()[..., None] - torch.tensor(E2M1)).abs()
    return (distance.argmin(-1) | ((numbers < 0).int() << 3)).to(torch.int8)


def decode_e2m1(codes: Any) -> Any:
    return torch.tensor(E2M1).double()[codes.long() & 7] * (1 - 2 * (codes.double() >= 8))


@dataclass(frozen=True)
class Packed:
    """A format of 16-bit A and of B [K, N] in 4 bits, two a byte along K, with an exponent for each 32 of a column."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    largest: int

    def operands(self, problem: GemmProblem) -> tuple[Operand, ...]:
        a, b, c = matrices(problem)
        groups = (problem.N, -(-problem.K // GROUP))
        scale = Operand("scale_b", "scale", groups, "int8", scales="b", in_step=True)
        return a, replace(b, dtype="int8", packed=2), c, scale

    def exact_inputs(self, problem: GemmProblem, operand: Operand, numbers: Any, generator: Any) -> Any:
        if operand.name == "scale_b":
            return torch.log2(numbers).round().to(torch.int8)
        codes = torch.nn.functional.pad(self.encode(numbers.T), (0, problem.K % 2))
        return (codes[:, ::2] | codes[:, 1::2] << 4).T

    def b(self, x: Operands, *, swapped: bool = False) -> Any:
        """The numbers of B [K, N], scaled."""
        bytes_ = x["b"].T.int() & 255
        nibbles = [bytes_ >> 4, bytes_ & 15] if swapped else [bytes_ & 15, bytes_ >> 4]
        K = x["a"].shape[1]
        numbers = self.decode(torch.stack(nibbles, -1).flatten(1)[:, :K])
        return (numbers * torch.exp2(x["scale_b"].double()).repeat_interleave(GROUP, 1)[:, :K]).T

    def reference(self, x: Operands) -> Any:
        return (x["a"].double() @ self.b(x)).float()

    @property
    def op(self) -> Op:
        return replace(
            get_op("a16w16"),
            operands=self.operands,
            exact_inputs=self.exact_inputs,
            encoded=("scale_b",),
            largest_exact=lambda problem: self.largest,
        )

    def check(self, product: Callable[[Operands], Any], K: int) -> Verdict:
        problem = GemmProblem(16, 24, K)
        like = {x.name: torch.empty(0, dtype=getattr(torch, DTYPES[x.dtype].torch)) for x in self.op.operands(problem)}
        checking = Checking(problem, self.op, "sm_90", self.reference, like)
        return checking.check(Subject(lambda x: x["c"].copy_(product(x))))


FORMATS = {
    "int4": Packed(encode_int4, decode_int4, 7),
    "e2m1": Packed(encode_e2m1, decode_e2m1, 4),
}


@pytest.mark.parametrize("K", [64, 513, 4097])
@pytest.mark.parametrize("name", FORMATS)
def test_a_right_product_passes(name: str, K: int) -> None:
    """All rounds, in float32 in another order of K, with an odd K whose last byte is half empty."""
    form = FORMATS[name]

    def product(x: Operands) -> Any:
        return sum(x["a"][:, at::3].float() @ form.b(x)[at::3].float() for at in range(3))

    verdict = form.check(product, K)
    assert verdict.passed, verdict.message
    assert verdict.rounds == ("exact", "layout", "random")


@pytest.mark.parametrize(
    "fault",
    [
        lambda form, x: x["a"].double() @ form.b(x, swapped=True),
        lambda form, x: x["a"].double() @ form.b({**x, "b": x["b"].roll(1, 0)}),
        lambda form, x: x["a"].double() @ form.b({**x, "scale_b": x["scale_b"].roll(1, 0)}),
        lambda form, x: x["a"].double() @ form.b({**x, "scale_b": x["scale_b"].roll(1, 1)}),
        lambda form, x: x["a"][:, :-1].double() @ form.b(x)[:-1],
    ],
    ids=["nibbles swapped", "the next byte", "the next column's scale", "the next group's scale", "no last k"],
)
@pytest.mark.parametrize("name", FORMATS)
def test_faults_are_found(name: str, fault: Callable[[Packed, Operands], Any]) -> None:
    """Of whoever unpacks or scales wrongly."""
    form = FORMATS[name]
    verdict = form.check(lambda x: fault(form, x), 513)
    assert not verdict.passed
    assert verdict.message.startswith("exact inputs")
