"""Tests of profiling/checking/guard.py: what is written outside is seen, and what is read there is no number."""

from __future__ import annotations

from typing import Any

import pytest

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.profiling.checking.guard import first_true, guarded, guarded_vector

torch = pytest.importorskip("torch")


def made(name: str = "c", dtype: str = "bf16", shape: tuple[int, ...] = (5, 48), **more: Any) -> Any:
    role = {"a": "activation", "b": "weight", "c": "output", "bias": "bias"}[name]
    operand = Operand(name, role, shape, dtype, row_major=more.pop("row_major", True))  # type: ignore[arg-type]
    return guarded(operand, getattr(torch, DTYPES[dtype].torch), "cpu", **more)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in ("int8", "int32")])
def test_around_floats_lies_nan(dtype: str) -> None:
    """In every type: a read outside spoils whatever sum it enters."""
    place = made(dtype=dtype, sliced=True)
    torch_dtype = getattr(torch, DTYPES[dtype].torch)
    assert place.bits.view(torch_dtype).float().isnan().all()
    place.tensor.copy_(torch.ones(5, 48))
    assert place.bits.view(torch_dtype).float().isnan().sum() == place.bits.numel() - 5 * 48
    assert place.first_outside() is None


@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("sliced", [False, True])
def test_a_slice_keeps_what_kernels_were_promised(row_major: bool, sliced: bool) -> None:
    """Its address is aligned as the operand says and no more; its pitch keeps its remainder by 16 elements."""
    for dtype in ("fp32", "bf16", "fp8e4m3fn", "int8"):
        for columns in (48, 513):
            shape = (5, columns) if row_major else (columns, 5)
            place = made("a", dtype, shape, row_major=row_major, sliced=sliced)
            assert tuple(place.tensor.shape) == shape
            stored = place.tensor if row_major else place.tensor.T
            assert stored.stride(1) == 1
            assert stored.stride(0) % 16 == columns % 16
            assert stored.is_contiguous() is not sliced
            assert (place.start * place.bits.element_size()) % (16 if sliced else 512) == 0
            assert not sliced or (place.start * place.bits.element_size()) % 32


def test_vectors_and_single_columns_keep_their_pitch() -> None:
    """Kernels were compiled for them as they are."""
    for name, shape in (("bias", (40,)), ("a", (7, 1))):
        place = made(name, shape=shape, sliced=True)
        assert place.tensor.is_contiguous()
        assert tuple(place.tensor.shape) == shape


@pytest.mark.parametrize(
    ("offset", "where"),
    [
        (5 * 96, (5, 0)),
        (4 * 96 + 48, (4, 48)),
        (2 * 96 + 95, (2, 95)),
        (-1, (-1, 95)),
        (7 * 96 + 3, (7, 3)),
    ],
)
def test_the_first_write_outside_is_named(offset: int, where: tuple[int, int]) -> None:
    """After the last row, beyond the columns, and before the first row, even if it is another NaN."""
    place = made(sliced=True)
    assert place.pitch == 96
    place.tensor.zero_()
    place.bits.view(torch.bfloat16)[place.start + offset] = float("nan")
    assert place.first_outside() == where


def test_without_a_gap_the_neighbours_are_guarded() -> None:
    """A matrix as it is, and a workspace."""
    place = made(sliced=False)
    assert place.pitch == 48
    place.bits[place.start + 5 * 48] = 0
    assert place.first_outside() == (5, 0)
    vector = guarded_vector(10, torch.int32, "cpu")
    vector.tensor.zero_()
    assert vector.first_outside() is None
    vector.bits[vector.start + 10] = 0
    assert vector.first_outside() == (1, 0)


def test_first_true() -> None:
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[1, 2] = mask[2, 3] = True
    assert first_true(mask) == 6
