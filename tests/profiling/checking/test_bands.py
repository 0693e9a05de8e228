"""Tests of profiling/checking/bands.py: a check by bands says what it says of all of C at once, in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import takes
from small_gemms import TILED, make_module

from genkern.gemm.problem import GemmProblem
from genkern.kernels.refusal import is_out_of_memory
from genkern.ops.op import get_op, op_names
from genkern.profiling.checking import inputs
from genkern.profiling.checking.bands import Band, bands_of, cut, row_bytes
from genkern.profiling.checking.verdict import Checking, Subject, Verdict

torch = pytest.importorskip("torch")
counted_memory = pytest.importorskip("counted_memory")

Operands = dict[str, Any]
FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
MOE = ("experts", 5), ("routing_seed", 3), ("top_k", 2)
# Every format, with whatever decides which operands have rows of A's.
PROBLEMS = [
    GemmProblem(50, 24, 64, bias=True, activation="gelu"),
    GemmProblem(50, 24, 64, dtype_c="fp32", row_major_a=False, row_major_b=True),
    GemmProblem(50, 24, 64, "a8w8", *FP8, bias=True),
    GemmProblem(50, 24, 64, "a8w8", *FP8, own=(("scales", "per_token"),)),
    GemmProblem(50, 24, 64, "a8w8", "int8", "int8", "fp16", row_major_a=False),
    GemmProblem(50, 72, 160, "a8w8_blockscale", *FP8, own=(("block_k", 32), ("block_n", 16))),
    GemmProblem(50, 72, 160, "a8w8_blockscale", *FP8, own=(("block_m", 8),)),
    GemmProblem(50, 72, 160, "a8w8_bpreshuffle", *FP8, own=(("layout", "n8k16"), ("scales", "per_token"))),
    GemmProblem(
        *(50, 72, 160, "a8w8_blockscale_bpreshuffle", "int8", "int8", "fp32"),
        own=(("block_k", 32), ("block_n", 16), ("layout", "n8k16")),
    ),
    GemmProblem(50, 24, 64, "a16w8", "bf16", "int8", "bf16"),
    GemmProblem(50, 24, 64, "a16w4", "bf16", "int8", "bf16"),
    GemmProblem(50, 24, 64, "a4w4_blockscale", "int8", "int8", "bf16"),
    GemmProblem(13, 24, 64, "batched_a16w16", own=(("batch_size", 4),)),
    GemmProblem(13, 24, 64, "batched_a8w8", *FP8, own=(("batch_size", 4),)),
    GemmProblem(50, 24, 64, "grouped_gemm", own=(("groups", 6), ("routing", "skewed"))),
    GemmProblem(50, 24, 128, "grouped_gemm", *FP8, own=(("groups", 6), ("scales", "blocks"))),
    GemmProblem(50, 24, 64, "grouped_gemm", *FP8, own=(("groups", 6), ("scales", "per_token"))),
    GemmProblem(50, 24, 64, "grouped_gemm", own=(("capacity", 13), ("groups", 6))),
    GemmProblem(30, 24, 64, "fused_moe", activation="silu", own=(*MOE, ("stage", "gate_up"))),
    GemmProblem(
        30, 24, 64, "fused_moe", *FP8, activation="silu", own=(*MOE, ("scales", "per_token"), ("stage", "gate_up"))
    ),
    GemmProblem(30, 24, 64, "fused_moe", own=MOE),
    GemmProblem(30, 24, 128, "fused_moe", *FP8, own=(*MOE, ("scales", "blocks"))),
    GemmProblem(30, 24, 64, "fused_moe", *FP8, own=(*MOE, ("scales", "per_token"))),
]
HEIGHTS = (1, 7, 16)


def with_rows(problem: GemmProblem, rows: int) -> int:
    """Bytes that bands of so many rows may take."""
    return rows * row_bytes(problem, get_op(problem.op))


def test_every_format_is_checked_by_bands() -> None:
    assert {problem.op for problem in PROBLEMS} == set(op_names())
    assert all(get_op(name).by_rows for name in op_names())


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda x: x.name)
def test_bands_are_all_of_c_in_order(problem: GemmProblem) -> None:
    """Each element in one, and no band more than there is memory for, but that a unit of rows stays together."""
    op = get_op(problem.op)
    shape = op.operands(problem)[2].shape
    unit = op.shared_scale(problem)[0]
    for rows in HEIGHTS:
        seen = torch.zeros(shape, dtype=torch.int8)
        bands = bands_of(problem, op, with_rows(problem, rows))
        for band in bands:
            part = band.of(seen)
            part += 1
            assert part.numel() <= max(rows, unit) * shape[-1]
        assert seen.eq(1).all()
        assert list(bands) == sorted(bands, key=lambda band: (band.first_product, band.first))
    assert len(bands_of(problem, op, 2**40)) == 1


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda x: x.name)
def test_a_bands_reference_is_its_part_of_cs(problem: GemmProblem, tmp_path: Path) -> None:
    """To the bit, of the exact inputs that a check makes: of every format's own reference."""
    config = TILED if takes(problem, TILED) else replace(TILED, BLOCK_SIZE_K=64)
    _, module = make_module(tmp_path, problem, [config], "sm_90")
    op = get_op(problem.op)
    checking = Checking(problem, op, "sm_90", module.reference, module.make_operands("cpu"))
    tensors = {name: place.tensor for name, place in checking._inputs(checking.rounds[0]).items()}
    expected = module.reference(tensors)
    without_c = {name: tensor for name, tensor in tensors.items() if name not in ("a", "c")}
    for rows in HEIGHTS:
        for band in bands_of(problem, op, with_rows(problem, rows)):
            found = module.reference(cut(problem, op, tensors, band))
            assert torch.equal(found.nan_to_num(-1), band.of(expected).nan_to_num(-1)), band
            # As magnitudes are, whose A is the band's own.
            others = {"a": cut(problem, op, tensors, band)["a"], **cut(problem, op, without_c, band)}
            assert module.reference(others).shape == found.shape


