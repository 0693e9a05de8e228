"""Gluon in NumPy, as far as generated modules use it: their kernels run on the CPU, the hardware being at its worst.

tests/gluon_machine.py is the hardware, tests/gluon_ptx.py runs the PTX that kernels hold, by which they make barriers
and drive the copy engine. Products are computed, and tiles of C read, as late as the kernel's waits allow. The
partitions of `warp_specialize` take turns at random, and the programs of a grid run one after another: in any order,
or, for kernels that wait for one another, in the order in which hardware starts them. This says neither that a kernel
compiles nor how fast it is.
"""

from __future__ import annotations

import random
import re
import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from gluon_cluster import Cluster
from gluon_machine import Machine
from gluon_memory import Descriptor
from gluon_operands import Matrix, Parameters, Pointer, Stacked
from gluon_ptx import run_ptx
from gluon_wgmma import ByGroup, Tensor
from numpy.typing import NDArray

# NumPy has no such type: values are rounded to its 8 bits, and kept as they were.
_BFLOAT16 = object()


class Values(Tensor):
    """A tensor with Gluon's operators."""

    def to(self, dtype: Any) -> Values:
        if dtype is _BFLOAT16:
            fraction, exponent = np.frexp(self.values)
            return Values(np.ldexp(np.rint(fraction * 256) / 256, exponent))
        return Values(self.values.astype(getattr(dtype, "numpy", dtype)), self.warps)

    def permute(self, order: Sequence[int]) -> Values:
        return Values(self.values.transpose(order))

    def reshape(self, shape: Sequence[int]) -> Values:
        return Values(self.values.reshape(shape))

    def __getitem__(self, key: Any) -> Values:
        return Values(self.values[key])


def _binary(name: str) -> Callable[[Values, Any], Values]:
    def operate(self: Values, other: Any) -> Values:
        held = getattr(self.values, name)(other.values if isinstance(other, Tensor) else other)
        return Values(held, self.warps or getattr(other, "warps", 0))

    return operate


for _name in ("add", "radd", "mul", "rmul", "floordiv", "mod", "lt", "sub", "and", "xor"):
    setattr(Values, f"__{_name}__", _binary(f"__{_name}__"))


def _load(pointer: Pointer, mask: Any = None, other: Any = 0.0, cache_modifier: str = "") -> Values:
    assert cache_modifier == (".cg" if pointer.others_write else ""), "a load that may find what L1 has"
    offset = np.asarray(pointer.offset)
    inside = np.ones(offset.shape, bool) if mask is None else np.broadcast_to(mask.values, offset.shape)
    return Values(np.where(inside, pointer.memory[Pointer(pointer.memory, np.where(inside, offset, 0)).place], other))


def _loaded(machine: Machine, text: str, constraints: str, args: Sequence[Any], pack: int) -> Values:
    """Numbers of shared memory by their addresses, one by one or two that lie side by side."""
    texts = {1: ("ld.shared.f32 $0, [$1];", "=f,r"), 2: ("ld.shared.v2.f32 {$0, $1}, [$2];", "=f,=f,r,r")}
    assert (text, constraints) == texts[pack]
    (addresses,) = (np.asarray(arg.values if isinstance(arg, Tensor) else arg) for arg in args)
    if pack == 2:
        first, second = addresses[..., ::2], addresses[..., 1::2]
        assert np.array_equal(second, first + 4), "numbers that are not side by side"
        assert not (first % 8).any(), "a pair that is not aligned"
    return Values(machine.floats(addresses))


