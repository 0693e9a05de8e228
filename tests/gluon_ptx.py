"""The PTX that the kernels in Gluon hold, run as its threads run it, on tests/gluon_machine.py.

Threads go on alone after a branch and meet again where they may; a register that nobody has written is no number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from gluon_arithmetic import ARITHMETIC, has_32_bits
from gluon_copies import add_or_move, copy
from gluon_machine import Agent, Machine
from gluon_memory import Descriptor, at_global, is_global
from gluon_operands import Pointer
from gluon_text import Instruction, Text, constraints_of, parse, place_of
from gluon_wgmma import ByGroup, Products, Tensor, by_group, of_group
from numpy.typing import NDArray

# Instructions that a text may run before it counts as one that never ends.
_MOST_STEPS = 5_000
_WAITS = {
    # The second sees what other programs have sent.
    "mbarrier.try_wait.parity.shared::cta.b64": False,
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64": True,
}
_TEST = "mbarrier.test_wait.parity.shared::cta.b64"
Mask = NDArray[np.bool_]


@functools.lru_cache(maxsize=4096)
def _for_all(number: int, threads: int) -> NDArray[np.int64]:
    """The same number for each, which nobody changes."""
    values = np.full(threads, number, np.int64)
    values.flags.writeable = False
    return values


class Threads:
    """Threads of a partition that run a text together, in whole warps.

    They are all of it (`group` is -1), or one of its warpgroups. `inputs` are its operands by number, and `accs` the
    tensors of its first ones.
    """

    def __init__(
        self, machine: Machine, text: Text, group: int, inputs: dict[int, Any], accs: Sequence[Tensor] = ()
    ) -> None:
        self.machine, self.text, self.inputs, self.accs = machine, text, inputs, accs
        agent: Agent = machine.running
        self.agent = agent
        self.threads = agent.threads if group < 0 else agent.threads[group * 128 : group * 128 + 128]
        self.warps = range(len(agent.known)) if group < 0 else range(group * 4, group * 4 + 4)
        self.everyone = np.ones(len(self.threads), bool)
        self.products = Products(machine, group, accs)
        self.named: dict[str, NDArray[Any]] = {}
        self.given: dict[str, NDArray[Any]] = {}  # inputs and numbers, for each thread
        self.written: dict[str, Mask] = {}
        # By instruction, what was tried to wait for when it last was, in vain, and by whom.
        self.tried: dict[int, tuple[int, int, Mask]] = {}

    def run(self) -> Iterator[Callable[[], bool]]:
        """Those that are behind go first, so that all meet again; gives what they wait for, whenever they wait."""
        everyone, instructions = self.everyone, self.text.instructions
        # Where each thread is, while they are not all at `step`.
        step, at = 0, None
        for _ in range(_MOST_STEPS):
            active = everyone
            if at is not None:
                step = int(at.min())
                active = at == step
            if step == len(instructions):
                return
            instruction, taken, some = instructions[step], active, True
            if instruction.predicate:
                flag = self.value(instruction.flag, active)
                taken = active & (~flag if instruction.negated else flag)
                some = bool(taken.any())
            here, step = step, step + 1
            if at is not None:
                at[active] = step
            if instruction.name == "bra":
                if some:
                    at = np.full(len(everyone), step) if at is None else at
                    at[taken] = self.text.labels[instruction.fields[0]]
            elif some and instruction.name in _WAITS:
                yield from self.wait(here, instruction, taken)
            elif some and instruction.name in ("bar.sync", "bar.arrive"):
                yield from self.by_name(instruction, taken)
            elif some and instruction.name == _TEST:
                self.test(instruction, taken)
            elif some:
                self.step(instruction.name, instruction.fields, taken)
            if at is not None and (at == at[0]).all():
                step, at = int(at[0]), None
        raise AssertionError("a text that does not end")

    def value(self, name: str, taken: Mask) -> NDArray[Any]:
        """A number for each thread, of which those that take part must have one."""
        if (known := self.named.get(name)) is not None:
            written = self.written[name]
            assert written is self.everyone or (written | ~taken).all(), f"{name} is used before it is written"
            return known
        if (given := self.given.get(name)) is None:
            given = self.threads if name == "%tid.x" else _for_all(self.number(name), len(self.threads))
            self.given[name] = given
        return given

    def number(self, name: str) -> int:
        """An input, a special register, or a number that the text names."""
        if name.startswith("$"):
            assert int(name[1:]) in self.inputs, f"{name} is not an input"
            return int(self.inputs[int(name[1:])])
        if "_param_" in name:
            return int(self.machine.parameters.address(name))
        if name == "%cluster_ctarank":
            return self.machine.rank
        if name == "global_smem":
            return self.machine.first_address
        # Grids have one dimension.
        if name == "%ctaid.y":
            return 0
        assert name not in self.text.registers, f"{name} is used before it is written"
        return int(name, 0)

    def is_number(self, name: str) -> bool:
        """Whether it is one for all threads, and no register."""
        return name not in self.named and name != "%tid.x"

    def uniform(self, name: str, taken: Mask) -> int:
        if self.is_number(name):
            return self.number(name)
        values = self.value(name, taken)[taken]
        assert (values == values[0]).all(), f"{name} is not the same in all threads"
        return int(values[0])

    def address(self, field: str, taken: Mask) -> NDArray[np.int64]:
        """Of [base] or [base+offset], for each thread that takes part."""
        base, offset = place_of(field)
        return self.value(base, taken)[taken] + offset

    def one_address(self, field: str, taken: Mask) -> int:
        base, offset = place_of(field)
        if self.is_number(base):
            return self.number(base) + offset
        (address,) = set(self.address(field, taken).tolist())
        return int(address)

    def write(self, name: str, values: Any, taken: Mask) -> None:
        assert name in self.text.registers or name.startswith("$"), f"{name} is not declared"
        new = np.asarray(values)
        if new.shape != self.threads.shape:
            new = np.broadcast_to(new, self.threads.shape)
        if taken is self.everyone:
            self.named[name], self.written[name] = new, taken
            return
        before = self.named.get(name, new)
        self.named[name] = np.where(taken, new, before)
        self.written[name] = self.written.get(name, np.zeros(taken.shape, bool)) | taken

    def whole_warps(self, name: str, taken: Mask) -> None:
        if taken is self.everyone:
            return
        warps = taken.reshape(-1, 32)
        assert np.all(warps.all(axis=1) == warps.any(axis=1)), f"{name} by a part of a warp"

    def one_thread(self, name: str, taken: Mask) -> int:
        (threads,) = np.nonzero(taken)
        assert len(threads) == 1, f"{name} by {len(threads)} threads"
        return int(self.threads[threads[0]])

    def known(self) -> int:
        """What all of these threads know to be over."""
        return self.agent.all_know(self.warps)

    def wait(self, step: int, instruction: Instruction, taken: Mask) -> Iterator[Callable[[], bool]]:
        """The first try for a phase comes back with nothing, as it may; who tries again waits."""
        address = self.one_address(instruction.fields[1], taken)
        barrier = self.machine.barrier(address, self.threads[taken])
        parity = self.uniform(instruction.fields[2], taken)
        *tried, who = self.tried.get(step, (address, parity, np.zeros(taken.shape, bool)))
        again = taken & who & (tried == [address, parity])
        self.tried[step] = (address, parity, taken & ~again)
        if again.any():
            yield lambda: barrier.lets_through(parity)
            self.agent.has_waited(barrier, parity, self.of_partition(again), _WAITS[instruction.name])
        self.write(instruction.fields[0], again, taken)

    def test(self, instruction: Instruction, taken: Mask) -> None:
        """Waits for nothing: of those warps for which it is over, some may have looked before."""
        self.machine.pause()
        address, parity = self.one_address(instruction.fields[1], taken), self.uniform(instruction.fields[2], taken)
        barrier = self.machine.barrier(address, self.threads[taken])
        late = [barrier.lets_through(parity) and self.machine.random.random() < 0.5 for _ in self.warps]
        over = taken & np.repeat(late, 32)
        self.agent.has_waited(barrier, parity, self.of_partition(over), False)
        self.write(instruction.fields[0], over, taken)

    def of_partition(self, some: Mask) -> Mask:
        """Those of all threads of the partition."""
        everyone = np.zeros(len(self.agent.threads), bool)
        first = self.warps[0] * 32
        everyone[first : first + len(some)] = some
        return everyone

    def by_name(self, instruction: Instruction, taken: Mask) -> Iterator[Callable[[], bool]]:
        """Whole warps come to a barrier of the program's, and wait there, or do not."""
        self.whole_warps(instruction.name, taken)
        name, count = (self.uniform(field, taken) for field in instruction.fields)
        phase = self.machine.arrive_named(name, int(taken.sum()), count)
        if instruction.name == "bar.sync":
            yield lambda: self.machine.named[name][1] > phase

    def step(self, name: str, fields: tuple[str, ...], taken: Mask) -> None:
        if (compute := ARITHMETIC.get(name)) is not None:
            result = compute(*[self.value(field, taken) for field in fields[1:]])
            if result.dtype != bool and has_32_bits(name):
                result = result & 0xFFFFFFFF
            self.write(fields[0], result, taken)
            return
        machine = self.machine
        if ".sync" in name or ".aligned" in name:
            self.whole_warps(name, taken)
        if name.startswith("wgmma."):
            assert taken.all(), "products by a part of a warpgroup"
            self.wgmma(name, fields, taken)
        elif name == "mov.b64" and not fields[1].startswith("{"):
            self.write(fields[0], self.value(fields[1], taken), taken)
        elif name == "mov.b64":
            low, high = (self.value(part.strip(), taken) for part in fields[1].strip("{}").split(","))
            self.write(fields[0], low | high << 32, taken)
        elif name == "elect.sync":
            assert fields[1] == "-1"
            self.write(fields[0].removeprefix("_|"), self.threads % 32 == machine.elected, taken)
        elif name == "shfl.sync.idx.b32":
            assert fields[2:] == ("0", "31", "-1")
            first = self.value(fields[1], taken).reshape(-1, 32)[:, 0]
            self.write(fields[0], np.repeat(first, 32), taken)
        elif name == "mapa.shared::cluster.u32":
            addresses, ranks = (self.value(field, taken) for field in fields[1:3])
            mapped = np.zeros(taken.shape, np.int64)
            for rank in set(ranks[taken].tolist()):
                there = taken & (ranks == rank)
                mapped[there] = machine.mapped(addresses[there], rank)
            self.write(fields[0], mapped, taken)
        elif name == "barrier.cluster.arrive.relaxed.aligned":
            assert taken.all(), "arrives at the cluster's barrier without some of the threads"
            machine.arrive_at_cluster()
        elif name == "barrier.cluster.wait.acquire.aligned":
            assert taken.all(), "waits at the cluster's barrier without some of the threads"
            machine.meet()
        elif name == "ld.global.b32":
            self.write(fields[0], int(at_global(self.one_address(fields[1], taken))[0]), taken)
        elif name.startswith(("mbarrier.", "fence.mbarrier")):
            self.at_barrier(name, fields, taken)
        elif name == "bar.warp.sync":
            assert fields == ("-1",)
            self.agent.share(
                number for number, warp in zip(self.warps, taken.reshape(-1, 32), strict=True) if warp.all()
            )
        elif name == "cvta.param.u64":
            self.write(fields[0], machine.parameters.anywhere(self.uniform(fields[1], taken)), taken)
        elif name == "prefetch.tensormap":
            machine.parameters.descriptor(self.one_address(fields[0], taken))
        elif name.startswith("cp.async."):
            copy(self, name, fields, taken)
        else:
            add_or_move(self, name, fields, taken)

    def at_barrier(self, name: str, fields: tuple[str, ...], taken: Mask) -> None:
        machine = self.machine
        if name == "mbarrier.init.shared::cta.b64":
            thread = self.one_thread("a barrier that is made", taken)
            machine.make(self.one_address(fields[0], taken), self.uniform(fields[1], taken), thread)
        elif name == "fence.mbarrier_init.release.cluster":
            machine.fence_barriers(self.threads[taken])
        elif name == "mbarrier.arrive.expect_tx.shared::cta.b64":
            thread = self.one_thread("expected bytes", taken)
            barrier = machine.barrier(self.one_address(fields[1], taken), np.array([thread]))
            barrier.update(1, self.uniform(fields[2], taken), self.agent.knows(thread))
        elif name == "mbarrier.arrive.shared::cta.b64":
            threads = self.threads[taken].tolist()
            count = self.uniform(fields[2], taken) if fields[2:] else 1
            assert count > 0, "an arrival of nobody"
            for thread, address in zip(threads, self.address(fields[1], taken).tolist(), strict=True):
                barrier, known = machine.barrier(address, self.threads[taken]), self.agent.knows(thread)
                barrier.update(count, 0, known, of_copies=barrier.has_added(known))
            machine.pause()
        elif name == "mbarrier.arrive.shared::cluster.b64":
            threads = self.threads[taken].tolist()
            for thread, address in zip(threads, self.address(fields[1], taken).tolist(), strict=True):
                machine.barrier_of(address, self.threads[taken]).update(1, 0, self.agent.knows(thread))
            machine.pause()
        else:
            raise AssertionError(f"unknown PTX: {name}")

    def wgmma(self, name: str, fields: tuple[str, ...], taken: Mask) -> None:
        if name == "wgmma.fence.sync.aligned":
            self.products.fence()
        elif name == "wgmma.commit_group.sync.aligned":
            self.products.commit()
        elif name == "wgmma.wait_group.sync.aligned":
            self.products.wait(int(fields[0]))
        else:
            # Neither operand is negated, and those of 16 bits may be turned.
            flags = {"f16": 4, "s8": 0}
            assert len(fields[4:]) == flags.get(name.rpartition(".")[2], 2)
            assert fields[4:6] in (("1", "1"), ())
            rows_turned, columns_turned = (field == "1" for field in fields[6:] or ("0", "0"))
            rows, columns = (self.uniform(field, taken) for field in fields[1:3])
            more = bool(self.uniform(fields[3], taken))
            self.products.multiply(name, fields[0], rows, columns, (rows_turned, columns_turned), more)