SMALL = GemmProblem(37, 16, 48, bias=True)


def product(x: Operands) -> Any:
    return x["a"].float() @ x["b"].float() + x["bias"].float()


def verdict(by_rows: int, fault: tuple[int, int, float] | None, problem: GemmProblem = SMALL) -> Verdict:
    """On a product that is off in one element, in bands of so many rows."""
    like = {x.name: torch.empty(0, dtype=torch.bfloat16) for x in get_op(problem.op).operands(problem)}
    least = 4 * with_rows(problem, by_rows)
    checking = Checking(problem, get_op(problem.op), "sm_90", product, like, least_bytes=least)
    assert len(checking.bands) == -(-problem.M // by_rows)

    def launch(x: Operands) -> None:
        x["c"].copy_(product(x))
        if fault is not None:
            row, column, off = fault
            x["c"][row, column] += off

    return replace(checking.check(Subject(launch)), seconds=0.0)


@given(
    row=st.integers(0, 36),
    column=st.integers(0, 15),
    off=st.sampled_from([64.0, float("nan")]),
    rows=st.integers(1, 12),
)
@settings(max_examples=12, deadline=None)
def test_a_fault_is_found_where_it_is(row: int, column: int, off: float, rows: int) -> None:
    """In any band, at its edges too: the same verdict as of all of C at once, place, count and errors included."""
    whole = verdict(37, (row, column, off))
    assert not whole.passed
    assert f"C[{row}, {column}]" in whole.message
    assert verdict(rows, (row, column, off)) == whole


@pytest.mark.parametrize("rows", [1, 5, 36])
def test_a_right_product_passes_by_bands(rows: int) -> None:
    """With the figures of all of C at once."""
    whole, found = verdict(37, None), verdict(rows, None)
    assert found.passed
    assert (found.rounds, found.error_ratio) == (whole.rounds, whole.error_ratio)
    assert found.worst_row_error == pytest.approx(whole.worst_row_error, rel=1e-3)


@pytest.mark.parametrize(("dtype_c", "K"), [("bf16", 16), ("fp32", 16), ("bf16", 512)])
def test_memory_stays_below_twice_c(dtype_c: str, K: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside A and B: C between its guards, as operands are, and no more than C once more; A as large as C too."""
    monkeypatch.setattr(inputs, "_AT_ONCE", 2**14)
    problem = GemmProblem(1024, 512, K, dtype_c=dtype_c)
    op = get_op(problem.op)
    like = {x.name: torch.empty(0, dtype=torch.bfloat16) for x in op.operands(problem)}
    like["c"] = torch.empty(0, dtype=getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[dtype_c]))
    reference = lambda x: x["a"].float() @ x["b"].float()  # noqa: E731
    checking = Checking(problem, op, "sm_90", reference, like, least_bytes=1)
    assert len(checking.bands) > 20
    c_bytes = op.operands(problem)[2].size_bytes
    wrong = []
    with counted_memory.CountedMemory() as counted:
        for off in (0.0, 1.0):

            def launch(x: Operands, off: float = off) -> None:
                for band in checking.bands:
                    band.of(x["c"]).copy_(reference({"a": band.of(x["a"]), "b": x["b"]}))
                x["c"][-1, -1] += off

            wrong.append(checking.check(Subject(launch)).message)
    assert [bool(message) for message in wrong] == [False, True]
    # Guards of 4 MiB at most are on both sides, of A and B too, and one is looked at.
    around = 3 * c_bytes + 3 * (1024 + 512) * K * 2
    # B's magnitudes, and numbers in float32.
    of_b = 512 * K * (2 + 4)
    assert c_bytes <= 2**22
    assert counted.peak_bytes - around - of_b <= 2.0 * c_bytes


def failing(times: int) -> tuple[Checking, list[int]]:
    """A check whose reference has no memory so often."""
    like = {x.name: torch.empty(0, dtype=torch.bfloat16) for x in get_op("a16w16").operands(SMALL)}
    bands: list[int] = []

    def reference(x: Operands) -> Any:
        bands.append(len(x["a"]))
        if len(bands) <= times:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB")
        return product(x)

    least = 4 * with_rows(SMALL, 16)
    return Checking(SMALL, get_op("a16w16"), "sm_90", reference, like, least_bytes=least), bands


def test_without_memory_it_makes_do_with_less() -> None:
    """Smaller bands, and nothing kept; the verdict is the same."""
    checking, bands = failing(1)
    assert checking.check(Subject(lambda x: x["c"].copy_(product(x)))).passed
    assert bands[0] == 16
    assert max(bands[1:]) == 2


def test_want_of_memory_is_no_verdict() -> None:
    """Where the least is too much, what is raised says so; other errors are not taken for it."""
    checking, _ = failing(9)
    with pytest.raises(torch.cuda.OutOfMemoryError) as raised:
        checking.check(Subject(lambda x: x["c"].copy_(product(x))))
    assert is_out_of_memory(raised.value)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_reference_of_other_rows_is_refused() -> None:
    """Of a format whose reference does not do what it says of itself."""
    like = {x.name: torch.empty(0, dtype=torch.bfloat16) for x in get_op("a16w16").operands(SMALL)}
    checking = Checking(SMALL, get_op("a16w16"), "sm_90", lambda x: torch.zeros(37, 16), like, least_bytes=1)
    with pytest.raises(ValueError, match="by_rows"):
        checking.check(Subject(lambda x: x["c"].zero_()))


def test_a_format_that_does_not_go_by_rows_has_one_band() -> None:
    """Of someone's own, unless it says so."""
    own = replace(get_op("a16w16"), by_rows=False)
    assert bands_of(SMALL, own, 1) == (Band(0, 37),)
