"""Gluon in NumPy, as far as generated modules use it: their kernels run on the CPU, the hardware being at its worst.

Products are computed as late as `warpgroup_mma_wait` allows, and tiles of C are read as late as `store_wait` allows, so
a buffer that is given away too early has the wrong content by then. The partitions of `warp_specialize` are threads,
and the programs of a grid run one after another: in any order, or, for kernels that wait for one another, in the order
in which hardware starts them. This says neither that a kernel compiles nor how fast.
"""

from __future__ import annotations

import ast
import random
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A barrier that nobody completes within so many seconds never will be.
_PATIENCE_S = 2.0


class Tensor:
    """Values in registers; `pending` products must be waited for before anyone looks."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)
        self.pending = 0

    @property
    def values(self) -> NDArray[Any]:
        assert self.pending == 0, "an accumulator is used before its products are done"
        return self._values

    def add_product(self, product: NDArray[Any]) -> None:
        self._values = self._values + product
        self.pending -= 1

    def to(self, dtype: Any) -> Tensor:
        return Tensor(self.values.astype(getattr(dtype, "numpy", dtype)))

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.values[key])


def _binary(name: str) -> Callable[[Tensor, Any], Tensor]:
    def operate(self: Tensor, other: Any) -> Tensor:
        return Tensor(getattr(self.values, name)(other.values if isinstance(other, Tensor) else other))

    return operate


for _name in ("add", "radd", "mul", "rmul", "floordiv", "mod", "lt", "sub"):
    setattr(Tensor, f"__{_name}__", _binary(f"__{_name}__"))


class Pointer:
    """A pointer into flat memory."""

    def __init__(self, memory: NDArray[Any], offset: Any = 0) -> None:
        self.memory, self.offset = memory, offset

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.offset + (other.values if isinstance(other, Tensor) else other))

    __radd__ = __add__


class Descriptor:
    """A matrix that the copy engine reads and writes in blocks; what lies outside is zero, or dropped."""

    layout = "swizzled"

    def __init__(self, matrix: NDArray[Any], block: Sequence[int]) -> None:
        self.matrix, self.block = matrix, tuple(block)
        self.dtype = _Dtype(matrix.dtype)

    def load(self, corner: Sequence[int]) -> NDArray[Any]:
        tile = np.zeros(self.block, self.matrix.dtype)
        part = self.matrix[corner[0] : corner[0] + self.block[0], corner[1] : corner[1] + self.block[1]]
        tile[: part.shape[0], : part.shape[1]] = part
        return tile

    def store(self, corner: Sequence[int], tile: NDArray[Any]) -> None:
        part = self.matrix[corner[0] : corner[0] + self.block[0], corner[1] : corner[1] + self.block[1]]
        part[...] = tile[: part.shape[0], : part.shape[1]]


class _Dtype:
    def __init__(self, dtype: Any) -> None:
        self.numpy = np.dtype(dtype)
        self.primitive_bitwidth = self.numpy.itemsize * 8


class Shared:
    """A shared-memory buffer, or a view of one: bytes that several may see."""

    def __init__(self, data: bytearray, dtype: Any, shape: Sequence[int]) -> None:
        self.data, self.dtype, self.shape = data, np.dtype(dtype), tuple(shape)
        size = int(np.prod(shape)) * self.dtype.itemsize
        assert size <= len(data), f"a view of {size} bytes of a buffer of {len(data)}"
        self.values: NDArray[Any] = np.frombuffer(data, self.dtype, count=int(np.prod(shape))).reshape(shape)
        self.fenced = True

    def index(self, place: int) -> Any:
        return self._slots()[place]

    def _slots(self) -> list[Any]:
        if not hasattr(self, "_made"):
            self._made: list[Any] = []
            for values in self.values:
                slot = Shared.__new__(Shared)
                slot.values, slot.dtype, slot.shape, slot.fenced = values, self.dtype, values.shape, True
                self._made.append(slot)
        return self._made

    def permute(self, order: Sequence[int]) -> Shared:
        view = Shared.__new__(Shared)
        view.values = self.values.transpose(order)
        return view

    def store(self, tensor: Tensor) -> None:
        self.values[...] = tensor.values
        self.fenced = False
        _thread.unfenced.append(self)


class Barrier:
    """An mbarrier with a count of one arrival a phase."""

    def __init__(self) -> None:
        self.phases, self.arrivals, self.bytes = 0, 0, 0
        self.changed = threading.Condition()

    def update(self, arrivals: int, moved: int) -> None:
        with self.changed:
            self.arrivals += arrivals
            self.bytes += moved
            if self.arrivals == 1 and self.bytes == 0:
                self.phases, self.arrivals = self.phases + 1, 0
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.phases & 1 != parity or _failed.is_set(), _PATIENCE_S)
        assert self.phases & 1 != parity, "a barrier that nobody completes"


class _Thread(threading.local):
    def __init__(self) -> None:
        self.products: list[tuple[Tensor, Shared, Shared]] = []
        self.stores: list[tuple[Descriptor, Sequence[int], Shared]] = []
        self.unfenced: list[Shared] = []


_thread = _Thread()
_failed = threading.Event()
_barriers: list[Barrier] = []
_program = [0, 0]
_grid = [1, 1]


def _finish_products(outstanding: int) -> None:
    while len(_thread.products) > outstanding:
        acc, a, b = _thread.products.pop(0)
        acc.add_product(a.values.astype(np.float64) @ b.values.astype(np.float64))


def _warpgroup_mma(a: Shared, b: Shared, acc: Tensor, *, is_async: bool) -> Tensor:
    acc.pending += 1
    _thread.products.append((acc, a, b))
    if not is_async:
        _finish_products(0)
    return acc


def _warpgroup_mma_wait(num_outstanding: int, deps: Sequence[Tensor]) -> Any:
    _finish_products(num_outstanding)
    return deps[0] if len(deps) == 1 else tuple(deps)


def _load_tile(descriptor: Descriptor, corner: Sequence[int], barrier: Barrier, slot: Shared) -> None:
    slot.values[...] = descriptor.load(corner)
    barrier.update(0, -slot.values.nbytes)


def _fence() -> None:
    for tile in _thread.unfenced:
        tile.fenced = True
    _thread.unfenced.clear()


def _store_tile(descriptor: Descriptor, corner: Sequence[int], tile: Shared) -> None:
    assert tile.fenced, "the copy engine may not see what was stored"
    _thread.stores.append((descriptor, list(corner), tile))


def _store_wait(pending: int) -> None:
    while len(_thread.stores) > pending:
        descriptor, corner, tile = _thread.stores.pop(0)
        descriptor.store(corner, tile.values)


def _load(pointer: Pointer, mask: Any = None, other: Any = 0.0, cache_modifier: str = "") -> Tensor:
    offset = np.asarray(pointer.offset)
    inside = np.ones(offset.shape, bool) if mask is None else np.broadcast_to(mask.values, offset.shape)
    return Tensor(np.where(inside, pointer.memory[np.where(inside, offset, 0)], other))


def _store(pointer: Pointer, value: Any) -> None:
    pointer.memory[pointer.offset] = value.values if isinstance(value, Tensor) else value


def _atomic_add(pointer: Pointer, value: int, sem: str) -> int:
    assert sem == "acq_rel"
    before = int(pointer.memory[pointer.offset])
    pointer.memory[pointer.offset] += value
    return before


def _atomic_xchg(pointer: Pointer, value: int, sem: str) -> None:
    assert sem == "release"
    pointer.memory[pointer.offset] = value


def _atomic_cas(pointer: Pointer, compare: int, value: int, sem: str) -> int:
    assert sem == "acquire"
    assert pointer.memory[pointer.offset] == compare, "a wait for a program that does not come before"
    pointer.memory[pointer.offset] = value
    return compare


def _warp_specialize(partitions: Sequence[tuple[Any, Sequence[Any]]], warps: Any, registers: Any) -> None:
    errors: list[BaseException] = []
    _failed.clear()

    def run(function: Any, arguments: Sequence[Any]) -> None:
        try:
            function(*arguments)
            assert not _thread.products, "products that nobody waits for"
            assert not _thread.stores, "a store that nobody waits for"
        except BaseException as error:
            errors.append(error)
            _failed.set()
            for barrier in _barriers:
                with barrier.changed:
                    barrier.changed.notify_all()

    threads = [threading.Thread(target=run, args=partition, daemon=True) for partition in partitions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _jit(function: Any = None, **_: Any) -> Any:
    return (lambda kernel: kernel) if function is None else function


def _namespace() -> dict[str, Any]:
    layout = lambda *_: None  # noqa: E731
    gl = types.SimpleNamespace(
        **dict.fromkeys(("constexpr", "int64", "bfloat16", "float16")),
        float32=np.float32,
        minimum=min,
        cdiv=lambda a, b: -(-a // b),
        where=lambda condition, a, b: a if condition else b,
        program_id=lambda axis: _program[axis],
        num_programs=lambda axis: _grid[axis],
        arange=lambda start, end, layout: Tensor(np.arange(start, end)),
        zeros=lambda shape, dtype, layout: Tensor(np.zeros(shape, np.float64)),
        load=_load,
        store=_store,
        atomic_add=_atomic_add,
        atomic_cas=_atomic_cas,
        atomic_xchg=_atomic_xchg,
        static_range=range,
        static_assert=_static_assert,
        thread_barrier=lambda: None,
        NVMMADistributedLayout=layout,
        SliceLayout=layout,
        shared_memory_descriptor=types.SimpleNamespace(reinterpret=_reinterpret),
        allocate_shared_memory=_allocate,
        warp_specialize=_warp_specialize,
    )
    mbarrier = types.SimpleNamespace(
        MBarrierLayout=lambda: "barriers",
        init=lambda barrier, count: None,
        expect=lambda barrier, moved: barrier.update(1, moved),
        wait=lambda barrier, parity: barrier.wait(parity),
        arrive=lambda barrier, count, pred=True: barrier.update(1, 0) if pred else None,
    )
    tma = types.SimpleNamespace(
        async_copy_global_to_shared=_load_tile, async_copy_shared_to_global=_store_tile, store_wait=_store_wait
    )
    return {
        "gl": gl,
        "tl": gl,
        "mbarrier": mbarrier,
        "tma": tma,
        "gluon": types.SimpleNamespace(jit=_jit),
        "triton": types.SimpleNamespace(jit=_jit, cdiv=gl.cdiv),
        "fence_async_shared": _fence,
        "warpgroup_mma": _warpgroup_mma,
        "warpgroup_mma_wait": _warpgroup_mma_wait,
    }


def _static_assert(condition: bool) -> None:
    assert condition


def _allocate(dtype: Any, shape: Sequence[int], layout: Any) -> Any:
    if layout == "barriers":
        barriers = [Barrier() for _ in range(shape[0])]
        _barriers[:] = [*_barriers, *barriers][-2 * shape[0] :]
        return types.SimpleNamespace(index=barriers.__getitem__)
    dtype = dtype.numpy
    return Shared(bytearray(int(np.prod(shape)) * dtype.itemsize), dtype, shape)


def _reinterpret(buffer: Shared, dtype: _Dtype, shape: Sequence[int], layout: Any) -> Shared:
    return Shared(buffer.data, dtype.numpy, shape)


class _Matrix:
    """What `launches` asks of an operand."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    @property
    def T(self) -> _Matrix:
        return _Matrix(self.values.T)


