"""Tests of profiling/checking/verdict.py: planted faults are found whatever the size, right results never refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from long_tests import repeats

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.profiling.checking.verdict import Checking, Subject, Verdict, WorkBuffer

torch = pytest.importorskip("torch")

Operands = dict[str, Any]
FP8 = "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16"
INT8 = "a8w8", "int8", "int8", "fp16"


def reference(x: Operands, *, activation: str = "none") -> Any:
    return finished(x["a"].double() @ x["b"].double(), x, activation=activation)


def finished(c: Any, x: Operands, *, activation: str = "none") -> Any:
    """What follows the sum."""
    for name in ("scale_a", "scale_b", "bias"):
        if name in x:
            c = c + x[name].double() if name == "bias" else c * x[name].double()
    c = c.float()
    return c if activation == "none" else getattr(torch.nn.functional, activation)(c)


def checking(problem: GemmProblem, device: str = "cpu", **more: Any) -> Checking:
    like = {
        x.name: torch.empty(0, dtype=getattr(torch, DTYPES[x.dtype].torch), device=device)
        for x in get_op(problem.op).operands(problem)
    }
    right = lambda x: reference(x, activation=problem.activation)  # noqa: E731
    return Checking(problem, get_op(problem.op), "sm_90", right, like, **more)


def check(problem: GemmProblem, product: Callable[[Operands], Any], **more: Any) -> Verdict:
    """The verdict on what `product` returns as C, float32."""
    return checking(problem).check(Subject(lambda x: x["c"].copy_(product(x)), **more))


PROBLEMS = [
    GemmProblem(1, 1, 1),
    GemmProblem(1, 28672, 64),
    GemmProblem(17, 33, 4097, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16"),
    GemmProblem(5, 7, 28672, dtype_c="fp32", row_major_a=False, row_major_b=True),
    GemmProblem(31, 64, 513, dtype_a="fp32", dtype_b="fp32", dtype_c="fp32", bias=True),
    GemmProblem(64, 48, 1000, bias=True, activation="gelu"),
    GemmProblem(64, 48, 96, activation="silu", dtype_c="fp16"),
    GemmProblem(64, 48, 96, activation="relu"),
    GemmProblem(16, 40, 8192, *FP8, bias=True),
    GemmProblem(16, 40, 300, *INT8, row_major_a=False),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda x: x.name)
def test_right_results_pass(problem: GemmProblem) -> None:
    """All rounds, with sums in float32 in a shuffled order, and in the other order of operands."""

    def in_some_order(x: Operands) -> Any:
        order = torch.randperm(problem.K, generator=torch.Generator().manual_seed(1))
        parts = order.tensor_split(3)
        sums = sum(x["a"][:, part].float() @ x["b"][part].float() for part in parts if len(part))
        return finished(sums, x, activation=problem.activation)

    verdict = check(problem, in_some_order)
    assert verdict.passed, verdict.message
    assert verdict.rounds == ("exact", "layout", "random")
    assert verdict.message == ""
    assert verdict.error_ratio == 0
    assert verdict.worst_row_error < 0.01


@pytest.mark.parametrize("seed", range(repeats(2, 5)))
def test_sums_of_fourteen_bits_pass(seed: int) -> None:
    """As the matrix units of sm_90 make them of fp8 products: 32 at a time, cut to 14 bits of the largest."""
    problem = GemmProblem(16, 24, 4096, *FP8)

    def cut(x: Operands) -> Any:
        a, b = x["a"].double(), x["b"].double()
        total = torch.zeros(16, 24, dtype=torch.float64)
        for k in range(0, problem.K, 32):
            terms = torch.cat([a[:, k : k + 32, None] * b[None, k : k + 32], total[:, None]], 1)
            _, exponent = torch.frexp(terms.abs().amax(1))
            unit = torch.exp2(exponent.double() - 14)
            total = (terms / unit[:, None]).trunc().sum(1) * unit
            _, exponent = torch.frexp(total)
            unit = torch.exp2(exponent.double() - 14)
            total = (total / unit).trunc() * unit
        return finished(total, x)

    verdict = checking(problem, seed=seed).check(Subject(lambda x: x["c"].copy_(cut(x))))
    assert verdict.passed, verdict.message


def without(x: Operands, places: Any) -> Any:
    """The product with A zero at these columns."""
    a = x["a"].clone()
    a[:, places] = 0
    return reference({**x, "a": a})


def zero_columns(count: int, first: int) -> Callable[[Operands], Any]:
    def product(x: Operands) -> Any:
        c = reference(x)
        c[:, first : first + count] = 0
        return c

    return product


def swapped_tiles(x: Operands) -> Any:
    c = reference(x)
    c[:16, :16], c[16:32, :16] = c[16:32, :16].clone(), c[:16, :16].clone()
    return c


def by_two_splits(x: Operands, dtype: Any) -> Any:
    half = x["a"].shape[1] // 2
    parts = [x["a"][:, k : k + half].float() @ x["b"][k : k + half].float() for k in (0, half)]
    return finished(sum(part.to(dtype).float() for part in parts), x)


SQUARE = GemmProblem(64, 64, 512)
BIASED = GemmProblem(64, 64, 512, bias=True)
FAULTS: dict[str, tuple[GemmProblem, Callable[[Operands], Any]]] = {
    "last 4 of 28672 columns": (GemmProblem(1, 28672, 64), zero_columns(4, 28668)),
    "8 of 128256 columns": (GemmProblem(64, 128256, 32), zero_columns(8, 64000)),
    "one element": (SQUARE, lambda x: reference(x) + torch.eye(64).roll(3, 0) * (torch.arange(64) == 9)),
    "first k": (GemmProblem(1, 8, 28672), lambda x: without(x, [0])),
    "last k": (GemmProblem(1, 8, 28672), lambda x: without(x, [28671])),
    "last k of fp8": (GemmProblem(1, 8, 28672, *FP8), lambda x: without(x, [28671])),
    "a k in the middle of 128256": (GemmProblem(4, 8, 128256), lambda x: without(x, [70001])),
    "last block": (SQUARE, lambda x: without(x, slice(448, 512))),
    "a product twice": (SQUARE, lambda x: reference(x) + x["a"][:, 7:8].float() @ x["b"][7:8].float()),
    "the next column of B": (SQUARE, lambda x: reference({**x, "b": x["b"].roll(1, 1)})),
    "the next row of A": (SQUARE, lambda x: reference({**x, "a": x["a"].roll(1, 0)})),
    "k off by one": (SQUARE, lambda x: reference({**x, "a": x["a"].roll(1, 1)})),
    "transposed": (SQUARE, lambda x: reference(x).T),
    "tiles swapped": (SQUARE, swapped_tiles),
    "no bias": (BIASED, lambda x: reference({**x, "bias": x["bias"] * 0})),
    "bias twice": (BIASED, lambda x: reference({**x, "bias": x["bias"] * 2})),
    "the next bias": (BIASED, lambda x: reference({**x, "bias": x["bias"].roll(1)})),
    "no scale": (GemmProblem(64, 64, 512, *FP8), lambda x: reference({**x, "scale_a": torch.ones(1)})),
    "no scales": (
        GemmProblem(64, 64, 512, *INT8),
        lambda x: reference({**x, "scale_a": torch.ones(1), "scale_b": torch.ones(1)}),
    ),
    "the other scale": (GemmProblem(64, 64, 512, *FP8), lambda x: reference({**x, "scale_a": x["scale_b"]})),
    "no relu": (GemmProblem(64, 64, 512, activation="relu"), reference),
    "relu hides a k": (
        GemmProblem(1, 1, 512, activation="relu"),
        lambda x: torch.relu(without(x, [511])),
    ),
    "gelu by tanh": (
        GemmProblem(64, 64, 8, activation="gelu", dtype_c="fp16"),
        lambda x: torch.nn.functional.gelu(reference(x), approximate="tanh"),
    ),
    "silu hides a k": (
        GemmProblem(1, 1, 512, activation="silu"),
        lambda x: torch.nn.functional.silu(without(x, [511])),
    ),
    "splits cast to bf16": (SQUARE, lambda x: by_two_splits(x, torch.bfloat16)),
    "splits of fp8 cast to bf16": (GemmProblem(64, 64, 4096, *FP8), lambda x: by_two_splits(x, torch.bfloat16)),
    "splits cast to fp16": (
        GemmProblem(64, 64, 4096, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16"),
        lambda x: by_two_splits(x, torch.float16),
    ),
    "truncated": (SQUARE, lambda x: (reference(x).view(torch.int32) & -65536).view(torch.float32)),
    "one NaN": (SQUARE, lambda x: reference(x).index_fill_(1, torch.tensor([5]), float("nan"))),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    """Each of them, in every size, with the first wrong element in the message."""
    problem, product = FAULTS[name]
    verdict = check(problem, product)
    assert not verdict.passed
    assert "expected" in verdict.message
    assert "of" in verdict.message


def test_the_message_says_where() -> None:
    """Row, column, what is there, what should be, and how many there are."""

    def product(x: Operands) -> Any:
        c = reference(x)
        c[3, 60:] = 1000
        return c

    verdict = check(SQUARE, product)
    assert verdict.message.startswith("exact inputs: C[3, 60] is 1000, expected ")
    assert verdict.message.endswith("; 4 of 4,096 are wrong")
    assert verdict.error_ratio == 4 / 4096
    assert verdict.rounds == ()


def raw(x: Any, rows: int, pitch: int, offset: int = 0) -> Any:
    """What lies at rows of a pitch from an offset on, as a kernel without a mask sees it."""
    return torch.as_strided(x, (rows, pitch), (pitch, 1), x.storage_offset() + offset)


def launch(after: Callable[[Operands], object]) -> Subject:
    """The right product, and then something else."""

    def run(x: Operands) -> None:
        x["c"].copy_(reference(x))
        after(x)

    return Subject(run)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        # One row more than there are.
        (lambda x: raw(x["c"], 65, x["c"].stride(0))[64, :64].zero_(), "exact inputs: writes outside C at row 64, col"),
        (lambda x: raw(x["c"], 1, 1, -1).zero_(), "exact inputs: writes outside C at row -1, column 63"),
        # A row that is longer than C's, where that is not the next one.
        (
            lambda x: raw(x["c"], 64, x["c"].stride(0))[:, 64:65].zero_() if x["c"].stride(0) > 64 else None,
            "exact inputs in larger matrices: writes outside C at row 0, column 64",
        ),
        (lambda x: raw(x["b"].T, 1, 1, -1).zero_(), "exact inputs: writes outside B at row -1, column 511"),
        (lambda x: raw(x["bias"], 1, 1, 64).zero_(), "exact inputs: writes outside bias at element 64"),
    ],
)
def test_writes_outside_are_found(after: Callable[[Operands], object], message: str) -> None:
    """Of C, and of what is only read."""
    verdict = checking(BIASED).check(launch(after))
    assert not verdict.passed
    assert verdict.message.startswith(message)


def test_a_wrong_stride_of_c_is_found() -> None:
    """Rows one element too far apart, or as if there were no gap between them."""
    for wrong in (lambda pitch: pitch + 1, lambda pitch: 64):

        def run(x: Operands, wrong: Callable[[int], int] = wrong) -> None:
            pitch = wrong(x["c"].stride(0))
            torch.as_strided(x["c"], (64, 64), (pitch, 1), x["c"].storage_offset()).copy_(reference(x))

        verdict = checking(SQUARE).check(Subject(run))
        assert not verdict.passed


@pytest.mark.parametrize("types", [("a16w16", "bf16", "bf16", "bf16"), FP8, INT8], ids="_".join)
def test_reads_outside_that_matter_are_found(types: tuple[str, str, str, str]) -> None:
    """One k too many of the last row, of A alone or of A and B; a bias that begins one later."""
    problem = GemmProblem(8, 8, 60, *types, bias=True)

    def longer(x: Operands) -> Any:
        a, b = (raw(m, 8, m.stride(0)) for m in (x["a"], x["b"].T))
        more = [torch.as_strided(m, (8, 61), (m.stride(0), 1), m.storage_offset()) for m in (a, b)]
        return reference({**x, "a": more[0], "b": more[1].T})

    def later(x: Operands) -> Any:
        return reference({**x, "bias": torch.as_strided(x["bias"], (8,), (1,), x["bias"].storage_offset() + 1)})

    assert not check(problem, longer).passed
    assert not check(problem, later).passed


WORK = WorkBuffer("workspace", 64, torch.float32)
COUNTERS = WorkBuffer("counters", 4, torch.int32, zero=True)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (lambda x: x["workspace"].zero_(), ""),
        (lambda x: x["counters"].add_(1), "exact inputs: leaves 1 in counters[0], not zero"),
        (lambda x: raw(x["workspace"], 1, 1, 64).zero_(), "exact inputs: writes outside workspace at element 64"),
        (lambda x: raw(x["counters"], 1, 1, -1).zero_(), "exact inputs: writes outside counters at element -1"),
        # What nobody wrote spoils the sum.
        (lambda x: x["c"].add_(x["workspace"][0]), "exact inputs: C[0, 0] is nan"),
    ],
)
def test_workspaces_are_guarded(after: Callable[[Operands], object], message: str) -> None:
    """Counters are zero before a call and after it; nothing else of a workspace may be relied on."""
    subject = Subject(launch(after).launch, (WORK, COUNTERS))
    verdict = checking(SQUARE).check(subject)
    assert verdict.passed is not bool(message)
    assert verdict.message.startswith(message)


def test_a_second_call_is_checked() -> None:
    """Of a kernel that is right once only, as its workspace was fresh."""
    calls = []

    def run(x: Operands) -> None:
        calls.append(len(calls))
        x["c"].copy_(reference(x) * (len(calls) != 2))

    verdict = checking(SQUARE).check(Subject(run))
    assert not verdict.passed
    assert len(calls) == 2


def test_a_refused_layout_is_left_out() -> None:
    """A module that takes no slices is checked in the other rounds, and says so."""
    sliced = lambda x: "" if x["c"].is_contiguous() else "no slices"  # noqa: E731
    verdict = check(SQUARE, reference, refuses=sliced)
    assert verdict.passed
    assert verdict.rounds == ("exact", "random")


def test_references_are_made_once() -> None:
    """One for each round, and one more for the random round's bound, whatever is checked with it."""
    made = checking(SQUARE)
    calls = []
    right = made.reference
    made.reference = lambda x: (calls.append(1), right(x))[1]
    for _ in range(3):
        assert made.check(Subject(lambda x: x["c"].copy_(reference(x)))).passed
    assert len(calls) == 4
