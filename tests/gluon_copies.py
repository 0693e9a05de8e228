"""PTX that moves numbers, for tests/gluon_ptx.py: by the copy engine, by single threads, and between programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gluon_memory import at_global
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gluon_ptx import Mask, Threads

_BYTES = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
_BOX = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
_MULTICAST, _HINT = ".multicast::cluster", ".L2::cache_hint"
_ARRIVALS = {"cp.async.mbarrier.arrive.noinc.shared::cta.b64": False, "cp.async.mbarrier.arrive.shared::cta.b64": True}
_SEND = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4"
_SUMS = {"f32": np.float32, "s32": np.int32}


def copy(threads: Threads, name: str, fields: tuple[str, ...], taken: Mask) -> None:
    """An instruction that begins copies to shared memory, or says where threads arrive when theirs are there."""
    if name == _BYTES:
        thread = threads.one_thread("a copy", taken)
        to, source, barrier = (threads.one_address(fields[at], taken) for at in (0, 1, 3))
        threads.machine.copy_bytes(source, threads.uniform(fields[2], taken), to, barrier, thread)
    elif name == "cp.async.ca.shared.global":
        _copy_numbers(threads, fields, taken)
    elif name in _ARRIVALS:
        _arrive(threads, fields, taken, _ARRIVALS[name])
    else:
        assert name.startswith(_BOX), f"unknown PTX: {name}"
        _copy_box(threads, name.removeprefix(_BOX), fields, taken)


def _copy_box(threads: Threads, kind: str, fields: tuple[str, ...], taken: Mask) -> None:
    """What comes behind the third field is a mask of programs, then a policy for L2, each where `kind` says so."""
    assert kind in ("", _MULTICAST, _HINT, _MULTICAST + _HINT), f"unknown PTX: a copy{kind}"
    thread = threads.one_thread("a copy", taken)
    more = [threads.uniform(field, taken) for field in fields[3:]]
    assert len(more) == (_MULTICAST in kind) + (_HINT in kind), "a hint without a policy, or the other way round"
    policy = more.pop() if _HINT in kind else None
    matrix, _, place = fields[1].strip("[]").partition(",")
    corner = [threads.uniform(part.strip(), taken) for part in place.strip(" {}").split(",")]
    to, barrier = (threads.one_address(field, taken) for field in (fields[0], fields[2]))
    descriptor = threads.inputs[int(matrix.strip(" $"))]
    threads.machine.copy(descriptor, corner[::-1], to, barrier, thread, policy, more[0] if more else None)


def _copy_numbers(threads: Threads, fields: tuple[str, ...], taken: Mask) -> None:
    """A number of each thread from memory to shared memory."""
    assert fields[2] == "4"
    machine, copying = threads.machine, threads.agent.copying
    machine.pause()
    to, places = (threads.address(field, taken).tolist() for field in fields[:2])
    for thread, at, place in zip(threads.threads[taken].tolist(), to, places, strict=True):
        if thread not in copying:
            copying[thread] = machine.cluster.new_bit()
        allocation, start = machine.at(at)
        data = at_global(place).view(np.uint8)
        assert data.size == 4, "elements of another size"
        allocation.writes_numbers(copying[thread], start, data, threads.agent.knows(thread))


def _arrive(threads: Threads, fields: tuple[str, ...], taken: Mask, is_added: bool) -> None:
    """Threads are to arrive when what they copied is there; if it `is_added`, the barrier counts one more."""
    agent, places = threads.agent, threads.address(fields[0], taken).tolist()
    for thread, address in zip(threads.threads[taken].tolist(), places, strict=True):
        barrier = threads.machine.barrier(address, threads.threads[taken])
        known = agent.knows(thread) | agent.copying.pop(thread, 0)
        if is_added:
            agent.own[thread] = agent.own.get(thread, 0) | barrier.add_arrival(known)
        else:
            barrier.update(1, 0, known, of_copies=True)


def add_or_move(threads: Threads, name: str, fields: tuple[str, ...], taken: Mask) -> None:
    """Sums of pairs of numbers, or 16 bytes of each thread, which must lie side by side, in any order."""
    name, _, kind = name.rpartition(".")
    if name == "add" and kind in _SUMS:
        left, right = (_read(threads, field, taken).astype(_SUMS[kind]) for field in fields[1:])
        _write(threads, fields[0], left + right, taken)
        return
    assert name in (_SEND, "ld.shared.v4"), f"unknown PTX: {name}.{kind}"
    assert taken.all(), "sums of some of the threads"
    place, registers = fields[:2] if name == _SEND else fields[1::-1]
    names = [each.strip() for each in registers.strip("{}").split(",")]
    addresses = threads.address(place, taken)
    order = np.argsort(addresses)
    start = int(addresses[order[0]])
    assert np.array_equal(addresses[order], start + 16 * np.arange(len(order))), "sums that are not side by side"
    if name == _SEND:
        data = np.stack([_read(threads, each, taken) for each in names], axis=1)[order].astype(_SUMS[kind])
        barrier = threads.one_address(fields[2], taken)
        threads.machine.send(start, data.reshape(-1).view(np.uint8), barrier, threads.known())
        return
    allocation, at = threads.machine.at(start)
    allocation.reads(threads.machine.cluster.new_bit(), at, 16 * len(order), threads.known())
    data = np.empty((len(order), 4), _SUMS[kind])
    data[order] = allocation.bytes[at : at + 16 * len(order)].view(_SUMS[kind]).reshape(-1, 4)
    for each, values in zip(names, data.T, strict=True):
        _write(threads, each, values, taken)


def _read(threads: Threads, name: str, taken: Mask) -> NDArray[Any]:
    if not name.startswith("$"):
        return threads.value(name, taken)
    acc, element = divmod(int(name[1:]), threads.accs[0].registers)
    return np.asarray(threads.accs[acc].values[threads.accs[acc].element(element, threads.threads)])


def _write(threads: Threads, name: str, values: NDArray[Any], taken: Mask) -> None:
    if not name.startswith("$"):
        threads.write(name, values, taken)
        return
    assert taken.all(), "sums of some of the threads"
    acc, element = divmod(int(name[1:]), threads.accs[0].registers)
    threads.accs[acc].values[threads.accs[acc].element(element, threads.threads)] = values
