"""What products and the copy engine do with memory, in numbers: descriptors, swizzles, data paths (PTX ISA 9.0)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ptx_warp import from_bf16


def _float8(exponent_bits: int, bias: int) -> Any:
    """All 256 numbers of a format; what is no number is left at NaN."""
    mantissa_bits = 7 - exponent_bits
    codes = np.arange(256)
    sign = np.where(codes >> 7, -1.0, 1.0)
    exponent, mantissa = codes >> mantissa_bits & (1 << exponent_bits) - 1, codes & (1 << mantissa_bits) - 1
    part = mantissa / (1 << mantissa_bits)
    return (sign * np.where(exponent, (1 + part) * 2.0 ** (exponent - bias), part * 2.0 ** (1 - bias))).astype(
        np.float32
    )


E4M3, E5M2 = _float8(4, 7), _float8(5, 15)


def numbers(raw: Any, dtype: str) -> Any:
    """float32 of bytes, the last side of which is `dtype`'s elements."""
    if dtype in ("fp8e4m3fn", "fp8e5m2"):
        return (E4M3 if dtype == "fp8e4m3fn" else E5M2)[raw]
    halves = np.ascontiguousarray(raw).view(np.uint16)
    if dtype == "bf16":
        return from_bf16(halves)
    return halves.view(np.float16).astype(np.float32) if dtype == "fp16" else np.ascontiguousarray(raw).view(np.float32)


@dataclass
class TensorMap:
    """A matrix of bytes [rows, bytes], and boxes of it: rows, bytes of each, and the swizzle (0, or 2: 64, 3: 128)."""

    raw: Any
    box_rows: int
    box_bytes: int
    element_bytes: int
    swizzle: int

    def places(self, start: int) -> Any:
        """Where a box's bytes lie in shared memory, from `start` on: [rows, bytes]."""
        return _box_places(self.box_rows, self.box_bytes, self.swizzle, start)

    def window(self, column: int, row: int) -> tuple[Any, Any]:
        """Of the box whose first element is that what the matrix has: rows and bytes of it, and of the box."""
        first, sides = (row, column * self.element_bytes), (self.box_rows, self.box_bytes)
        kept = [
            (max(0, at), max(0, at, min(at + side, whole)))
            for at, side, whole in zip(first, sides, self.raw.shape, strict=True)
        ]
        of_matrix = tuple(slice(low, high) for low, high in kept)
        return of_matrix, tuple(slice(low - at, high - at) for at, (low, high) in zip(first, kept, strict=True))


@lru_cache(maxsize=256)
def _box_places(rows: int, row_bytes: int, swizzle: int, start: int) -> Any:
    return swizzled(start + np.arange(rows * row_bytes).reshape(rows, row_bytes), swizzle)


def swizzled(places: Any, kind: int) -> Any:
    """Addresses whose bits from the fourth on are XORed with those from the seventh on: `kind` bits."""
    return places ^ ((places >> 7 & (1 << kind) - 1) << 4)


class Operand(NamedTuple):
    """A matrix descriptor of shared memory: bytes."""

    start: int
    leading: int
    stride: int
    kind: int

    @staticmethod
    def of(bits: int, version: int) -> Operand:
        """Of the 64 bits; only the 128-byte swizzle is known here. sm_90 reads version 0, sm_100 version 1."""
        assert bits >> 61 == 2, "no 128-byte swizzle"
        assert bits >> 46 & 3 == version, "another architecture's descriptor"
        assert bits >> 49 & 7 == 0, "a base offset"
        return Operand((bits & 0x3FFF) << 4, (bits >> 16 & 0x3FFF) << 4, (bits >> 32 & 0x3FFF) << 4, 3)

    def read(
        self, shared: Any, rows: int, of_k: int, element_bytes: int, k_major: bool, dtype: str, first: int = 0
    ) -> Any:
        """float32 [rows, of_k] that the instruction reads of a CTA's shared memory, from row `first` on."""
        raw = shared[_places(self, rows, of_k, element_bytes, k_major, first)]
        return numbers(raw, dtype)


@lru_cache(maxsize=1024)
def _places(of: Operand, rows: int, of_k: int, element_bytes: int, k_major: bool, first: int) -> Any:
    """Of the bytes of an operand, [rows, bytes]."""
    row, byte = first + np.arange(rows)[:, None, None], np.arange(element_bytes)[None, None, :]
    k = np.arange(of_k)[None, :, None]
    if k_major:
        # Groups of 8 rows, 128 bytes each.
        places = row // 8 * of.stride + row % 8 * 128 + k * element_bytes + byte
    else:
        # Pieces of 128 bytes along rows, groups of 8 along K.
        along = row * element_bytes + byte
        places = along // 128 * of.leading + along % 128 + k // 8 * of.stride + k % 8 * 128
    return swizzled(of.start + places, of.kind).reshape(rows, of_k * element_bytes)


class Product(NamedTuple):
    """An instruction descriptor, of kind::f16 or kind::f8f6f4."""

    dtype_a: str
    dtype_b: str
    k_major_a: bool
    k_major_b: bool
    m: int
    n: int
    of_k: int

    @staticmethod
    def of(bits: int, kind: str) -> Product:
        """Of the 32 bits."""
        assert bits >> 4 & 3 == 1, "sums are float32"
        assert not bits >> 13 & 3, "negated"
        types = {"f16": ("fp16", "bf16"), "f8f6f4": ("fp8e4m3fn", "fp8e5m2")}[kind]
        a, b = types[bits >> 7 & 7], types[bits >> 10 & 7]
        majors = not bits >> 15 & 1, not bits >> 16 & 1
        return Product(a, b, *majors, (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3, 16 if kind == "f16" else 32)


@dataclass
class TensorMemory:
    """128 lanes of 512 columns; NaN where nothing was written. `taken`: columns that are given out."""

    cells: Any = field(default_factory=lambda: np.full((128, 512), np.nan, np.float32))
    taken: int = 0

    def lanes_of(self, product: Product, ctas: int, address: int) -> tuple[Any, Any]:
        """Lane and column of each sum of this CTA's rows, [rows, n] both (data path layouts A, B, D and F)."""
        rows, lane, column = product.m // ctas, address >> 16, address & 0xFFFF
        row, n = np.arange(rows)[:, None], np.arange(product.n)[None, :]
        if rows == 128:
            assert lane == 0
            return row + 0 * n, column + n + 0 * row
        if ctas == 1:
            assert lane in (0, 16)
            return lane + row // 16 * 32 + row % 16 + 0 * n, column + n + 0 * row
        half = product.n // 2
        assert lane == 0
        return row + n // half * 64, column + n % half + 0 * row

    def add(self, lanes: Any, columns: Any, sums: Any, keep: bool) -> None:
        """To what is there, or instead of it."""
        assert int(columns.max()) < self.taken, "beyond what was allocated"
        before = self.cells[lanes, columns] if keep else 0.0
        self.cells[lanes, columns] = sums + before
