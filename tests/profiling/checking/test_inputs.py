"""Tests of profiling/checking/inputs.py: exact inputs are exact in any order, and hide nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.profiling.checking.alphabet import choose_alphabet, sum_limit
from genkern.profiling.checking.inputs import Round, fill, rounds_of

torch = pytest.importorskip("torch")

TYPES = [
    ("a16w16", "bf16", "bf16", "bf16"),
    ("a16w16", "fp16", "fp16", "fp16"),
    ("a16w16", "fp32", "fp32", "fp32"),
    ("a8w8", "int8", "int8", "bf16"),
    ("a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16"),
    ("a8w8", "fp8e5m2", "fp8e4m3fn", "fp16"),
    ("a8w8", "fp8e4m3fnuz", "fp8e5m2fnuz", "bf16"),
]


def tensors_of(operands: tuple[Operand, ...]) -> dict[str, Any]:
    return {x.name: torch.empty(x.shape, dtype=getattr(torch, DTYPES[x.dtype].torch)) for x in operands}


def filled(operands: tuple[Operand, ...], round_: Round, *, few: bool = False, seed: int = 0) -> dict[str, Any]:
    tensors = tensors_of(operands)
    fill(tensors, operands, choose_alphabet(operands), round_, few=few, seed=seed)
    return tensors


def operands_of(types: tuple[str, str, str, str], M: int, N: int, K: int, **more: Any) -> tuple[Operand, ...]:
    op, a, b, c = types
    return get_op(op).operands(GemmProblem(M, N, K, op, a, b, c, **more))


@pytest.mark.parametrize("K", [5, 513, 4097, 28672])
@pytest.mark.parametrize("types", TYPES, ids="_".join)
def test_every_partial_sum_is_exact(types: tuple[str, str, str, str], K: int) -> None:
    """The inputs survive their type as integers, and no sum of their products' magnitudes leaves the accumulator."""
    operands = operands_of(types, 3, 4, K)
    for round_ in rounds_of(choose_alphabet(operands), "none")[:-1]:
        made = filled(operands, round_)
        a, b = made["a"].double(), made["b"].double()
        assert torch.equal(a, a.round())
        assert (b != 0).all()
        magnitude = a.abs() @ b.abs()
        assert magnitude.max() <= sum_limit(operands)
        # In 14 bits, to which every partial sum is cut: integers are the same after it.
        if sum_limit(operands) == 2**13:
            sums = (a[:, :, None] * b[None]).cumsum(1)
            mantissa, exponent = torch.frexp(sums)
            assert torch.equal(torch.ldexp((mantissa * 2**14).trunc() / 2**14, exponent), sums)


@pytest.mark.parametrize(("M", "N", "K"), [(1, 8, 28672), (3, 1, 128256), (64, 64, 513), (16, 16, 4097)])
@pytest.mark.parametrize("types", [TYPES[0], TYPES[4]], ids="_".join)
def test_every_product_stands_in_one_round(types: tuple[str, str, str, str], M: int, N: int, K: int) -> None:
    """Each k of each row of A is no zero in one of the exact rounds, and no two of these share one."""
    operands = operands_of(types, M, N, K)
    rounds = [x for x in rounds_of(choose_alphabet(operands), "none") if x.kind == "exact"]
    stands = sum((filled(operands, round_)["a"].float() != 0).int() for round_ in rounds)
    assert (stands == 1).all()


def test_rows_and_columns_differ() -> None:
    """Whoever takes a neighbour's gets another result; also along K, where a block is another's place."""
    made = filled(operands_of(TYPES[0], 64, 96, 256), Round("exact"))
    for x in (made["a"], made["a"].T, made["b"], made["b"].T):
        assert len(torch.unique(x.float(), dim=0)) == len(x)


def test_a_drift_takes_partial_sums_far_up_and_back() -> None:
    """Half the sum is beyond what C's type holds to the unit, so a partial sum that was cast to it shows."""
    for types, limit in ((TYPES[0], 256), (TYPES[1], 2048), (TYPES[4], 256)):
        made = filled(operands_of(types, 32, 32, 1024), Round("layout"))
        a, b = made["a"].double(), made["b"].double()
        half = a[:, :512] @ b[:512]
        assert half.abs().min() > limit
        assert (a @ b).abs().mean() < half.abs().mean() / 2


