"""Speaks the protocol of profiling/harness.py without a GPU; a config's family says what it does to the process.

`good` answers; `hang`, `segfault`, `killed`, `exits`, `aborts`, `fault`, `garbage`, `nonsense`, `other`, `negative`,
`slow` and `refused` do so when screened, `wrong`, `senseless` and `unfit` when checked. With the prefix `final_` or
`check_` they do it there, with `once_final_` or `once_check_` the first time only, with `crowd_final_` only among other
finalists. A call takes BLOCK_SIZE_M us, but one of `told` as long as the best that it is told of.
What a session's init_type says: `broken` dies when opened, `refuse` does not fit, `lost` runs nothing,
`badvendor` cannot run the vendor library, `lt` has an algorithm of it besides, `badlt` cannot run that, `shy` dies when
it is to rehearse.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
import time
from typing import Any

_WORK_DIR = ""


def log(event: str) -> None:
    """Append to the work folder's log: process id and event."""
    with open(os.path.join(_WORK_DIR, "log"), "a") as file:
        file.write(f"{os.getpid()} {event}\n")


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def misbehave(kind: str) -> Any:
    """Do what `kind` says; returns what to answer when the process survives it."""
    if kind == "hang":
        time.sleep(600)
    elif kind == "segfault":
        ctypes.string_at(0)
    elif kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exits":
        os._exit(0)
    elif kind == "aborts":
        os.abort()
    elif kind == "fault":
        sys.stderr.write("Traceback\n  at line 3\nCUDA error: an illegal memory access was encountered\n")
        sys.stderr.flush()
        os._exit(1)
    elif kind == "garbage":
        print("<<< not JSON >>>", flush=True)
    elif kind == "nonsense":
        return [1, 2]
    elif kind == "other":
        return {"config": "another", "samples_us": [1.0]}
    elif kind == "negative":
        return {"samples_us": [-1.0], "samples": [-1.0]}
    elif kind == "wrong":
        return {"passed": False, "message": "C[0, 1] is 2, expected 3", "rounds": []}
    elif kind == "senseless":
        return {"passed": "yes"}
    elif kind == "slow":
        time.sleep(0.3)
    elif kind == "refused":
        return {"error": "OutOfResources: shared memory"}
    elif kind == "unfit":
        return {"no_memory": "OutOfMemoryError: CUDA out of memory"}
    return None


def kind_of(name: str, stage: str, crowd: bool) -> str:
    """What the config does at this stage."""
    family = name.partition("_BM")[0]
    if family.startswith(f"once_{stage}_"):
        marker = os.path.join(_WORK_DIR, f"did_{family}")
        if os.path.exists(marker):
            return "good"
        open(marker, "w").close()
        return family.removeprefix(f"once_{stage}_")
    if family.startswith(f"crowd_{stage}_"):
        return family.removeprefix(f"crowd_{stage}_") if crowd else "good"
    if stage == "screen":
        return family
    return family.removeprefix(f"{stage}_") if family.startswith(f"{stage}_") else "good"


def time_us(name: str) -> float:
    if name.startswith("cublaslt"):
        return 8.5
    return 9.0 if name == "vendor" else float(re.search(r"_BM(\d+)", name)[1])  # type: ignore[index]


def screen(request: dict[str, Any], init_type: str) -> None:
    for name in request["configs"]:
        if name.startswith("told"):
            say({"config": name, "samples_us": [request.get("best_us", 9.0)]})
            continue
        answer = misbehave("killed" if init_type == "lost" else kind_of(name, "screen", True))
        if isinstance(answer, dict):
            say({"config": name, **answer})
        else:
            say({"config": name, "samples_us": [time_us(name)]} if answer is None else answer)


def compared(request: dict[str, Any]) -> list[str]:
    return [each["config"] for each in request["candidates"] if each["same_bits"] and request["compared"]]


def retime(request: dict[str, Any], init_type: str) -> None:
    names = [entry["config"] for entry in request["candidates"]]
    names += ["vendor"] if request["vendor"] else []
    names += ["cublaslt 131000 " + "5a" * 64] if request["lt"] and init_type.endswith("lt") else []
    names += request["algorithms"]
    rounds = request["max_rounds"]
    log(f"{'confirm' if request['confirm'] else 'retime'} {len(names)} {request['min_rounds']} {rounds}")
    samples: dict[str, list[float]] = {}
    errors = {}
    for name in names:
        say({"running": name})
        kind = kind_of(name, "final", len(names) > 1)
        if init_type == "lost" or (name == "vendor" and init_type == "badvendor"):
            kind = "killed"
        if name.startswith("cublaslt") and init_type == "badlt":
            kind = "killed"
        answer = misbehave(kind)
        if kind == "refused":
            errors[name] = answer["error"]
        elif kind == "negative":
            samples[name] = answer["samples"]
        else:
            samples[name] = [time_us(name) + 0.001 * i for i in range(rounds)]
    say(
        {
            "samples_us": samples,
            "errors": errors,
            "wrong": {name: "as timed C[0, 0] is 1, alone 2" for name in compared(request) if "late" in name},
            "discarded": dict.fromkeys(samples, 2),
            "usual_mhz": 1755.0,
            "watts": 688.25,
        }
    )


def semifinal(request: dict[str, Any]) -> None:
    names = [entry["config"] for entry in request["candidates"]]
    for name in names:
        say({"running": name})
        misbehave(kind_of(name, "semifinal", True))
    say({"fastest": sorted(names, key=time_us)[: request["most"]]})


def check(request: dict[str, Any]) -> None:
    name = request["config"]
    answer = misbehave(kind_of(name, "check", True))
    right = {
        "passed": True,
        "message": "",
        "error_ratio": 0.01,
        "worst_row_error": 0.002,
        "rounds": ["exact", "random"],
    }
    say({"config": name, **right, **answer} if isinstance(answer, dict) else {"config": name, **right})


def main() -> None:
    global _WORK_DIR
    init_type = ""
    for line in sys.stdin:
        request = json.loads(line)
        if request["command"] == "open":
            session = json.loads(request["session"])
            _WORK_DIR, init_type = session["work_dir"], session["init_type"]
            log("open")
            if init_type == "broken":
                misbehave("fault")
            if init_type == "refuse":
                say({"config": "", "error": "OutOfMemoryError: CUDA out of memory"})
            else:
                say({"device": os.environ.get("CUDA_VISIBLE_DEVICES", ""), "torch": "2.13", "copies": 1})
        elif request["command"] == "start":
            # Where it makes its context a broken device is found out.
            if os.environ.get("BREAKS_AT") == "start":
                misbehave("fault")
            say({})
        elif request["command"] == "screen":
            screen(request, init_type)
        elif request["command"] == "retime":
            retime(request, init_type)
        elif request["command"] == "semifinal":
            semifinal(request)
        elif request["command"] == "rehearse":
            log(f"rehearse {request['what']}")
            if init_type == "shy":
                misbehave("killed")
            say({})
        else:
            check(request)


if __name__ == "__main__":
    main()
