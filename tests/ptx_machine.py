"""A machine for tests that runs the PTX of kernels for sm_100, a cluster at a time: no GPU has run these.

What is asynchronous on a GPU takes a time here that chance decides: copies (each destination by itself), products (in
order), commits, stores. So do the turns of warps. What a barrier must not see (more arrivals than it has, a phase that
nobody ends), and whatever reaches a CTA that has left, is an error; so is a machine in which nobody can go on. What it
knows of the hardware is what the PTX ISA says; it shares no line with the kernel or with its compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from ptx_cta import Barrier, Cta
from ptx_tensor import Product, TensorMap, multiply
from ptx_text import Program, operands_of
from ptx_warp import LANES, Warp

_OFFSET, _RANK = 0xFFFFFF, 24
# Where dynamic shared memory begins; a CTA's own addresses have its rank above.
_DYNAMIC = 1024
# Share of the warps that are slow, and of their turns that they take while anything else may happen.
_SLOW, _PACE = 0.3, 0.001
# What may be lazy: it then comes only when no warp can go on, or the slow ones alone.
_KINDS = ("copy", "signal", "store", "product")


class Machine:
    """One cluster of `cluster` CTAs of a grid of `programs`; `memory` is arrays of bytes by their address."""

    def __init__(
        self,
        program: Program,
        arguments: list[Any],
        *,
        cluster: int,
        first: int,
        programs: int,
        threads: int,
        memory: dict[int, Any],
        random: Random,
    ) -> None:
        self.random, self.memory = random, memory
        self.maps: dict[int, TensorMap] = {}
        self.values: dict[str, int] = {}
        for number, (name, value) in enumerate(zip(program.parameters, arguments, strict=True)):
            self.values[name] = value if isinstance(value, int) else 1 << 40 | number
            if not isinstance(value, int):
                self.maps[self.values[name]] = value
        self.ctas = [Cta() for _ in range(cluster)]
        # What comes in any order, and by CTA the products and commits that come in theirs.
        self.events: list[tuple[str, Callable[[], None]]] = []
        self.lazy = {kind for kind in _KINDS if random.random() < 0.5}
        self.newest_first, self.laziest = random.random() < 0.5, random.random() < 0.5
        # Arrivals at others' barriers, by who made them.
        self.unseen: dict[Callable[[], None], Warp] = {}
        self.products: list[list[Callable[[], None]]] = [[] for _ in range(cluster)]
        self.stores: dict[Warp, list[list[list[bool]]]] = {}
        self.cluster_met: set[Warp] = set()
        self.cluster_rounds = 0
        self.waits_for: dict[Warp, int] = {}
        self.rank_of: dict[Warp, int] = {}
        for rank, cta in enumerate(self.ctas):
            for number in range(threads // LANES):
                special: dict[str, Any] = {
                    "%tid.x": np.arange(LANES) + LANES * number,
                    "%laneid": np.arange(LANES),
                    "%ctaid.x": first + rank,
                    "%nctaid.x": programs,
                    "__dynamic_shmem__0": rank << _RANK | _DYNAMIC,
                    **self.values,
                }
                warp = Warp(program, special)
                cta.warps.append(warp)
                self.rank_of[warp], self.stores[warp] = rank, [[]]

    def run(self, most_turns: int = 200_000) -> None:
        """To the end of all warps, and of all that they began."""
        warps, stuck = list(self.rank_of), set[Warp]()
        # Some are slow, so that what they should be waited for is not there by itself.
        slow = {warp for warp in warps if self.random.random() < self.random.choice((0, _SLOW))}
        for _ in range(most_turns):
            ready = [warp for warp in warps if warp not in stuck]
            quick = [warp for warp in ready if warp not in slow or self.random.random() < _PACE]
            before = ready if self.laziest else quick
            events = [one for one in self.events if not before or one[0] not in self.lazy]
            orders = [order for order in self.products if order and (not before or "product" not in self.lazy)]
            quick = quick if quick or events or orders else ready
            if not quick and not events and not orders:
                assert not warps, "nobody can go on"
                assert all(cta.tensor_memory.taken == 0 for cta in self.ctas), "tensor memory is still taken"
                return
            pick = self.random.randrange(len(quick) + len(events) + len(orders)) - len(quick)
            if pick < 0:
                warp = quick[pick]
                if self._turn(warp):
                    stuck.clear()
                else:
                    stuck.add(warp)
                if warp.done:
                    warps.remove(warp)
                continue
            stuck.clear()
            if pick < len(events):
                event = events[-1 if self.newest_first else pick]
                self.events.remove(event)
                event[1]()
            else:
                orders[pick - len(events)].pop(0)()
        raise AssertionError("no end")

    def _turn(self, warp: Warp) -> bool:
        """Some instructions of a warp; whether it went on at all."""
        for count in range(self.random.choice((1, 10, 200))):
            if warp.done or warp.step(self._other):
                return count > 0
        return True

    # What instructions do beyond their warp: True where the warp has to wait.

    def _other(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> bool:
        for prefix, do in _DOES.items():
            if opcode.startswith(prefix):
                return bool(do(self, warp, opcode, given, active))
        raise AssertionError(f"unknown PTX: {opcode}")

    def barrier(self, address: int) -> Barrier:
        """The one at an address of any CTA of the cluster."""
        cta = self.ctas[address >> _RANK]
        assert not cta.left, "a barrier of a CTA that has left"
        return cta.barriers[address & _OFFSET]

    def _load_parameter(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        warp.put(given[0], np.full(LANES, self.values[given[1][1:-1]], np.uint64), active)

    def _load_shared(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        cta = self.ctas[self.rank_of[warp]]
        places = (warp.address(given[1]) & np.uint64(_OFFSET)).astype(np.int64)[:, None] + np.arange(4)
        warp.put(given[0], cta.shared[places].view(np.uint32)[:, 0], active)

    def _store_shared(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        cta = self.ctas[self.rank_of[warp]]
        places = (warp.address(given[0]) & np.uint64(_OFFSET)).astype(np.int64)[active][:, None]
        size = int(opcode[-2:]) // 8
        for number, register in enumerate(operands_of(given[1][1:-1])):
            raw = (
                np.ascontiguousarray(warp.get(register, np.dtype(f"u{size}").type)[active])
                .reshape(-1, 1)
                .view(np.uint8)
            )
            cta.shared[places + size * number + np.arange(size)] = raw
            cta.unfenced[places + size * number + np.arange(size)] = self._number(warp) + 1

    def _number(self, warp: Warp) -> int:
        return int(warp.special["%tid.x"][0]) // LANES

    def _fence(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        cta = self.ctas[self.rank_of[warp]]
        cta.unfenced[cta.unfenced == self._number(warp) + 1] = 0

    def _global(self, warp: Warp, operand: str, size: int, active: Any) -> list[tuple[Any, int]]:
        """For each active lane the array, and where in it, that its address is in."""
        found = []
        for address in warp.address(operand)[active]:
            base = max(each for each in self.memory if each <= int(address))
            place = int(address) - base
            assert 0 <= place <= len(self.memory[base]) - size, "beyond an array"
            assert place % size == 0
            found.append((self.memory[base], place))
        return found

    def _load_global(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        size = int(opcode[-2:]) // 8
        values = np.zeros(LANES, f"u{size}")
        places = self._global(warp, given[1], size, active)
        values[active] = [array[place : place + size].view(f"u{size}")[0] for array, place in places]
        warp.put(given[0], values, active)

    def _store_global(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        size = int(opcode[-2:]) // 8
        registers = operands_of(given[1][1:-1]) if given[1].startswith("{") else [given[1]]
        places = self._global(warp, given[0], size * len(registers), active)
        for number, register in enumerate(registers):
            for (array, place), value in zip(
                places, warp.get(register, np.dtype(f"u{size}").type)[active], strict=True
            ):
                at = place + number * size
                array[at : at + size] = np.array([value]).view(np.uint8)

    def _init(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        place = int(warp.address(given[0])[active][0]) & _OFFSET
        count = warp.uniform(given[1], active)
        self.ctas[self.rank_of[warp]].barriers[place] = Barrier(count, count)

    def _arrive(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        """Each lane at its barrier, of whatever CTA; with the bytes that it expects. Other CTAs learn of it later."""
        more = warp.uniform(given[-1], active)
        for address in warp.address(given[-2])[active]:
            change = (more, 0) if ".expect_tx" not in opcode else (int(opcode.startswith("mbarrier.arrive")), more)
            signal = self._signal(int(address), *change)
            if int(address) >> _RANK == self.rank_of[warp]:
                signal()
            else:
                self.events.append(("signal", signal))
                self.unseen[signal] = warp

    def _signal(self, address: int, arrivals: int, more_bytes: int) -> Callable[[], None]:
        return lambda: self.barrier(address).change(arrivals, more_bytes)

    def _try_wait(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> bool:
        address, parity = int(warp.address(given[1])[0]), warp.uniform(given[2], active)
        if self.barrier(address).phase & 1 == parity:
            return True
        warp.put(given[0], np.ones(LANES, np.bool_), active)
        return False

    def _mapa(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        place, rank = (warp.get(each, np.uint32) for each in given[1:])
        warp.put(given[0], (place & np.uint32(_OFFSET)) | rank << np.uint32(_RANK), active)

    def _sync_cta(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> bool:
        cta = self.ctas[self.rank_of[warp]]
        if warp not in self.waits_for:
            self.waits_for[warp] = cta.rounds
            cta.met.add(id(warp))
            if len(cta.met) == len(cta.warps):
                cta.met.clear()
                cta.rounds += 1
        if self.waits_for[warp] == cta.rounds:
            return True
        del self.waits_for[warp]
        return False

    def _cluster_arrive(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        assert active.all()
        # It releases: what the warp has signalled to others is there before anyone passes this barrier.
        for event in [event for event in self.events if self.unseen.get(event[1]) is warp]:
            self.events.remove(event)
            event[1]()
        self.waits_for[warp] = self.cluster_rounds
        self.cluster_met.add(warp)
        if len(self.cluster_met) == len(self.rank_of):
            self.cluster_met.clear()
            self.cluster_rounds += 1

    def _cluster_wait(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> bool:
        if self.waits_for[warp] == self.cluster_rounds:
            return True
        del self.waits_for[warp]
        return False

    def _copy(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        """To shared memory, of one CTA or of those of a mask; bytes count at the barrier of each, or of its pair."""
        assert active.sum() == 1, "one thread issues a copy"
        target, barrier = (int(warp.address(given[place])[active][0]) for place in (0, 2))
        box, column, row = self._box(warp, given[1], active)
        rank = target >> _RANK
        ranks = [rank]
        if "multicast" in opcode:
            mask = warp.uniform(given[3], active)
            ranks = [each for each in range(16) if mask >> each & 1]
        for each in ranks:
            at = each if "cta_group::2" not in opcode else each & ~1 | barrier >> _RANK & 1
            if "multicast" not in opcode:
                at = barrier >> _RANK
                assert at == each or ("cta_group::2" in opcode and at ^ each == 1)
            at = at << _RANK | barrier & _OFFSET
            self.events.append(("copy", self._landing(box, column, row, each, target & _OFFSET, at)))

    def _landing(
        self, box: TensorMap, column: int, row: int, rank: int, place: int, barrier: int
    ) -> Callable[[], None]:
        def land() -> None:
            rows, columns, inside = box.window(column, row)
            raw = np.zeros(inside.shape, np.uint8)
            safe_rows, safe_columns = np.where(inside, rows, 0), np.where(inside, columns, 0)
            raw[inside] = box.raw[safe_rows, safe_columns][inside]
            assert not self.ctas[rank].left, "a copy to a CTA that has left"
            self.ctas[rank].shared[box.places(place)] = raw
            self.barrier(barrier).change(0, -raw.size)

        return land

    def _box(self, warp: Warp, operand: str, active: Any) -> tuple[TensorMap, int, int]:
        name, places = operands_of(operand[1:-1])
        column, row = (warp.uniform(each, active, np.int32) for each in operands_of(places[1:-1]))
        return self.maps[warp.uniform(name, active)], column, row

    def _store_copy(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        """From shared memory; what it reads it reads later. A warp issues it as one (the DSL's word for it)."""
        assert active.all()
        box, column, row = self._box(warp, given[0], active)
        place, cta, done = int(warp.address(given[1])[0]) & _OFFSET, self.ctas[self.rank_of[warp]], [False]
        assert not cta.unfenced[box.places(place)].any(), "the copy engine does not see what was written"

        def leave() -> None:
            assert not cta.left, "a store of a CTA that has left"
            rows, columns, inside = box.window(column, row)
            box.raw[np.broadcast_to(rows, inside.shape)[inside], np.broadcast_to(columns, inside.shape)[inside]] = (
                cta.shared[box.places(place)][inside]
            )
            done[0] = True

        self.stores[warp][-1].append(done)
        self.events.append(("store", leave))

    def _commit_stores(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        self.stores[warp].append([])

    def _wait_stores(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> bool:
        groups = self.stores[warp][:-1]
        return any(not done[0] for group in groups[: len(groups) - int(given[0])] for done in group)

    def _multiply(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        assert active.sum() == 1, "one thread issues a product"
        ctas, kind = int(opcode.split("cta_group::")[1][0]), opcode.split("kind::")[1].split(".")[0]
        address = int(warp.address(given[0])[active][0])
        a, b, bits = (warp.uniform(each, active) for each in given[1:4])
        keep = bool(warp.get(given[5], np.bool_)[active][0]) if given[5][0] == "%" else bool(int(given[5]))
        leader = self.rank_of[warp]
        product = Product.of(bits, kind)
        self.products[leader].append(lambda: multiply(self, leader, ctas, product, address, a, b, keep))

    def _commit(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        assert active.sum() == 1, "one thread commits"
        address = int(warp.address(given[0])[active][0])
        ranks = [address >> _RANK]
        if "multicast" in opcode:
            mask = warp.uniform(given[1], active, np.uint16)
            ranks = [each for each in range(16) if mask >> each & 1]

        # Complete once all before it is; each signal then takes its own time.
        self.products[self.rank_of[warp]].append(
            lambda: self.events.extend(
                ("signal", self._signal(rank << _RANK | address & _OFFSET, 1, 0)) for rank in ranks
            )
        )

    def _load_tensor(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        """Of a warp's own quarter of the lanes: 32 lanes, or 16 and a second run of columns of them."""
        assert active.all()
        cells = self.ctas[self.rank_of[warp]].tensor_memory.cells
        address = int(warp.address(given[1])[0])
        lane, column = address >> 16, address & 0xFFFF
        quarter = self._number(warp) % 4
        assert lane // 32 == quarter, "lanes of another warp"
        registers = operands_of(given[0][1:-1])
        lanes, columns = lane + np.arange(LANES), np.full(LANES, column)
        if ".16x32bx2." in opcode:
            lanes, columns = lane + np.arange(LANES) % 16, column + np.arange(LANES) // 16 * int(given[2])
        else:
            assert lane % 32 == 0
        for number, register in enumerate(registers):
            warp.put(register, cells[lanes, columns + number], active)
        warp.on_the_way.update(registers)

    def _allocate(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        assert active.all()
        cta, columns = self.ctas[self.rank_of[warp]], warp.uniform(given[1], active)
        assert columns in (32, 64, 128, 256, 512)
        assert not cta.tensor_memory.taken
        cta.tensor_memory.taken = columns
        place = int(warp.address(given[0])[0]) & _OFFSET
        cta.shared[place : place + 4] = 0

    def _free(self, warp: Warp, opcode: str, given: tuple[str, ...], active: Any) -> None:
        assert active.all()
        cta = self.ctas[self.rank_of[warp]]
        assert cta.tensor_memory.taken == warp.uniform(given[1], active)
        assert not any(self.products), "products on their way"
        cta.tensor_memory.taken = 0


_DOES: dict[str, Callable[..., Any]] = {
    "ld.param": Machine._load_parameter,
    "ld.shared": Machine._load_shared,
    "fence.proxy.async": Machine._fence,
    "st.shared.v": Machine._store_shared,
    "ld.global": Machine._load_global,
    "st.global": Machine._store_global,
    "mbarrier.init": Machine._init,
    "mbarrier.arrive": Machine._arrive,
    "mbarrier.expect_tx": Machine._arrive,
    "mbarrier.try_wait.parity": Machine._try_wait,
    "mapa": Machine._mapa,
    "bar.sync": Machine._sync_cta,
    "barrier.cluster.arrive": Machine._cluster_arrive,
    "barrier.cluster.wait": Machine._cluster_wait,
    "cp.async.bulk.tensor.2d.shared": Machine._copy,
    "cp.async.bulk.tensor.2d.global": Machine._store_copy,
    "cp.async.bulk.commit_group": Machine._commit_stores,
    "cp.async.bulk.wait_group.read": Machine._wait_stores,
    "tcgen05.mma": Machine._multiply,
    "tcgen05.commit": Machine._commit,
    "tcgen05.ld": Machine._load_tensor,
    "tcgen05.alloc": Machine._allocate,
    "tcgen05.dealloc": Machine._free,
}
