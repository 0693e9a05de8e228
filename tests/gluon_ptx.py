"""The PTX that the kernels in Gluon hold, run as a warpgroup runs it: wgmma on tests/gluon_machine.py's shared memory.

One instruction is one line, or it is not understood. Products read shared memory as late as `wgmma.wait_group` allows.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from gluon_machine import FIRST_ADDRESS, Access, Agent, Allocation, Machine
from numpy.typing import NDArray

_THREADS = 128
_ARITHMETIC = {
    "add": operator.add,
    "sub": operator.sub,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
}


class Tensor:
    """Values in registers; `pending` products must be waited for before anyone looks."""

    def __init__(self, values: Any, warps: int = 0) -> None:
        self.held = np.asarray(values)
        self.warps = warps
        self.pending = 0

    @property
    def values(self) -> NDArray[Any]:
        assert self.pending == 0, "an accumulator is used before its products are done"
        return self.held

    @property
    def shape(self) -> tuple[int, ...]:
        return self.held.shape


@dataclass(frozen=True)
class _Instruction:
    predicate: str
    name: str
    fields: tuple[str, ...]


@lru_cache(maxsize=256)
def _parse(text: str) -> tuple[_Instruction, ...]:
    found = []
    for line in text.strip().removeprefix("{").removesuffix("}").strip().splitlines():
        line = line.strip()
        if line.startswith(("//", ".reg ")):
            continue
        match = re.fullmatch(r"(?:@(\w+) )?([\w.:]+)(?: ([^;]*))?;", line)
        assert match, f"not one instruction of PTX: {line}"
        fields = re.findall(r"\{[^}]*\}|[^\s,][^,]*", match[3] or "")
        found.append(_Instruction(match[1] or "", match[2], tuple(part.strip() for part in fields)))
    return tuple(found)


@dataclass(frozen=True)
class _Product:
    """64 rows times `width` columns, 16 deep, added to `accs` at the operands `registers` of one warpgroup."""

    access: Access
    registers: tuple[int, ...]
    rows: tuple[Allocation, int]
    columns: tuple[Allocation, int]
    accs: Sequence[Tensor]
    group: int

    @property
    def chunks(self) -> list[tuple[Tensor, int]]:
        """Of each 8 columns the tensor, and the first of the 64 rows in it that the registers belong to."""
        each = self.accs[0].shape[0] // (16 * self.accs[0].warps) * 4
        found = []
        for first in range(0, len(self.registers), 4):
            number = self.registers[first]
            assert self.registers[first : first + 4] == tuple(range(number, number + 4)), "registers out of order"
            assert number % 4 == 0, "registers out of order"
            acc = self.accs[number // each]
            found.append((acc, number % each // 4 * 16 * acc.warps + self.group * 64))
        return found

    def finish(self) -> None:
        width = 2 * len(self.registers)
        product = _matrix(*self.rows, 64) @ _matrix(*self.columns, width).T
        for number, (acc, first) in enumerate(self.chunks):
            acc.held[first : first + 64] += product[:, 8 * number : 8 * number + 8]
            acc.pending -= 1


def _matrix(allocation: Allocation, start: int, rows: int) -> NDArray[Any]:
    """[rows, 16] in float64, from rows of 128 bytes: the 16 from `start` on."""
    block, within = divmod(start, 1024)
    lines = allocation.bytes.reshape(-1, 128)[block * 8 : block * 8 + rows, within : within + 32]
    return np.ascontiguousarray(lines).view(np.float16).astype(np.float64)


def _started(
    machine: Machine, descriptor: int, access: Access, rows: int, known: set[Access]
) -> tuple[Allocation, int]:
    """Where a matrix descriptor points, after a look at the rest of it."""
    assert descriptor >> 62 == 1, "a descriptor that is not swizzled over 128 bytes"
    assert descriptor >> 32 & 0x3FFF == 64, "a descriptor whose blocks of 8 rows are not 1024 bytes apart"
    allocation, start = machine.at((descriptor & 0x3FFF) << 4)
    assert start % 1024 <= 96, "a descriptor that begins between two rows"
    allocation.reads(access, start // 1024 * 1024, rows * 128, known)
    return allocation, start


class _Warpgroup:
    """128 threads that run a text: `operands` are its inputs by number, `accs` the tensors of its first operands."""

    def __init__(self, machine: Machine, group: int, operands: dict[int, int], accs: Sequence[Tensor]) -> None:
        self.machine, self.agent, self.group = machine, machine.running, group
        self.operands, self.accs = operands, accs
        self.threads = np.arange(group * _THREADS, (group + 1) * _THREADS, dtype=np.uint64)
        self.named: dict[str, Any] = {}
        self.fenced = False

    def value(self, name: str) -> Any:
        name = name.strip("[]")
        if name.startswith("$"):
            assert int(name[1:]) in self.operands, f"{name} is not an input"
            return self.operands[int(name[1:])]
        known = {"%tid.x": self.threads, "global_smem": FIRST_ADDRESS, **self.named}
        return known[name] if name in known else int(name, 0)

    def uniform(self, name: str) -> int:
        values = np.unique(self.value(name))
        assert len(values) == 1, f"{name} is not the same in all threads of a warpgroup"
        return int(values[0])

    def run(self, instruction: _Instruction) -> None:
        name, fields = instruction.name, instruction.fields
        first, _, rest = name.partition(".")
        assert not instruction.predicate or name.startswith("mbarrier.arrive."), f"unknown PTX: @ {name}"
        if name.startswith("wgmma."):
            self.wgmma(name, fields)
        elif name == "mbarrier.arrive.shared::cta.b64":
            self.arrive(self.uniform(fields[1]), instruction.predicate)
        elif name == "mapa.shared::cluster.u32":
            self.named[fields[0]] = self.uniform(fields[1]), np.broadcast_to(self.value(fields[2]), _THREADS)
        elif name == "mbarrier.arrive.shared::cluster.b64":
            address, ranks = self.value(fields[1])
            for rank in ranks[np.broadcast_to(self.value(instruction.predicate), _THREADS)]:
                machine = self.machine.reached(int(rank))
                machine.barrier(address, full=False).update(1, 0, self.agent.known[self.group])
            self.machine.pause()
        elif name == "mov.b64":
            low, high = fields[1].strip("{}").split(",")
            self.named[fields[0]] = self.value(low.strip()) | self.value(high.strip()) << 32
        elif name == "mov.u32":
            self.named[fields[0]] = self.value(fields[1])
        elif name == "shfl.sync.idx.b32":
            assert fields[2:] == ("0", "31", "-1")
            self.named[fields[0]] = np.repeat(self.value(fields[1]).reshape(-1, 32)[:, 0], 32)
        elif first == "setp":
            compare, _, joined = rest.removesuffix(".u32").partition(".")
            result = _ARITHMETIC[compare](self.value(fields[1]), self.value(fields[2]))
            assert joined in ("", "and")
            self.named[fields[0]] = result & self.value(fields[3]) if joined else result
        else:
            assert first in _ARITHMETIC, f"unknown PTX: {name}"
            result = _ARITHMETIC[first](self.value(fields[1]), self.value(fields[2]))
            self.named[fields[0]] = result & ((1 << int(rest[1:])) - 1)

    def wgmma(self, name: str, fields: tuple[str, ...]) -> None:
        agent, group = self.agent, self.group
        if name == "wgmma.fence.sync.aligned":
            self.fenced = True
        elif name == "wgmma.commit_group.sync.aligned":
            agent.products[group].append(agent.open_group[group])
            agent.open_group[group] = []
        elif name == "wgmma.wait_group.sync.aligned":
            while len(agent.products[group]) > int(fields[0]):
                for product in agent.products[group].pop(0):
                    product.finish()
                    agent.known[group].add(product.access)
        else:
            self.multiply(name, fields)

    def multiply(self, name: str, fields: tuple[str, ...]) -> None:
        match = re.fullmatch(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.f16\.f16", name)
        assert match, f"unknown PTX: {name}"
        assert self.fenced, "products without a wgmma.fence before them"
        registers = tuple(int(part.strip(" $")) for part in fields[0].strip("{}").split(","))
        width = int(match[1])
        assert len(registers) == width // 2
        assert np.all(self.value(fields[3])), "products that replace an accumulator"
        assert fields[4:] == ("1", "1", "0", "0")
        known, access = self.agent.known[self.group], Access()
        rows = _started(self.machine, self.uniform(fields[1]), access, 64, known)
        columns = _started(self.machine, self.uniform(fields[2]), access, width, known)
        product = _Product(access, registers, rows, columns, self.accs, self.group)
        self.agent.open_group[self.group].append(product)
        for acc, _ in product.chunks:
            acc.pending += 1

    def arrive(self, address: int, predicate: str) -> None:
        arrivals = int(np.sum(np.broadcast_to(self.value(predicate), _THREADS))) if predicate else _THREADS
        if arrivals:
            self.machine.barrier(address, full=False).update(arrivals, 0, self.agent.known[self.group])
            self.machine.pause()


class _Thread:
    """The one thread that loads, running a text without tensors; `operands` are its inputs by number."""

    def __init__(self, machine: Machine, thread: int, operands: dict[int, Any]) -> None:
        self.machine, self.operands = machine, operands
        self.named: dict[str, Any] = {"%tid.x": thread, "%cluster_ctarank": machine.rank, "global_smem": FIRST_ADDRESS}

    def value(self, name: str) -> Any:
        name = name.strip("[] ")
        if name.startswith("$") and int(name[1:]) in self.operands:
            return self.operands[int(name[1:])]
        return self.named[name] if name in self.named else int(name, 0)

    def run(self, text: str) -> None:
        lines = [line.strip() for line in re.split(r"[;\n]", text.strip().removeprefix("{").removesuffix("}"))]
        lines = [line for line in lines if line and not line.startswith((".reg", "//"))]
        at = 0
        while at < len(lines):
            match = re.fullmatch(r"(?:@(!?\w+) )?([\w.:]+)(?: (.*))?", lines[at])
            assert match, f"not one instruction of PTX: {lines[at]}"
            at += 1
            if match[2].endswith(":"):
                continue
            fields = [part.strip() for part in re.findall(r"\[[^\]]*\]|[^\s,][^,]*", match[3] or "")]
            if match[1]:
                assert match[2] == "bra", "a predicate on anything but a branch"
                taken = not self.named[match[1][1:]] if match[1].startswith("!") else self.named[match[1]]
                at = lines.index(f"{fields[0]}:") if taken else at
            else:
                self.step(match[2], fields)

    def step(self, name: str, fields: list[str]) -> None:
        values, machine = [self.value(field) for field in fields[1:] if "{" not in field], self.machine
        copy = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        first, _, _ = name.partition(".")
        if name in ("barrier.cluster.arrive.release.aligned", "fence.mbarrier_init.release.cluster"):
            pass
        elif name == "barrier.cluster.wait.acquire.aligned":
            machine.meet()
        elif name == "mbarrier.try_wait.parity.shared::cta.b64":
            # It may well come back with nothing; the second time it has waited.
            self.named[fields[0]] = machine.wait_at(*values, patiently=fields[0] in self.named)
        elif name == "mbarrier.arrive.expect_tx.shared::cta.b64":
            barrier = machine.barrier(self.value(fields[1]), full=True)
            barrier.update(1, self.value(fields[2]), set().union(*machine.running.known))
        elif name in (copy, f"{copy}.multicast::cluster"):
            matrix, place = re.findall(r"[^{}]+", fields[1].strip("[]"))
            corner = [int(self.value(part)) for part in place.split(",")]
            ranks = [machine.rank]
            if name != copy:
                ranks = [rank for rank in range(16) if values[-1] >> rank & 1]
            descriptor = self.value(matrix.strip(" ,"))
            machine.copy(descriptor, corner[::-1], self.value(fields[0]), self.value(fields[2]), ranks)
        elif first == "mov":
            self.named[fields[0]] = values[0]
        elif first == "mad":
            self.named[fields[0]] = values[0] * values[1] + values[2]
        elif first == "setp":
            self.named[fields[0]] = _ARITHMETIC[name.split(".")[1]](*values)
        else:
            assert first in _ARITHMETIC, f"unknown PTX: {name}"
            self.named[fields[0]] = _ARITHMETIC[first](*values)


def run_scalar(machine: Machine, text: str, args: Sequence[Any], thread: int) -> int:
    """What gl.inline_asm_elementwise returns for a text without tensors: one number."""
    runs = _Thread(machine, thread, dict(enumerate(args, 1)))
    runs.run(text)
    return int(runs.named["$0"])


def run_ptx(machine: Machine, text: str, constraints: str, args: Sequence[Any], dtype: Any, pack: int) -> Any:
    """What gl.inline_asm_elementwise returns: tensors that the text adds to, or the one number that it finds."""
    agent: Agent = machine.running
    listed = constraints.split(",")
    outputs = [each for each in listed if each.startswith("=")]
    inputs = listed[len(outputs) :]
    assert listed[: len(outputs)] == outputs
    assert len(inputs) == pack * len(args), "as many inputs as arguments have elements"
    accs = [arg for arg in args if isinstance(arg, Tensor) and arg.held.dtype.kind == "f"]
    if accs:
        assert accs == list(args[: len(accs)])
        if len({id(acc) for acc in accs}) < len(accs):
            # One value may stand for several only before anything is added to it.
            assert not any(acc.values.any() for acc in accs), "an accumulator that is named twice"
            accs = [type(acc)(acc.values.copy(), acc.warps) for acc in accs]
        held = accs[0].shape[0] * accs[0].shape[1] // (32 * accs[0].warps)
        assert pack == held, "a thread's registers in more than one piece"
        assert outputs == ["=f"] * (pack * len(dtype))
        assert len(dtype) == len(accs)
        assert inputs[: len(outputs)] == [str(number) for number in range(len(outputs))], "inputs that are not outputs"
    scalars = [int(arg.values.flat[0]) if isinstance(arg, Tensor) else int(arg) for arg in args[len(accs) :]]
    operands = {len(outputs) + len(accs) * pack + i: scalars[i // pack] for i in range(len(scalars) * pack)}
    instructions = _parse(text)
    found = []
    for group in range(len(agent.known)):
        warpgroup = _Warpgroup(machine, group, operands, accs)
        for instruction in instructions:
            warpgroup.run(instruction)
        found.append(warpgroup.named)
    return tuple(accs) if accs else int(found[0]["$0"])