def test_scales_are_powers_of_two_that_differ() -> None:
    """By element; one alone is no 1, nor is the product of A's and B's; a bias is of integers that vary."""
    a, b, c, *scales, bias = operands_of(TYPES[4], 32, 48, 256, bias=True)
    made = filled((a, b, c, *scales, bias), Round("exact"))
    assert made["scale_a"].item() not in (1, 1 / made["scale_b"].item())
    assert made["scale_b"].item() != 1
    assert (made["bias"] != 0).all()
    assert len(made["bias"].unique()) > 5
    rows = replace(scales[0], shape=(32, 1)), replace(scales[1], shape=(2, 2), in_step=True)
    made = filled((a, b, c, *rows), Round("exact"))
    for scale in (made["scale_a"], made["scale_b"]):
        assert torch.equal(torch.exp2(torch.log2(scale).round()), scale)
    assert len(made["scale_a"].unique()) == 3


def test_the_same_seed_gives_the_same() -> None:
    """Another seed or round gives others; a negated round the same with -A."""
    operands = operands_of(TYPES[0], 8, 8, 64)
    first, again, other = (filled(operands, Round("exact"), seed=seed)["a"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first, -filled(operands, Round("exact", 0, True), seed=1)["a"])


def test_few_products_where_the_accumulator_has_few_bits() -> None:
    """A random round of a long sum keeps about a thousand of them; of others all."""
    operands = operands_of(TYPES[4], 4, 4, 28672)
    for few, most, least in ((True, 1024, 900), (False, 28672, 25000)):
        counts = (filled(operands, Round("random"), few=few)["a"].float() != 0).sum(1)
        assert least <= counts.min()
        assert counts.max() <= most


@pytest.mark.parametrize("K", [64, 5000])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("types", TYPES, ids="_".join)
def test_random_sums_are_about_one_where_an_activation_bends(
    types: tuple[str, str, str, str], few: bool, K: int
) -> None:
    """A kernel whose activation is wrong between 0 and 1 computes some of them wrongly."""
    for own in ((), (("scales", "per_token"),)) if types[0] == "a8w8" else ((),):
        operands = operands_of(types, 64, 48, K, own=own)
        (round_,) = (each for each in rounds_of(choose_alphabet(operands), "relu") if each.kind == "random")
        made = filled(operands, round_, few=few)
        sums = made["a"].double() @ made["b"].double()
        for name in ("scale_a", "scale_b"):
            sums = sums * made[name].double() if name in made else sums
        assert 0.5 < sums.std() < 2.1


def test_a_format_encodes_what_is_no_number() -> None:
    """It gets the numbers that a plain operand would hold, none for an index, and gives all of the tensor."""
    a, b, c = operands = operands_of(TYPES[3], 8, 8, 8)[:3]
    packed = replace(b, packed=2)
    plain = filled(operands, Round("exact"))["b"]
    order = Operand("order", "index", (8,), "int32")
    asked: dict[str, Any] = {}

    def encode(operand: Operand, numbers: Any, generator: Any) -> Any:
        if operand.name == "order":
            assert numbers is None
            return torch.randperm(8, generator=generator).int()
        if operand.name == "b":
            asked["b"] = numbers
            return torch.full(shape, 3, dtype=torch.int8)
        return None

    def made() -> dict[str, Any]:
        tensors = {x.name: torch.empty(x.tensor_shape, dtype=torch.int8) for x in (a, packed, c)}
        tensors["order"] = torch.empty(8, dtype=torch.int32)
        fill(
            *(tensors, (a, packed, c, order), choose_alphabet(operands), Round("exact")),
            few=False,
            seed=0,
            encode=encode,
        )
        return tensors

    shape = packed.tensor_shape
    tensors = made()
    assert torch.equal(asked["b"], plain)
    assert (tensors["b"] == 3).all()
    assert sorted(tensors["order"].tolist()) == list(range(8))
    shape = (1, 1)
    with pytest.raises(ValueError, match=r"exact_inputs of b: \(1, 1\)"):
        made()


def test_magnitudes_are_those_of_the_same_inputs() -> None:
    """Of a bound: what would have been made, without signs, rounded the same."""
    operands = operands_of(TYPES[4], 8, 8, 64, bias=True)
    made, tensors = filled(operands, Round("random"), few=True), tensors_of(operands)
    fill(tensors, operands, choose_alphabet(operands), Round("random"), few=True, seed=0, magnitudes=True)
    for operand in operands:
        if operand.role != "output":
            assert torch.equal(made[operand.name].float().abs(), tensors[operand.name].float())