def _full(shape: Sequence[int], value: Any, dtype: Any) -> NDArray[Any]:
    """Each 64 rows are a warpgroup's."""
    values = np.asarray(value.values if isinstance(value, ByGroup) else [value], dtype)
    return np.broadcast_to(values.repeat(shape[0] // len(values))[:, None], shape).copy()


def _where(condition: Any, x: Any, y: Any) -> Any:
    if not isinstance(condition, Tensor):
        return x if condition else y
    plain = (each.values if isinstance(each, Tensor) else each for each in (condition, x, y))
    return Values(np.where(*plain))


def _atomic_cas(pointer: Pointer, compare: int, value: int, sem: str) -> int:
    assert sem == "acquire"
    assert pointer.memory[pointer.place] == compare, "a wait for a program that does not come before"
    pointer.memory[pointer.place] = value
    return compare


def _static_assert(condition: bool, message: str = "") -> None:
    assert condition, message


def _jit(function: Any = None, **_: Any) -> Any:
    return (lambda kernel: kernel) if function is None else function


class Program:
    """What one program of a grid calls, on a machine of its own."""

    def __init__(self, number: int, grid: int, warps: int, machine: Machine, launch: Any) -> None:
        self.number, self.grid, self.warps, self.machine, self.launch = number, grid, warps, machine, launch
        machine.parameters = Parameters(f"{launch.kernel.__name__}_{launch.constants['BINARY']}", launch.args)

    def parameter(self, text: str) -> Any:
        """The descriptor among the kernel's parameters that a text names."""
        match = re.fullmatch(r"mov\.b64 \$0, (\w+); cvta\.param\.u64 \$0, \$0;", text)
        assert match
        parameters = self.machine.parameters
        return parameters.descriptor(parameters.anywhere(parameters.address(match[1])))

    def store(self, pointer: Pointer, value: Tensor | NDArray[Any], mask: Tensor | None = None) -> None:
        values = value.values if isinstance(value, Tensor) else value
        if mask is not None:
            inside = np.broadcast_to(mask.values, values.shape)
            pointer = Pointer(pointer.memory, pointer.offset[inside], writes=pointer.writes)
            values = values[inside]
        if pointer.writes is not None and values.size:
            assert not pointer.writes[pointer.place].any(), "an element of C is written twice"
            pointer.writes[pointer.place] = True
        if values.size:
            pointer.memory[pointer.place] = values
        self.machine.running.unordered = True

    def thread_barrier(self) -> None:
        self.machine.thread_barrier()

    def atomic_xchg(self, pointer: Pointer, value: int, sem: str) -> None:
        assert sem == "release"
        assert not self.machine.running.unordered, "said to be stored before every thread has stored its part"
        assert pointer.memory[pointer.place] == 0, "said again before anyone has heard"
        pointer.memory[pointer.place] = value

    def warp_specialize(
        self, partitions: Sequence[tuple[Any, Sequence[Any]]], warps: Sequence[int], registers: Any
    ) -> None:
        def body(function: Any, arguments: Sequence[Any]) -> Callable[[], None]:
            return lambda: function(*arguments)

        assert len(partitions) == len(warps) + 1 == len(registers) + 1
        self.machine.part([body(*partition) for partition in partitions], warps)


# As under the interpreter, which knows no launch that depends on another one.
_KNOBS = types.SimpleNamespace(runtime=types.SimpleNamespace(interpret=True))


class _Running:
    """The program that runs now, by the names of Program and Machine; kernels hold on to bound names."""

    def __init__(self) -> None:
        self.program: Any = None

    def of_program(self, name: str) -> Callable[..., Any]:
        return lambda *args, **named: getattr(self.program, name)(*args, **named)

    def of_machine(self, name: str) -> Callable[..., Any]:
        return lambda *args, **named: getattr(self.program.machine, name)(*args, **named)


@cache
def _acts(text: str) -> bool:
    """Whether it does anything besides computing."""
    return re.search(r"wgmma|barrier|bar\.|async|shared|prefetch", text) is not None


def _namespace(now: _Running) -> dict[str, Any]:
    def asm(text: str, constraints: str, args: Sequence[Any], *, dtype: Any, is_pure: bool, pack: int) -> Any:
        assert not (is_pure and _acts(text)), "what the compiler may leave out, or do twice"
        if text.startswith("ld.shared."):
            return _loaded(now.program.machine, text, constraints, args, pack)
        if "_param_" in text and is_pure:
            assert constraints == "=l"
            return now.program.parameter(text)
        return run_ptx(now.program.machine, text, constraints, args, dtype, pack)

    def zeros(shape: Sequence[int], dtype: Any, layout: Any) -> Values:
        return Values(np.zeros(shape, np.float64 if dtype is np.float32 else dtype), layout.warps)

    def distributed(version: Any, warps: Sequence[int], instruction: Any) -> Any:
        assert list(version) == [3, 0]
        assert warps == [now.program.warps, 1]
        return types.SimpleNamespace(warps=warps[0])

    def blocked(each: Any, threads: Sequence[int], warps: Sequence[int], order: Sequence[int]) -> None:
        assert (np.prod(threads), np.prod(warps), order) == (32, now.program.warps, [1, 0])

    gl = types.SimpleNamespace(
        constexpr=None,
        bfloat16=_BFLOAT16,
        float16=np.float16,
        float32=np.float32,
        int32=np.int32,
        int64=np.int64,
        minimum=min,
        maximum=max,
        cdiv=lambda a, b: -(-a // b),
        where=_where,
        program_id=lambda axis: now.program.number,
        num_programs=lambda axis: now.program.grid,
        arange=lambda start, end, layout: Values(np.arange(start, end)),
        zeros=zeros,
        join=lambda left, right: Values(np.stack((left.values, right.values), axis=-1)),
        full=lambda shape, value, dtype, layout: Values(_full(shape, value, dtype), layout.warps),
        convert_layout=lambda tensor, layout: Values(tensor.values, layout.warps),
        inline_asm_elementwise=asm,
        load=_load,
        store=now.of_program("store"),
        atomic_cas=_atomic_cas,
        atomic_xchg=now.of_program("atomic_xchg"),
        static_range=range,
        static_assert=_static_assert,
        thread_barrier=now.of_program("thread_barrier"),
        NVMMADistributedLayout=distributed,
        BlockedLayout=blocked,
        NVMMASharedLayout=lambda swizzle_byte_width, element_bitwidth, rank: swizzle_byte_width,
        SliceLayout=lambda dim, parent: None,
        allocate_shared_memory=now.of_machine("allocate"),
        warp_specialize=now.of_program("warp_specialize"),
    )
    tma = types.SimpleNamespace(
        async_store=now.of_machine("store_tile"),
        store_wait=now.of_machine("store_wait"),
    )
    return {
        "gl": gl,
        "tl": gl,
        "tma": tma,
        "gluon": types.SimpleNamespace(jit=_jit),
        "triton": types.SimpleNamespace(jit=_jit, cdiv=gl.cdiv, constexpr_function=_jit, knobs=_KNOBS),
        "fence_async_shared": now.of_machine("fence"),
    }


_TO_INTEGER = re.compile(r"(\([^()]*\)|[\w.]+(?:\(\w*\))?)\.to\(gl\.int(?:32|64)\)")


@cache
def _code(text: str) -> types.CodeType:
    """A part of a module without imports of Triton, and with Python's own numbers, which do not overflow."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(("import triton", "from triton")):
            lines[number] = ""
        elif ".to(gl.int" in line:
            lines[number] = _TO_INTEGER.sub(r"int(\1)", line)
    return compile("\n".join(lines), "generated", "exec")


def _module(text: str, now: _Running) -> dict[str, Any]:
    module = _namespace(now) | {"__name__": "generated"}
    # Two empty lines are between any two functions, most of which other modules have too.
    for part in text.split("\n\n\n"):
        exec(_code(part), module)
    module["_gluon_descriptor"] = lambda x, box: Descriptor(x.values, box, x.writes, x.read_once)
    module["_copy_of"] = _copy_of
    return module


def _copy_of(x: Matrix, workspace: Pointer, first: int, pitch: int) -> Matrix:
    """As the kernel that copies, which is no Gluon's, leaves it, with anything between its rows."""
    rows, columns = x.shape
    assert (first * x.values.itemsize % 128, pitch * x.values.itemsize % 128) == (0, 0)
    assert (first + rows * pitch) * x.values.itemsize <= len(workspace.memory) * np.dtype(np.float32).itemsize
    copy = np.full((rows, pitch), np.nan, x.values.dtype)
    copy[:, :columns] = x.values
    return Matrix(copy[:, :columns], read_once=x.read_once)


def functions_of(text: str) -> dict[str, Any]:
    """What a generated module defines."""
    return _module(text, _Running())


def _run_program(now: _Running, launch: Any, number: int, seed: int) -> None:
    machine = Machine(seed, launch.constants["num_warps"])
    now.program = Program(number, launch.grid[0], launch.constants["num_warps"], machine, launch)
    launch.kernel(*launch.args, **launch.constants)
    machine.check_kept()


def _run_cluster(now: _Running, launch: Any, number: int, size: int, seed: int) -> None:
    programs: dict[Machine, Program] = {}

    def enter(machine: Machine) -> None:
        now.program = programs[machine]

    cluster = Cluster(seed, enter)
    for rank in range(size):
        machine = Machine(seed, launch.constants["num_warps"], cluster)
        place, programs_of_grid = number * size + rank, launch.grid[0] * size
        programs[machine] = Program(place, programs_of_grid, launch.constants["num_warps"], machine, launch)
        enter(machine)
        launch.kernel(*launch.args, **launch.constants)
    cluster.run()
    for machine in cluster.machines:
        machine.check_kept()


def run_module(
    text: str, config: str, operands: dict[str, NDArray[Any]], units: int, seed: int, ahead: int = 0
) -> dict[str, NDArray[Any]]:
    """Run one call of a config of a generated module; returns C, and the workspace and its counters if there are any.

    `operands` are a [M, K], b [K, N], c [M, N] and, with a bias, bias [N]; c is written. Of groups b is [groups, K, N],
    and what else has three dimensions a matrix for each of them; where C's rows are sums of rows of the workspace, they
    are not made. Copies of operands are. `units` is the number of SMs; so many numbers lie `ahead` of each vector.
    """
    now = _Running()
    module = _module(text, now)
    chosen = module["CONFIGS"][config]
    given: dict[str, Any] = {"a": Matrix(operands["a"]), "b": Matrix(operands["b"], read_once=True)}
    given["c"] = Matrix(operands["c"], np.zeros(operands["c"].shape, bool))
    given |= {
        name: Stacked(values)
        if values.ndim == 3
        else Pointer(np.concatenate([np.resize(values, ahead), values]), ahead)
        for name, values in operands.items()
        if name not in "abc"
    }
    made: dict[str, NDArray[Any]] = {}
    elements, counters = module["workspace_elements"](chosen, units) if "workspace_elements" in module else (0, 0)
    if counters:
        made = {"workspace": np.full(elements, np.nan), "counters": np.zeros(counters, np.int64)}
        given |= {name: Pointer(values, others_write=True) for name, values in made.items()}
    elif elements:
        made = {"workspace": np.full(elements, np.nan)}
        given["workspace"] = Pointer(made["workspace"], writes=np.zeros(elements, bool))
    for launch in module["launches"](chosen, given, units):
        if launch.kernel is module.get("sum_slots") or launch.kernel.__name__.startswith("realign_"):
            continue
        programs = list(range(launch.grid[0]))
        if "atomic_cas" not in text:
            random.Random(seed).shuffle(programs)
        for number in programs:
            if (size := getattr(launch, "cluster", 1)) > 1:
                _run_cluster(now, launch, number, size, seed + number)
            else:
                _run_program(now, launch, number, seed + number)
    return {"c": operands["c"], **made}
