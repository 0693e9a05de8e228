"""Makes any Python that finds this folder first on its path a machine of another kind; see `machines.py`.

MACHINE in the environment holds a JSON object with any of

    missing   packages that cannot be imported
    wrong     configs whose output is wrong
    other_bits   configs whose rows have other bits than the reference of their order
    alike     {call of a library: config}: whose bits it has
    faster    {config: microseconds}: times of configs; others take 100
    taken     a folder: the time of a config is another each time it is taken of a size, and often that of others
    apart     with `taken`: no two configs have times that tie; the names of all
    replay    a file: {size: {"screen", "retime" or "confirm": {config: microseconds}}}: the times to give
    gate      [number, file]: that process's measurement number `number` waits until the file is there; with a third
              value, only on the device of this number
    log       a file: the measured process adds a line for each config that it times
    trace     a file: the same as JSON, with device, size, process and time.monotonic()
    faults    {config: kind}: what the process does when it is to time the config; see `_fault`
    lt        {name: microseconds}: algorithms of the library that are among the finals where they are asked for
    broken    {device: number}: after so many measurements (by `trace`) every call on the device faults
    room      no file of any process may grow beyond so many bytes
    full      [folder, bytes]: below the folder no file can be written once the files there have so many bytes
    clock     "backwards": in every process, each reading of the wall clock is an hour before the last one
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import importlib.abc
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class _Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in MACHINE.get("missing", ()):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _serve() -> None:
    """Speak the protocol of profiling/harness.py."""
    screened = 0
    number, gate, *only = MACHINE.get("gate", (0, ""))
    if "--wait" in sys.orig_argv and (line := sys.stdin.readline()):
        TRACED["device"] = json.loads(line)["environment"]["CUDA_VISIBLE_DEVICES"]
    for line in sys.stdin:
        request = json.loads(line)
        name = request.get("config", "")
        answer: dict[str, Any] = {"device": "fake", "torch": "2.13", "copies": 1}
        if request["command"] == "open":
            problem = json.loads(request["session"])["problem"]
            TRACED["size"] = "{M}x{N}x{K}".format(**problem)
        elif request["command"] != "start" and _is_broken():
            _log("fault")
            _fault("illegal")
        elif request["command"] == "screen":
            for name in request["configs"]:
                if name != request["configs"][0]:
                    print(json.dumps(answer), flush=True)
                    if _is_broken():
                        _log("fault")
                        _fault("illegal")
                screened += 1
                if screened == number and (not only or only == [TRACED["device"]]):
                    _log("gate")
                    while not os.path.exists(gate):
                        time.sleep(0.01)
                _log(f"screen {name}")
                answer = {
                    "config": name,
                    "samples_us": [_us("screen", name)] * 3,
                    **_fault(MACHINE.get("faults", {}).get(name, "")),
                    **(MACHINE["bug"] if MACHINE.get("bug_in") == TRACED["size"] else {}),
                }
        elif request["command"] == "retime":
            names = [entry["config"] for entry in request["candidates"]] + ["vendor"]
            names += MACHINE.get("lt", {}) if request["lt"] else []
            names += request["algorithms"]
            stage = "confirm" if request["confirm"] else "retime"
            _log(stage)
            rounds = request["max_rounds"]
            times = {name: _us(stage, name) for name in names}
            samples = {name: [us * (1 + 1e-5 * i) for i in range(rounds)] for name, us in times.items()}
            answer = {
                "samples_us": samples,
                "errors": {},
                "discarded": dict.fromkeys(names, 0),
                "usual_mhz": 1755.0,
                "watts": 688.4,
            }
        elif request["command"] == "check":
            _log(f"check {name}")
            wrong = name in MACHINE.get("wrong", ())
            error = 0.9 if wrong else 0.0
            answer = {"config": name, "error_ratio": error, "worst_row_error": error, "rounds": []}
            answer |= {"passed": not wrong, "message": "C[0, 0] is 0, expected 1" if wrong else ""}
        elif request["command"] == "rows":
            _log(f"rows {name}")
            other = name in MACHINE.get("other_bits", ())
            answer = {"message": "a row has other bits" if other else "", "row_bits": "ab" * (not other)}
        elif request["command"] == "alike":
            configs = {entry["config"] for entry in request["candidates"]}
            alike = {call: MACHINE.get("alike", {}).get(call) for call in request["calls"]}
            answer = {"alike": {call: config for call, config in alike.items() if config in configs}}
        print(json.dumps(answer), flush=True)


def _fault(kind: str) -> dict[str, str]:
    """What a kernel may do to the process that launches it, and what is answered when the process survives it."""
    if kind == "hang":
        while True:
            pass
    elif kind == "segfault":
        ctypes.string_at(0)
    elif kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exits":
        os._exit(0)
    elif kind == "illegal":
        # As the harness does: after such an error the process is of no use any more.
        sys.stderr.write("CUDA error: an illegal memory access was encountered\n")
        sys.stderr.flush()
        os._exit(1)
    elif kind == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        bytearray(2**31)
    elif kind == "waits":
        while True:
            time.sleep(600)
    return {"error": "RuntimeError: out of resource: shared memory"} if kind == "refused" else {}


def _is_broken() -> bool:
    limit = MACHINE.get("broken", {}).get(TRACED["device"])
    if limit is None:
        return False
    with open(MACHINE["trace"], "a+") as file:
        file.seek(0)
        events = [json.loads(line) for line in file]
    return sum(e["device"] == TRACED["device"] and e["event"].startswith("screen") for e in events) >= limit


def _fill(folder: str, room_bytes: int) -> None:
    """A disk that is full, for whoever writes below `folder`."""
    real = io.open

    def limited(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        inside = isinstance(file, str | os.PathLike) and str(file).startswith(folder)
        if inside and set(mode) & set("wax+"):
            sizes = [path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()]
            if sum(sizes) >= room_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        return real(file, mode, *arguments, **options)

    io.open = builtins.open = limited


def _backwards() -> float:
    global _hours
    _hours += 1
    return _time() - 3600 * _hours


def _us(stage: str, name: str) -> float:
    if "replay" in MACHINE:
        with open(MACHINE["replay"]) as file:
            return float(json.load(file)[TRACED["size"]][stage][name])
    if "taken" in MACHINE and name != "vendor":
        with open(os.path.join(MACHINE["taken"], f"{TRACED['size']} {stage} {name}"), "ab") as file:
            file.write(b".")
            number = file.tell()
        drawn = zlib.crc32(f"{TRACED['size']} {stage} {name} {number}".encode())
        if names := MACHINE.get("apart"):
            # Times tie that are within 0.5 %.
            return float(100 * 1.01 ** (drawn % 20 * len(names) + names.index(name)))
        return 100.0 + drawn // 7 % 2 * 10
    if name in MACHINE.get("lt", {}):
        return float(MACHINE["lt"][name])
    return float(MACHINE.get("faster", {}).get(name, 150.0 if name == "vendor" else 100.0))


def _log(event: str) -> None:
    if "log" in MACHINE:
        with open(MACHINE["log"], "a") as file:
            file.write(f"{event}\n")
    if "trace" in MACHINE:
        with open(MACHINE["trace"], "a") as file:
            file.write(json.dumps({"event": event, **TRACED, "monotonic_s": time.monotonic()}) + "\n")


MACHINE = json.loads(os.environ.get("MACHINE", "{}"))
TRACED: dict[str, Any] = {"device": os.environ.get("CUDA_VISIBLE_DEVICES", "0"), "pid": os.getpid()}
_hours, _time = 0, time.time
if "room" in MACHINE:
    resource.setrlimit(resource.RLIMIT_FSIZE, (MACHINE["room"], MACHINE["room"]))
if "full" in MACHINE:
    _fill(*MACHINE["full"])
if MACHINE.get("clock") == "backwards":
    time.time = _backwards
sys.meta_path.insert(0, _Missing())
if "genkern.profiling.harness" in sys.orig_argv:
    try:
        _serve()
    except BaseException:  # Python would go on without us, and run the harness itself
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
