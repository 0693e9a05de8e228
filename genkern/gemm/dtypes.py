"""Element types: one row per type with all its properties. To add a type, add a row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from genkern.errors import InputError
from genkern.gemm.gpu import FP8_ENCODINGS, PEAKS

KINDS = ("float", "integer")


@dataclass(frozen=True, kw_only=True)
class DType:
    """One element type.

    Values:
    bits: bits of storage
    kind: "float" or "integer"
    exact: largest integer such that all integers up to it are representable
    largest: largest finite value
    encoding: "ocp" or "fnuz" for 8-bit floats, else ""
    peak: the GPU's peak (a key of PEAKS) with which its products are compared

    Names:
    name: genkern's name
    triton: in a Triton signature (`*bf16`)
    language: in triton.language and Gluon
    torch: in torch
    aten: in PyTorch's C++ API
    cutlass: in CuTe DSL ("" if it has none)
    aliases: further names that users write
    targets_own: words that mean this type on targets with its encoding (tune_gemm's fp8 and bf8)
    codes: PyTorch types whose bytes it may hold, interpreted by a number format (Op.encodes)

    Codes:
    tensor_map: CUtensorMapDataType (cuda.h); 0 for 8-bit types, which are moved as bytes
    cuda: cudaDataType (library_types.h); None if cuBLASLt has no such type
    hip: hipDataType if it differs from cudaDataType
    outputs: types that C may have if A has this type, from the table of supported types of cublasLtMatmul()
    ptx: wgmma's name of it ("" if wgmma does not multiply it)
    ptx_flags: wgmma's operands after the predicate (PTX ISA, "wgmma.mma_async"): no negation (floating-point types) and
        no transposition (16-bit types)

    Checks:
    guard: bit pattern around tensors during checks, a NaN or an extreme number
    interpreted_as: type that replaces it under Triton's interpreter if that cannot compute in it
    """

    name: str
    bits: int
    kind: str
    exact: int
    largest: float
    triton: str
    language: str
    torch: str
    peak: str
    guard: int
    aten: str = ""
    cutlass: str = ""
    aliases: tuple[str, ...] = ()
    targets_own: tuple[str, ...] = ()
    encoding: str = ""
    codes: tuple[str, ...] = ()
    tensor_map: int = 0
    cuda: int | None = None
    hip: int | None = None
    outputs: tuple[str, ...] = ()
    ptx: str = ""
    ptx_flags: str = ""
    interpreted_as: str = ""

    def __post_init__(self) -> None:
        """Assert that a new row is consistent."""
        assert self.bits in (8, 16, 32), f"{self.name}: elements of {self.bits} bits"
        assert self.kind in KINDS, f"{self.name}: kind {self.kind}"
        assert self.peak in PEAKS, f"{self.name}: no GPU has a peak {self.peak}"
        assert 0 < self.exact <= self.largest, f"{self.name}: integers beyond its largest number"
        assert 0 < self.guard < 1 << self.bits, f"{self.name}: guard of more bits than an element"
        assert self.is_float8 == (self.encoding in FP8_ENCODINGS), f"{self.name}: encoding {self.encoding!r}"
        assert self.is_float8 or not self.targets_own, f"{self.name}: the target's own is for 8-bit floats"
        assert self.bits == 8 or self.tensor_map, f"{self.name}: no code for tensor maps"
        assert not self.outputs or (self.cuda, self.hip) != (None, None), f"{self.name}: outputs without a library type"
        assert self.ptx or not self.ptx_flags, f"{self.name}: flags without a name in PTX"
        assert all((self.triton, self.language, self.torch)), f"{self.name}: a name is missing"

    @cached_property
    def words(self) -> frozenset[str]:
        """Names that users may write, in lower case without `torch.`; PyTorch's float8_ is written fp8."""
        return frozenset((self.name, self.triton, self.torch.replace("float8_", "fp8"), *self.aliases))

    @property
    def size_bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float8(self) -> bool:
        return self.kind == "float" and self.bits == 8

    @property
    def is_integer(self) -> bool:
        return self.kind == "integer"

    @property
    def ptx_may_turn(self) -> bool:
        """True if wgmma accepts a matrix of this type that is contiguous along M or N."""
        return bool(self.ptx) and self.bits == 16


DTYPES: dict[str, DType] = {}
# genkern's names by PyTorch's names (`torch.bfloat16`). CODES has PyTorch types that only carry bytes (uint8,
# float4_e2m1fn_x2), whose meaning the number format defines.
BY_TORCH: dict[str, str] = {}
CODES: dict[str, str] = {}


def add_dtype(row: DType) -> None:
    """Register a type. All its names must be new."""
    tensors = {f"torch.{name}" for name in (row.torch, *row.codes)}
    assert not tensors & {*BY_TORCH, *CODES}, f"{row.name}: {tensors & {*BY_TORCH, *CODES}} is another type's"
    for other in DTYPES.values():
        assert not row.words & other.words, f"{row.name}: {row.words & other.words} is {other.name}'s"
        own = {*row.targets_own} & {*other.targets_own}
        assert not own or row.encoding != other.encoding, f"{row.name}: {own} is {other.name}'s"
    assert not row.interpreted_as or DTYPES[row.interpreted_as].kind == row.kind, f"{row.name}: {row.interpreted_as}"
    DTYPES[row.name] = row
    BY_TORCH[f"torch.{row.torch}"] = row.name
    CODES.update({f"torch.{name}": row.name for name in row.codes})


_FLOATS = ("bf16", "fp16", "fp32")
for _row in (
    DType(
        name="fp32", bits=32, kind="float", exact=2**24, largest=2.0**128 - 2.0**104, peak="fp32", guard=0xFFA5A5A5,
        triton="fp32", language="float32", torch="float32", aten="float", cutlass="Float32", aliases=("float", "f32"),
        tensor_map=7, cuda=0, outputs=("fp32",),
    ),
    DType(
        name="fp16", bits=16, kind="float", exact=2**11, largest=65504.0, peak="fp16", guard=0xFFA5,
        triton="fp16", language="float16", torch="float16", aten="Half", cutlass="Float16", aliases=("half", "f16"),
        tensor_map=6, cuda=2, outputs=("fp16", "fp32"), ptx="f16", ptx_flags=", 1, 1, 0, 0",
    ),
    # Triton's interpreter multiplies bf16 as if it were an integer type.
    DType(
        name="bf16", bits=16, kind="float", exact=2**8, largest=2.0**128 - 2.0**120, peak="bf16", guard=0xFFA5,
        triton="bf16", language="bfloat16", torch="bfloat16", aten="BFloat16", cutlass="BFloat16",
        tensor_map=9, cuda=14, outputs=("bf16", "fp32"), ptx="bf16", ptx_flags=", 1, 1, 0, 0", interpreted_as="fp16",
    ),
    DType(
        name="int8", bits=8, kind="integer", exact=127, largest=127.0, peak="int8", guard=0x7D,
        triton="i8", language="int8", torch="int8", codes=("uint8", "float8_e8m0fnu", "float4_e2m1fn_x2"),
        cuda=3, outputs=("int32",), ptx="s8",
    ),
    # Two guards of int32 add up to no small number. float32's guard pattern would not be an extreme int32.
    DType(
        name="int32", bits=32, kind="integer", exact=2**31 - 1, largest=2.0**31 - 1, peak="int8", guard=0x35A5A5A5,
        triton="i32", language="int32", torch="int32", tensor_map=3, cuda=10,
    ),
    DType(
        name="fp8e4m3fn", bits=8, kind="float", exact=2**4, largest=448.0, encoding="ocp", peak="fp8", guard=0x7F,
        triton="fp8e4nv", language="float8e4nv", torch="float8_e4m3fn", aten="Float8_e4m3fn", cutlass="Float8E4M3FN",
        aliases=("e4m3fn",), targets_own=("fp8", "fp8e4m3"), cuda=28, outputs=_FLOATS, ptx="e4m3", ptx_flags=", 1, 1",
    ),
    DType(
        name="fp8e5m2", bits=8, kind="float", exact=2**3, largest=57344.0, encoding="ocp", peak="fp8", guard=0x7F,
        triton="fp8e5", language="float8e5", torch="float8_e5m2", aten="Float8_e5m2", cutlass="Float8E5M2",
        aliases=("e5m2",), targets_own=("bf8",), cuda=29, outputs=_FLOATS, ptx="e5m2", ptx_flags=", 1, 1",
    ),
    # Triton 3.7's interpreter does not know these types. Their only NaN is the guard.
    DType(
        name="fp8e4m3fnuz", bits=8, kind="float", exact=2**4, largest=240.0, encoding="fnuz", peak="fp8", guard=0x80,
        triton="fp8e4b8", language="float8e4b8", torch="float8_e4m3fnuz", aten="Float8_e4m3fnuz",
        aliases=("e4m3fnuz",), targets_own=("fp8", "fp8e4m3"), hip=1000, outputs=_FLOATS, interpreted_as="fp8e4m3fn",
    ),
    DType(
        name="fp8e5m2fnuz", bits=8, kind="float", exact=2**3, largest=57344.0, encoding="fnuz", peak="fp8", guard=0x80,
        triton="fp8e5b16", language="float8e5b16", torch="float8_e5m2fnuz", aten="Float8_e5m2fnuz",
        aliases=("e5m2fnuz",), targets_own=("bf8",), hip=1001, outputs=_FLOATS, interpreted_as="fp8e5m2",
    ),
):  # fmt: skip
    add_dtype(_row)


def parse_dtype(text: str, arch: str) -> DType:
    """Return the element type that `text` names on `arch`.

    Accepts genkern's names, PyTorch's (`torch.bfloat16`, `float8_e4m3fn`), Triton's, and tune_gemm's `fp8` and `bf8`,
    which depend on the target. Raises InputError for anything else.
    """
    name = str(text).strip().lower().removeprefix("torch.").replace("float8_", "fp8").replace("fp8_", "fp8")
    for row in DTYPES.values():
        if name in row.words:
            return row
    # Programs that call kernels import this module and do not need the GPU table.
    from genkern.gemm.gpus import capabilities_of

    for row in DTYPES.values():
        if name in row.targets_own and row.encoding == capabilities_of(arch).fp8:
            return row
    raise InputError(f"unknown dtype {text!r}: use one of {', '.join(DTYPES)} (or fp8, bf8: the target's own)")


def dtype_of(tensor_type: object) -> DType:
    """Return the row of a PyTorch type. Raises KeyError for a type that no kernel takes."""
    return DTYPES[BY_TORCH[str(tensor_type)]]