def _run_together(machine: Machine, groups: Sequence[Threads]) -> None:
    """Run a text to its end, each of these until it waits."""
    running = [threads.run() for threads in groups]
    waits: dict[Iterator[Any], Callable[[], bool]] = {}
    while True:
        for run in running:
            waits.pop(run, None)
            if (ready := next(run, None)) is not None:
                waits[run] = ready
        if not waits:
            return
        machine.pause(lambda: any(ready() for ready in waits.values()))
        running = [run for run, ready in waits.items() if ready()]


def run_ptx(machine: Machine, text: str, constraints: str, args: Sequence[Any], dtype: Any, pack: int) -> Any:
    """What gl.inline_asm_elementwise returns: tensors that the text adds to, or the one number that it finds."""
    outputs, inputs, stay = constraints_of(constraints)
    assert len(inputs) == pack * len(args), "as many inputs as arguments have elements"
    args = [int(arg) if isinstance(arg, Pointer) else arg for arg in args]
    accs = [arg for arg in args if isinstance(arg, Tensor)]
    assert accs == list(args[: len(accs)])
    numbers, tied = list(args[len(accs) :]), accs
    if accs and not stay:
        # One number in the shape of a tensor says what outputs look like that are no inputs.
        numbers, tied = [by_group(accs[0].values, machine.running.groups), *args[1:]], []
    if accs and len(tied) < len(dtype):
        # These hold anything.
        garbage = np.nan if dtype[0] is not np.int32 else -(2**31)
        kind = np.float64 if dtype[0] is not np.int32 else np.int32
        like = accs[0]
        accs = tied + [type(like)(np.full(like.shape, garbage, kind), like.warps) for _ in dtype[len(tied) :]]
    if len({id(acc) for acc in accs}) < len(accs):
        # One value may stand for several only before anything is added to it.
        assert not any(acc.values.any() for acc in accs), "an accumulator that is named twice"
        accs = [type(acc)(acc.values.copy(), acc.warps) for acc in accs]
    if accs:
        assert pack == accs[0].registers, "a thread's registers in more than one piece"
        assert outputs == ["=r" if dtype[0] is np.int32 else "=f"] * (pack * len(dtype))
        assert len(dtype) == len(accs)
        assert stay == [str(number) for number in range(len(tied) * pack)], "inputs that are not outputs"
    else:
        assert outputs == ["=r"]
        assert pack == 1
    scalars = [arg for arg in numbers for _ in range(pack)]
    kinds = ["l" if isinstance(each, Descriptor) or is_global(each) else "r" for each in scalars]
    assert inputs[len(stay) :] == kinds, "inputs of other sizes"
    first = len(outputs) + len(stay)

    def inputs_of(group: int) -> dict[int, Any]:
        numbered = enumerate(scalars, first)
        return {i: each if isinstance(each, Descriptor) else of_group(each, group) for i, each in numbered}

    parsed, groups = parse(text), machine.running.groups
    if not accs:
        assert not any(isinstance(each, ByGroup) for each in scalars), "a number that is not the same in all threads"
        threads = Threads(machine, parsed, -1, inputs_of(0))
        _run_together(machine, [threads])
        return by_group(threads.value("$0", threads.everyone), groups)
    _run_together(machine, [Threads(machine, parsed, group, inputs_of(group), accs) for group in range(groups)])
    return tuple(acc.left() for acc in accs)
