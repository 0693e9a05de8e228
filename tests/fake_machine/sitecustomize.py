"""Makes any Python that finds this folder first on its path a machine of another kind; see `machines.py`.

MACHINE in the environment holds a JSON object with any of

    missing   packages that cannot be imported
    wrong     configs whose output is wrong
    faster    {config: microseconds}: times of configs; others take 100
    gate      [number, file]: that process's measurement number `number` waits until the file is there
    log       a file: the measured process adds a line for each config that it times
"""

from __future__ import annotations

import importlib.abc
import json
import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
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
    number, gate = MACHINE.get("gate", (0, ""))
    for line in sys.stdin:
        request = json.loads(line)
        name = request.get("config", "")
        answer: dict[str, Any] = {"device": "fake", "torch": "2.13", "copies": 1}
        if request["command"] == "screen":
            screened += 1
            if screened == number:
                _log("gate")
                while not os.path.exists(gate):
                    time.sleep(0.01)
            _log(f"screen {name}")
            answer = {"config": name, "samples_us": [_us(name)] * 3}
        elif request["command"] == "retime":
            names = [entry["config"] for entry in request["candidates"]] + ["vendor"]
            _log("retime")
            rounds = request["max_rounds"]
            samples = {name: [_us(name) * (1 + 1e-5 * i) for i in range(rounds)] for name in names}
            answer = {"samples_us": samples, "errors": {}, "discarded": dict.fromkeys(names, 0), "rounds": rounds}
        elif request["command"] == "check":
            _log(f"check {name}")
            error = 0.9 if name in MACHINE.get("wrong", ()) else 0.0
            answer = {"config": name, "error_ratio": error, "worst_row_error": error}
        print(json.dumps(answer), flush=True)


def _us(name: str) -> float:
    return float(MACHINE.get("faster", {}).get(name, 150.0 if name == "vendor" else 100.0))


def _log(event: str) -> None:
    if "log" in MACHINE:
        with open(MACHINE["log"], "a") as file:
            file.write(f"{event}\n")


MACHINE = json.loads(os.environ.get("MACHINE", "{}"))
sys.meta_path.insert(0, _Missing())
if "genkern.profiling.harness" in sys.orig_argv:
    _serve()
    os._exit(0)
