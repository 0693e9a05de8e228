"""GemmProblem: one matrix product to tune, C[M, N] = activation(A[M, K] @ B[K, N] + bias)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

from genkern.errors import InputError

# Numbers below it fit the signed 32-bit integers in which kernels count sizes, programs, tiles and offsets.
INT32 = 2**31
# Kernels have 32-bit size arguments and round sizes up to whole blocks (tl.cdiv adds a block first) and to SPLIT_K
# blocks of K. The difference leaves room for that.
MAX_DIMENSION = INT32 - 2**16
# Applied in float32 before the conversion to C's type. gelu is the exact form, x * (1 + erf(x / sqrt(2))) / 2, the
# default of torch.nn.functional.gelu; silu is x / (1 + exp(-x)).
ACTIVATIONS = ("none", "relu", "gelu", "silu")
# Number format of problems that name none.
DEFAULT_OP = "a16w16"
# Names and values of a number format's own fields.
Own = tuple[tuple[str, int | str], ...]
_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True, order=True)
class GemmProblem:
    """Size, layout and types of one GEMM. Equal problems share one tuning result.

    M, N, K: A is [M, K], B is [K, N], C is [M, N] and row-major
    op: number format
    dtype_a, dtype_b, dtype_c: types of A, B and C
    row_major_a: A is stored row-major
    row_major_b: B is stored row-major; if False, as its transpose [N, K], like the weight of torch.nn.Linear
    bias: a vector of length N is added
    activation: one of ACTIVATIONS, applied after the bias
    own: the format's own fields (genkern.ops.fields), sorted by name, without defaults; lists, as in JSON, are accepted

    Raises InputError if a dimension is not in 1 .. MAX_DIMENSION, for an unknown activation, and for a malformed `own`.
    """

    M: int
    N: int
    K: int
    op: str = DEFAULT_OP
    dtype_a: str = "bf16"
    dtype_b: str = "bf16"
    dtype_c: str = "bf16"
    row_major_a: bool = True
    row_major_b: bool = False
    bias: bool = False
    activation: str = "none"
    own: Own = ()

    def __post_init__(self) -> None:
        for name in ("M", "N", "K"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DIMENSION:
                raise InputError(f"{name} = {value!r} is not a whole number from 1 to {MAX_DIMENSION}")
        if self.activation not in ACTIVATIONS:
            raise InputError(f"activation = {str(self.activation)[:40]!r} is not one of {', '.join(ACTIVATIONS)}")
        if self.own != ():
            object.__setattr__(self, "own", _checked(self.own))

    # Cached, since many caches look problems up by their hash, some of them once per config.
    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each.name) for each in fields(self)))

    def __getstate__(self) -> dict[str, object]:
        # The hash of strings differs between processes.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @property
    def size(self) -> str:
        """`MxNxK`, for messages and file names."""
        return f"{self.M}x{self.N}x{self.K}"

    @property
    def layout(self) -> str:
        """T for a row-major operand, N for a column-major one, A first. With weights stored as [N, K] it is TN."""
        return ("T" if self.row_major_a else "N") + ("T" if self.row_major_b else "N")

    @property
    def name(self) -> str:
        """Unique name, safe in file names: size, op, types, layout, bias, activation, own fields."""
        types = f"{self.dtype_a}_{self.dtype_b}_{self.dtype_c}"
        epilogue = ("_bias" if self.bias else "") + (f"_{self.activation}" if self.activation != "none" else "")
        own = "".join(f"_{name}_{value}" for name, value in self.own)
        return f"{self.size}_{self.op}_{types}_{self.layout}{epilogue}{own}"

    @property
    def batch(self) -> int:
        """Number of products of this size in one call: the field `batch_size` of formats that have it, else 1."""
        count = dict(self.own).get("batch_size", 1)
        return count if isinstance(count, int) else 1

    def with_most(self, **most: int) -> GemmProblem:
        """Return the problem with these own fields limited to the given values.

        Fields at their defaults are left alone.
        """
        own = ((name, min(int(value), most[name]) if name in most else value) for name, value in self.own)
        return replace(self, own=tuple(own))

    @property
    def products(self) -> int:
        """How often a call computes 2 M N K operations.

        This is the batch size times the number of experts per row of A (`top_k`), doubled if the format computes a gate
        and the values that it multiplies.
        """
        own = dict(self.own)
        top_k = own.get("top_k", 1)
        assert isinstance(top_k, int)
        return self.batch * top_k * (2 if own.get("stage") == "gate_up" else 1)

    @property
    def flops(self) -> int:
        """Operations, counting multiply and add separately: 2 M N K for each product."""
        return 2 * self.products * self.M * self.N * self.K

    def tflops(self, time_us: float) -> float:
        """Return the achieved TFLOP/s at `time_us` microseconds."""
        return self.flops / time_us * 1e-6


def _checked(own: Sequence[Sequence[object]]) -> Own:
    """Return names and values, sorted by name.

    Raises InputError for names and values that file names and templates cannot contain.
    """
    pairs = [(name, value) for name, value in own]
    for name, value in pairs:
        plain = isinstance(value, int) if not isinstance(value, str) else _WORD.fullmatch(value)
        if not isinstance(name, str) or not _WORD.fullmatch(name) or not plain or isinstance(value, bool):
            raise InputError(f"{str(name)[:40]!r} = {str(value)[:40]!r} is not a field of a number format")
    return tuple(sorted(pairs))  # type: ignore[arg-type]
