"""What skinny_dot uses of Gluon, in torch: its kernels run on the CPU, a program at a time, layouts being no matter.

A tensor is what it is in all threads together, so this says nothing of barriers nor of who holds what. Shared memory
begins as NaN or as numbers that nobody asked for; a load off what its operand has is an error.
"""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

_WORD = 0xFFFFFFFF


class Tensor:
    """A tensor with Gluon's operators."""

    type = types.SimpleNamespace(layout=None)

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.dtype, self.shape = values.dtype, tuple(values.shape)

    def to(self, dtype: Any, bitcast: bool = False) -> Tensor:
        return Tensor(self.values.view(dtype) if bitcast else self.values.to(dtype))

    def reshape(self, shape: Sequence[int]) -> Tensor:
        return Tensor(self.values.reshape(tuple(shape)))

    def permute(self, order: Sequence[int]) -> Tensor:
        return Tensor(self.values.permute(tuple(order)))

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        return Tensor(self.values.expand(tuple(shape)))

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.values[key])


def _values(of: Any) -> Any:
    return of.values if isinstance(of, Tensor) else of


def _operate(made: Callable[[Any, Any], Any], turned: bool = False) -> Callable[[Tensor, Any], Any]:
    def operate(self: Tensor, other: Any) -> Any:
        if isinstance(other, Pointer):
            return NotImplemented
        both = (self.values, _values(other))
        return Tensor(made(*(both[::-1] if turned else both)))

    return operate


for _name in ("add", "mul", "floordiv", "mod", "lt", "sub", "and", "eq", "rshift", "lshift"):
    _made = getattr(operator, f"{_name}_" if _name == "and" else _name)
    setattr(Tensor, f"__{_name}__", _operate(_made))
    if _name in ("add", "mul", "sub"):
        setattr(Tensor, f"__r{_name}__", _operate(_made, turned=True))