def run_module(
    text: str, config: str, operands: dict[str, NDArray[Any]], units: int, seed: int
) -> dict[str, NDArray[Any]]:
    """Run one call of a config of a generated module; returns C, and the workspace and its counters if there are any.

    `operands` are a [M, K], b [K, N], c [M, N] and, with a bias, bias [N]; c is written. `units` is the number of SMs.
    """
    tree = ast.parse(text)
    keep = ("argparse", "collections", "functools")
    tree.body = [
        node
        for node in tree.body
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or _imported_from(node).startswith(keep)
    ]
    for node in ast.walk(tree):
        # Sizes are Python's numbers here, which do not overflow.
        if isinstance(node, ast.Call) and ast.unparse(node).endswith(".to(gl.int64)"):
            assert isinstance(node.func, ast.Attribute)
            node.func, node.args = ast.Name("int", ast.Load()), [node.func.value]
    module = _namespace() | {"__name__": "generated"}
    exec(compile(ast.fix_missing_locations(tree), "generated", "exec"), module)
    module["_gluon_descriptor"] = lambda x, block: Descriptor(x.values, block)
    chosen = module["CONFIGS"][config]
    given: dict[str, Any] = {name: _Matrix(values) for name, values in operands.items() if name in "abc"}
    given |= {name: Pointer(values) for name, values in operands.items() if name not in "abc"}
    made: dict[str, NDArray[Any]] = {}
    elements, counters = module["workspace_elements"](chosen, units) if "workspace_elements" in module else (0, 0)
    if counters:
        made = {"workspace": np.full(elements, np.nan), "counters": np.zeros(counters, np.int64)}
        given |= {name: Pointer(values) for name, values in made.items()}
    for launch in module["launches"](chosen, given, units):
        programs = list(range(launch.grid[0]))
        if "atomic_cas" not in text:
            random.Random(seed).shuffle(programs)
        _grid[0] = launch.grid[0]
        for _program[0] in programs:
            launch.kernel(*launch.args, **launch.constants)
    return {"c": operands["c"], **made}


def _imported_from(node: ast.Import | ast.ImportFrom) -> str:
    return node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
