"""GemmProblem: one matrix product to tune, C[M, N] = activation(A[M, K] @ B[K, N] + bias)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

from genkern.errors import InputError

# Numbers below it fit the 32-bit integers, signed, in which kernels count sizes, programs, tiles and offsets.
INT32 = 2**31
# The kernels' size arguments have 32 bits, and they round sizes up: to whole blocks (tl.cdiv adds a block first), and
# to SPLIT_K times as many blocks of K. So much is left for that.
MAX_DIMENSION = INT32 - 2**16
# Applied in float32 before the cast to C's type. gelu is the exact form, x * (1 + erf(x / sqrt(2))) / 2, as
# torch.nn.functional.gelu computes by default; silu is x / (1 + exp(-x)).
ACTIVATIONS = ("none", "relu", "gelu", "silu")
# The format where nothing says which.
DEFAULT_OP = "a16w16"
# Names and values of a format's own fields.
Own = tuple[tuple[str, int | str], ...]
_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True, order=True)
class GemmProblem:
    """Size, layout and types of one GEMM; equal problems share one tuning result.

    A is [M, K], B is [K, N], C is [M, N] and row-major. `row_major_b=False` means that B is stored
    as its transpose [N, K], as the weight of torch.nn.Linear is. `bias` adds a vector of length N;
    `activation`, one of ACTIVATIONS, comes after it. `own` has the fields that its format asks for besides
    (genkern.ops.fields), by name, without those at their defaults; a list of lists, as JSON has it, is taken too.
    Raises InputError when a dimension is not in 1 .. MAX_DIMENSION, for an unknown activation, or where `own` is no
    such thing.
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

    # Asked a hundred thousand times while a space is pruned, by whatever is remembered of a problem.
    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each.name) for each in fields(self)))

    def __getstate__(self) -> dict[str, object]:
        # Texts have other hashes in another process.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @property
    def size(self) -> str:
        """`MxNxK`, for people and file names."""
        return f"{self.M}x{self.N}x{self.K}"

    @property
    def layout(self) -> str:
        """T for a row-major operand and N for a column-major one, A first; weights stored as [N, K] are TN."""
        return ("T" if self.row_major_a else "N") + ("T" if self.row_major_b else "N")

    @property
    def name(self) -> str:
        """File-name-safe and unique: size, op, types, layout (T row-major, N column-major), bias, activation, own."""
        types = f"{self.dtype_a}_{self.dtype_b}_{self.dtype_c}"
        epilogue = ("_bias" if self.bias else "") + (f"_{self.activation}" if self.activation != "none" else "")
        own = "".join(f"_{name}_{value}" for name, value in self.own)
        return f"{self.size}_{self.op}_{types}_{self.layout}{epilogue}{own}"

    @property
    def batch(self) -> int:
        """Products of this size in one call: what the field of that name says, of formats that have it."""
        count = dict(self.own).get("batch_size", 1)
        return count if isinstance(count, int) else 1

    def with_most(self, **most: int) -> GemmProblem:
        """The problem with no more in these of its own fields; what it does not say stays unsaid."""
        own = ((name, min(int(value), most[name]) if name in most else value) for name, value in self.own)
        return replace(self, own=tuple(own))

    @property
    def products(self) -> int:
        """How often 2 M N K operations are done in a call: for products of a batch, for the experts that a row of A
        goes to (`top_k`), and twice where columns of C are made of a gate and of what it lets through.
        """
        own = dict(self.own)
        top_k = own.get("top_k", 1)
        assert isinstance(top_k, int)
        return self.batch * top_k * (2 if own.get("stage") == "gate_up" else 1)

    @property
    def flops(self) -> int:
        """Multiply and add counted apart: 2 M N K, of each product."""
        return 2 * self.products * self.M * self.N * self.K

    def tflops(self, time_us: float) -> float:
        """Achieved TFLOP/s at `time_us` microseconds."""
        return self.flops / time_us * 1e-6


def _checked(own: Sequence[Sequence[object]]) -> Own:
    """Names and values that file names and templates can take, in the order of the names."""
    pairs = [(name, value) for name, value in own]
    for name, value in pairs:
        plain = isinstance(value, int) if not isinstance(value, str) else _WORD.fullmatch(value)
        if not isinstance(name, str) or not _WORD.fullmatch(name) or not plain or isinstance(value, bool):
            raise InputError(f"{str(name)[:40]!r} = {str(value)[:40]!r} is no field of a format")
    return tuple(sorted(pairs))  # type: ignore[arg-type]