class Pointer:
    """Elements of one operand, of which `offset` says which."""

    def __init__(self, memory: torch.Tensor, offset: Any = 0) -> None:
        self.memory, self.offset = memory, offset
        self.dtype = types.SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.offset + _values(offset))

    def to(self, dtype: Any) -> Pointer:
        assert isinstance(self.offset, int)
        assert self.offset == 0
        return Pointer(self.memory.view(dtype))

    def places(self, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Which elements, and of which of them there is something to do; 0 elsewhere."""
        at = torch.as_tensor(self.offset)
        if mask is None:
            mask = torch.tensor(True)
        at, here = torch.broadcast_tensors(at, torch.as_tensor(_values(mask)))
        at = torch.where(here, at, 0)
        assert int(at.min()) >= 0
        assert int(at.max()) < len(self.memory), "off the operand"
        return at, here


class Shared:
    """A piece of shared memory."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.dtype, self.shape = values, values.dtype, tuple(values.shape)

    def index(self, place: int) -> Shared:
        assert 0 <= place < self.shape[0], "off the buffers"
        return Shared(self.values[place])

    def load(self, layout: Any) -> Tensor:
        return Tensor(self.values.clone())

    def store(self, tensor: Tensor) -> None:
        assert tensor.shape == self.shape
        self.values.copy_(tensor.values)


def _lop3(a: Any, b: Any, c: Any, table: int) -> Any:
    made = torch.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            terms = [value if row >> bit & 1 else ~value for value, bit in ((a, 2), (b, 1), (c, 0))]
            made = made | (terms[0] & terms[1] & terms[2])
    return made & _WORD


def _floats(bits: Any) -> Any:
    return bits.to(torch.int32).view(torch.float32)


def _halves(bits: Any) -> tuple[Any, Any]:
    return tuple(_floats((bits >> shift & 0xFFFF) << 16) for shift in (0, 16))


def _bits(values: Any, dtype: torch.dtype) -> Any:
    """Of one rounding to a type of 16 bits."""
    return values.to(dtype).view(torch.int16).to(torch.int64) & 0xFFFF


def _of_pairs(made: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def operate(a: Any, b: Any) -> Any:
        low, high = (_bits(made(*pair), torch.bfloat16) for pair in zip(_halves(a), _halves(b), strict=True))
        return low | high << 16

    return operate


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "mov.b32": lambda a: a,
    "shl.b32": lambda a, b: a << b & _WORD,
    "shr.u32": lambda a, b: a >> b,
    "and.b32": operator.and_,
    "xor.b32": operator.xor,
    "lop3.b32": lambda a, b, c, table: _lop3(a, b, c, int(table)),
    "sub.rn.bf16x2": _of_pairs(operator.sub),
    "mul.rn.bf16x2": _of_pairs(operator.mul),
    "mul.rn.f32": lambda a, b: (_floats(a) * _floats(b)).view(torch.int32).to(torch.int64) & _WORD,
    "cvt.rn.bf16x2.f32": lambda a, b: _bits(_floats(a), torch.bfloat16) << 16 | _bits(_floats(b), torch.bfloat16),
    "cvt.rn.f16x2.f32": lambda a, b: _bits(_floats(a), torch.float16) << 16 | _bits(_floats(b), torch.float16),
}


def run_ptx(text: str, constraints: str, given: Sequence[Tensor], dtype: Any, **_: Any) -> Any:
    """Instructions without memory or branches, for each element of the tensors that are given."""
    outputs = constraints.count("=")
    shape = given[0].shape
    named = {f"${outputs + n}": tensor.values.expand(shape).to(torch.int64) & _WORD for n, tensor in enumerate(given)}
    for line in text.strip().removeprefix("{").removesuffix("}").split(";"):
        name, _, rest = line.strip().partition(" ")
        if name in ("", ".reg", "bar.warp.sync"):
            continue
        into, *operands = re.findall(r"\{[^}]*\}|[^,\s]+", rest)
        numbers = [
            named[each] if each in named else torch.full(shape, int(each, 0), dtype=torch.int64) for each in operands
        ]
        if name == "lop3.b32":
            numbers[3] = int(operands[3], 0)
        made = _ARITHMETIC[name](*numbers)
        if into.startswith("{"):
            low, high = (each.strip() for each in into[1:-1].split(","))
            named[low], named[high] = made & 0xFFFF, made >> 16
        else:
            named[into] = made
    types_of = dtype if isinstance(dtype, tuple) else (dtype,)
    integers = {2: torch.int16, 4: torch.int32}
    results = [Tensor(named[f"${n}"].to(integers[kind.itemsize]).view(kind)) for n, kind in enumerate(types_of)]
    return tuple(results) if isinstance(dtype, tuple) else results[0]


class Program:
    """One program of a grid, and the functions of `gl` that it calls."""

    def __init__(self, place: tuple[int, int, int], grid: tuple[int, int, int]) -> None:
        self.place, self.grid = place, grid

    def language(self) -> types.SimpleNamespace:
        """The module `gl`."""
        anything = lambda *_, **__: None  # noqa: E731
        names = ("BlockedLayout", "DistributedLinearLayout", "DotOperandLayout", "NVMMADistributedLayout")
        kinds = ("float32", "float16", "bfloat16", "int32", "uint32", "uint16", "int64")
        return types.SimpleNamespace(
            **dict.fromkeys((*names, "SliceLayout", "SwizzledSharedLayout"), anything),
            **{kind: getattr(torch, kind) for kind in kinds},
            constexpr=int,
            static_range=range,
            arange=lambda first, end, layout: Tensor(torch.arange(first, end)),
            full=lambda shape, value, dtype, layout: Tensor(torch.full(shape, value, dtype=dtype)),
            zeros=lambda shape, dtype, layout: Tensor(torch.zeros(shape, dtype=dtype)),
            cdiv=lambda a, b: -(-a // b),
            minimum=lambda a, b: Tensor(_values(a).clamp(max=b)) if isinstance(a, Tensor) else min(a, b),
            maximum=lambda a, b: Tensor(_values(a).clamp(min=b)),
            join=lambda a, b: Tensor(torch.stack((a.values, b.values), -1)),
            sum=lambda a, axis: Tensor(a.values.sum(axis)),
            convert_layout=lambda a, layout: a,
            max_constancy=lambda a, constancy: a,
            pointer_type=lambda dtype: dtype,
            program_id=lambda dimension: self.place[dimension],
            num_programs=lambda dimension: self.grid[dimension],
            inline_asm_elementwise=run_ptx,
            allocate_shared_memory=lambda dtype, shape, layout: Shared(
                torch.full(shape, torch.nan if dtype.is_floating_point else 77, dtype=dtype)
            ),
            load=_load,
            store=_store,
            atomic_add=_atomic_add,
        )


def _load(pointer: Pointer, mask: Any = None, other: Any = 0, **_: Any) -> Tensor:
    at, here = pointer.places(mask)
    found = pointer.memory[at]
    return Tensor(torch.where(here, found, torch.tensor(other, dtype=found.dtype)))


def _store(pointer: Pointer, tensor: Any, mask: Any = None) -> None:
    at, here = pointer.places(mask)
    values = torch.as_tensor(_values(tensor)).to(pointer.memory.dtype).expand(at.shape)
    pointer.memory[at[here]] = values[here]


def _atomic_add(pointer: Pointer, value: int, sem: str) -> int:
    found = int(pointer.memory[pointer.offset])
    pointer.memory[pointer.offset] = found + value
    return found


def mma_v2(a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    """[warps, rows, K] by [warps, K, columns]."""
    return Tensor(acc.values + a.values.float() @ b.values.float())
