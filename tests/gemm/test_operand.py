"""Operands say what a tensor occupies, however it is stored."""

from __future__ import annotations

import pytest

from genkern.gemm.operand import Operand, contiguous_strides


@pytest.mark.parametrize(("row_major", "stored"), [(True, (3, 8)), (False, (8, 3))])
def test_a_column_major_matrix_is_stored_as_its_transpose(row_major: bool, stored: tuple[int, int]) -> None:
    """The logical shape does not depend on the layout; the order of storage does."""
    operand = Operand("a", "activation", (3, 8), "bf16", row_major)
    assert operand.stored_shape == stored
    assert operand.size_bytes == 48


def test_packed_elements_share_storage_along_the_contiguous_dimension() -> None:
    """Two 4-bit elements a byte: an odd row is rounded up to whole bytes, for each row."""
    assert Operand("b", "weight", (5, 3), "int8", row_major=False, packed=2).size_bytes == 3 * 3
    assert Operand("b", "weight", (5, 3), "int8", packed=2).size_bytes == 5 * 2


def test_a_tensor_of_packed_elements_is_shorter_along_the_contiguous_dimension() -> None:
    """As it is handed in: [K / 2, N] of a weight whose K is contiguous; what is not packed has its logical shape."""
    packed = Operand("b", "weight", (5, 3), "int8", row_major=False, packed=2)
    assert (packed.storage_shape, packed.tensor_shape) == ((3, 3), (3, 3))
    assert Operand("b", "weight", (5, 3), "int8", packed=2).tensor_shape == (5, 2)
    assert Operand("b", "weight", (5, 3), "int8", row_major=False).tensor_shape == (5, 3)
    assert [Operand("x", role, (5,), "int32").is_plain for role in ("bias", "index")] == [True, False]  # type: ignore[arg-type]
    assert not packed.is_plain


def test_strides_without_gaps() -> None:
    """Those that PyTorch gives a new tensor of this shape, of any number of dimensions."""
    torch = pytest.importorskip("torch")
    for shape in ((), (5,), (5, 3), (2, 5, 3), (4, 1, 3, 2)):
        assert contiguous_strides(shape) == torch.empty(shape).stride()
