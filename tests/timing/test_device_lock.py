"""Turns: of several processes that share a device one at a time uses it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from genkern.timing.device_lock import DeviceLock, holds_device

_FORK = multiprocessing.get_context("fork")


def _uses(path: str, times: int, told: str) -> None:
    device_lock = DeviceLock(path)
    for _ in range(times):
        with device_lock.hold(), device_lock.hold():
            for what in ("begins", "ends"):
                with open(told, "a") as file:
                    file.write(f"{os.getpid()} {what}\n")
                time.sleep(0.002)


def _holds(path: str, has_it: Event) -> None:
    with DeviceLock(path).hold():
        has_it.set()
        time.sleep(60)


def test_nobody_begins_before_another_has_ended(tmp_path: Path) -> None:
    """In three processes; who has the turn may take it once more."""
    told = tmp_path / "told"
    workers = [_FORK.Process(target=_uses, args=(str(tmp_path / "gpu"), 20, str(told))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    lines = [line.split() for line in told.read_text().splitlines()]
    assert len(lines) == 3 * 20 * 2
    for (first, begins), (second, ends) in zip(lines[::2], lines[1::2], strict=True):
        assert (first, begins, ends) == (second, "begins", "ends")
    assert len({pid for pid, _ in lines}) == 3


def test_a_killed_process_gives_its_turn_back(tmp_path: Path) -> None:
    """The others do not wait for one that is gone."""
    has_it = _FORK.Event()
    holder = _FORK.Process(target=_holds, args=(str(tmp_path / "gpu"), has_it))
    holder.start()
    assert has_it.wait(10)
    got_it = threading.Event()

    def take() -> None:
        with DeviceLock(str(tmp_path / "gpu")).hold():
            got_it.set()

    waiter = threading.Thread(target=take)
    waiter.start()
    assert not got_it.wait(0.1)
    os.kill(holder.pid or 0, signal.SIGKILL)
    assert got_it.wait(10)
    waiter.join()
    holder.join()


def test_a_device_of_ones_own_is_always_there(tmp_path: Path) -> None:
    """Without a file nobody waits for anybody, and a method holds it for all that it does."""

    class Uses:
        def __init__(self, device_lock: DeviceLock) -> None:
            self.device_lock = device_lock

        @holds_device
        def twice(self, number: int, *, more: int) -> int:
            return 2 * number + more

    assert Uses(DeviceLock()).twice(3, more=1) == 7
    shared = DeviceLock(str(tmp_path / "gpu"))
    assert Uses(shared).twice(3, more=1) == 7
    with DeviceLock(str(tmp_path / "gpu")).hold():
        assert Uses(DeviceLock()).twice(4, more=0) == 8
