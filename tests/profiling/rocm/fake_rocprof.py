"""Plays three parts, by the name it is run under: `rocprofv3`, `rocprof`, and the harness that they start.

The profilers take only the options that genkern may use and refuse all others, as the real ones refuse what they
do not know. The harness launches nothing: it writes the launch log and the trace that a device would have left.
FAKE_ROCPROF in the environment holds its script, a JSON object with any of

    version   the format of the trace, a key of trace_formats.HEADERS, or "db"
    errors    {config: text}: launch errors
    deaths    {config: signal name}: the process dies while this config runs; a SIGABRT writes the trace first
    hangs     [config, ...]: the process stops there until a signal comes
    deaf      true: a hanging process ignores SIGTERM
    lost      {config: number of its dispatches that are missing in the trace}
    loses_after {config: number of its turns that the trace has; of later ones it has nothing}
    trace     "whole", "half", "none", "foreign" or "partial" (written also when it dies by SIGSEGV)
    at_start  text for standard error and an exit before anything runs
    ends_before  a config: the process dies by SIGSEGV before that one's first line in the log
    at_exit   signal name: dies after its last config, before the trace is written
    vendor    {symbol: ns}: the kernels of one call of the vendor library, instead of VENDOR_KERNELS
    lt        {algorithm: kernel's ns}: what the places of the library's algorithms are, in this order, and calls by
              name; without it the library has none
    clock_mhz [MHz, ...]: what the clock reads before each round of the finals and after the last; else nothing

In errors, deaths, hangs and lost "vendor" is the library, whose dispatches include the fences. What the trace lacks
has its number in the order of launches all the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, os.environ.get("FAKE_FORMATS", str(Path(__file__).parent)))
from trace_formats import ROCPROF, csv_text, write_rocpd

# A call of a library: what it fills, multiplies and adds up with. The first is a name that set-up has too.
VENDOR_KERNELS = {
    "__amd_rocclr_fillBufferAligned": 2100,
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1_SN_GSU4_LDSB1": 30300,
    "void Cijk_PostGSU<4, unsigned short>(unsigned short*, float const*)": 4050,
}
FENCE = "genkern_fence"


def duration_ns(config: str, call: int) -> int:
    """What the fake device takes for one kernel: different for each config and call."""
    return 1000 + zlib.crc32(config.encode()) % 90_000 + call


def _refuse(text: str) -> None:
    sys.stderr.write(f"fake profiler: Fatal error: {text}\n")
    sys.exit(1)


def rocprofv3(arguments: list[str]) -> None:
    """As the real one: sets the environment and becomes the program."""
    values: dict[str, str] = {}
    flags = set()
    while arguments and arguments[0] != "--":
        option = arguments.pop(0)
        if option == "--kernel-trace":
            flags.add(option)
        elif option in ("--output-format", "--log-level", "-d", "-o") and arguments:
            values[option] = arguments.pop(0)
        else:
            _refuse(f"unrecognized argument {option}")
    if not arguments or flags != {"--kernel-trace"} or set(values) != {"--output-format", "--log-level", "-d", "-o"}:
        _refuse(f"incomplete command line: {sys.argv}")
    if values["--output-format"] != "csv" or values["--log-level"] != "fatal" or not os.path.isdir(values["-d"]):
        _refuse(f"bad values: {values}")
    for name in os.environ:
        if name.startswith("ROCPROF_"):
            _refuse(f"{name} is set")
    program = arguments[1:]
    os.environ["FAKE_OUTPUT"] = os.path.join(values["-d"], values["-o"])
    os.execvp(program[0], program)


def rocprof(arguments: list[str]) -> None:
    """As rpl_run.sh: runs the program as a child, both outputs on one stream, and ends with 0 whatever happened."""
    if arguments[:6] != ["--stats", "--basenames", "on", "--timestamp", "on", "-o"]:
        _refuse(f"unknown options {arguments}")
    output, program = arguments[6], arguments[7:]
    os.environ["FAKE_OUTPUT"] = output
    subprocess.call(program, stderr=subprocess.STDOUT)


class Harness:
    """The measured process, with a device of its own imagination."""

    def __init__(self, job_path: str) -> None:
        self.job: dict[str, Any] = json.loads(Path(job_path).read_text())
        self.script: dict[str, Any] = json.loads(os.environ.get("FAKE_ROCPROF", "{}"))
        self.rows: list[tuple[str, int, int]] = []
        self.ids: dict[int, int] = {}
        self.time_ns = 1_000_000
        self.library_is_loaded = False
        self.turns: Counter[str] = Counter()
        assert self.job["mode"] == "launch"
        assert self.job["session"]["device_index"] == 0
        assert os.environ["HIP_VISIBLE_DEVICES"]

    def run(self) -> None:
        if "at_start" in self.script:
            sys.stderr.write(self.script["at_start"] + "\n")
            sys.exit(1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if self.script.get("deaf") else self.end_early)
        with open(self.job["launch_log"], "a", buffering=1) as log:
            under_way = None
            for entry in self.job["schedule"]:
                if entry["round"] != under_way:
                    under_way = entry["round"]
                    self.read_clock(log, under_way)
                if entry["config"] == self.script.get("ends_before"):
                    self.die("SIGSEGV")
                log.write(json.dumps({"config": entry["config"], "start": True}) + "\n")
                log.write(json.dumps({"config": entry["config"], **self.launch(entry)}) + "\n")
            if under_way is not None:
                self.read_clock(log, under_way + 1)
        if "at_exit" in self.script:
            self.die(self.script["at_exit"])
        self.write_trace()

    def read_clock(self, log: IO[str], before: int) -> None:
        readings = self.script.get("clock_mhz")
        log.write(json.dumps({"clock_mhz": readings[before] if readings else None, "round": before}) + "\n")

    def launch(self, entry: dict[str, Any]) -> dict[str, Any]:
        name, symbols = entry["config"], [os.path.basename(path) for path in entry["binaries"]]
        if name in self.script.get("errors", {}):
            return {"error": self.script["errors"][name]}
        self.execute("__amd_rocclr_fillBufferAligned.kd", 5000)
        kernels = dict.fromkeys(symbols)
        library = name.partition(" ")[0]
        is_library = library in ("vendor", "hipblaslt", "aiter")
        # Those of the place's library.
        of_all = self.script.get("lt", {})
        algorithms = {each: time_ns for each, time_ns in of_all.items() if each.startswith(library)}
        real = {}
        if is_library and name != "vendor":
            called = name if name in algorithms else dict(enumerate(algorithms)).get(int(name.split(" ")[-1]))
            if called is None:
                return {"error": "the library has no further algorithm for it"}
            symbols, kernels = [FENCE, FENCE], {FENCE: 1500, "Cijk_MT64x64x64": algorithms[called]}
            real = {"call": called} if called != name else {}
        elif name == "vendor":
            symbols, kernels = [FENCE, FENCE], {FENCE: 1500, **self.script.get("vendor", VENDOR_KERNELS)}
            if not self.library_is_loaded:
                for symbol in ("void at::native::distribution_normal<float>()", *list(kernels)[1:], "tune_once"):
                    self.execute(symbol, 777_000)
                self.library_is_loaded = True
        first = len(self.rows)
        for call in range(entry["calls"]):
            for symbol, time_ns in kernels.items():
                self.execute(symbol, time_ns or duration_ns(name, call))
            if is_library:
                self.execute(FENCE, 1500)
            if name in self.script.get("deaths", {}):
                sys.stderr.write(f"Memory access fault by {name}\n")
                self.die(self.script["deaths"][name])
            if name in self.script.get("hangs", []):
                time.sleep(300)
        self.turns[name] += 1
        if self.turns[name] > self.script.get("loses_after", {}).get(name, 10**9):
            del self.rows[first:]
        del self.rows[first : first + self.script.get("lost", {}).get(name, 0)]
        return {"symbols": symbols, "calls": entry["calls"], **real}

    def execute(self, symbol: str, time_ns: int) -> None:
        self.rows.append((symbol, self.time_ns, self.time_ns + time_ns))
        self.ids[self.time_ns] = len(self.ids) + 1
        self.time_ns += time_ns + 700

    def die(self, name: str) -> None:
        if name == "SIGABRT" or self.script.get("trace") == "partial":
            self.write_trace()
        sys.stderr.flush()
        os.kill(os.getpid(), signal.Signals[name])

    def end_early(self, *_: object) -> None:
        self.write_trace()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def write_trace(self) -> None:
        output, kind = os.environ["FAKE_OUTPUT"], self.script.get("trace", "whole")
        version = self.script.get("version", "7.0")
        if version == "db":
            write_rocpd(f"{output}_results.db", self.rows, dispatch_ids=self.numbers(self.rows))
            return
        path = output if version in ROCPROF else f"{output}_kernel_trace.csv"
        rows = self.rows[len(self.rows) // 2 :] + self.rows[: len(self.rows) // 2]  # not in time order
        text = csv_text(version, rows, self.numbers(rows))
        if kind == "foreign":
            text = '"Name","Calls","TotalDurationNs"\n"gemm",1,2\n'
        if kind == "half":
            text = csv_text(version, self.rows, self.numbers(self.rows))
            text = text[: len(text) // 2]
        if kind != "none" and self.rows:
            Path(path).write_text(text)

    def numbers(self, rows: list[tuple[str, int, int]]) -> list[int]:
        return [self.ids[start_ns] for _, start_ns, _ in rows]


if __name__ == "__main__":
    part = os.path.basename(sys.argv[0])
    if part == "rocprofv3":
        rocprofv3(sys.argv[1:])
    elif part == "rocprof":
        rocprof(sys.argv[1:])
    else:
        Harness(sys.argv[1]).run()
