"""A run on a machine that is not here: real drivers, whose compiles and measurements sleep for as long as recorded.

    python -m benchmarks.timeline.pretended [--sizes 20] [--gpus 1] [--cores 16] [--slower 2] [--traced FOLDER]

Sizes are TN sizes of an H200's recorded table, which knows how long each compile and each first measurement took and
what came of it. Compiles sleep in `cores` workers, the measured process sleeps too: `_STAGES` has what the other
requests take, as functions of the best call's microseconds (fitted to runs on an H100, profiled by
benchmarks.timeline.traced). All takes `slower` times as long, so that Python on few cores does not count for more than
it would; seconds are divided by that. Two measurements of one GPU at the same time end the run.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).resolve().parents[2] / "results" / "recorded" / "nvidia_h200_2026_11_26.parquet"
_START_S, _OPEN_S = 5.0, 0.06
# Seconds of a request by the best call's microseconds.
_STAGES: Mapping[str, Callable[[float], float]] = {
    "semifinal": lambda us: 0.32 + 8e-4 * us,
    "retime": lambda us: 0.25 + 0.19 * math.log2(max(us, 8.0) / 8.0),
    "confirm": lambda us: 0.1 + 0.05 * math.log2(max(us, 8.0) / 8.0),
    "check": lambda us: 0.012,
}


def main() -> int:
    own, others = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, others = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=20)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--cores", type=int, default=16, help="for each GPU")
    parser.add_argument("--slower", type=float, default=2.0)
    parser.add_argument("--traced", help="a folder for benchmarks.timeline.traced")
    options = parser.parse_args(own)
    with tempfile.TemporaryDirectory(prefix="genkern-pretended-") as name:
        folder = Path(name)
        sizes = _write_truth(folder, options.sizes)
        (folder / "sizes.yaml").write_text(sizes)
        site = folder / "site"
        site.mkdir()
        here = str(Path(__file__).resolve())
        (site / "sitecustomize.py").write_text(
            "import importlib.util as u\n"
            f"s = u.spec_from_file_location('genkern_pretended', {here!r})\n"
            "m = u.module_from_spec(s); s.loader.exec_module(m); m.pretend()\n"
        )
        listing = "".join(f"{i}, NVIDIA H200, 9.0, GPU-0{i}, 580.159.04, 1980, 3201\\n" for i in range(options.gpus))
        programs = folder / "programs"
        programs.mkdir()
        (programs / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{listing}'\n")
        (programs / "nvidia-smi").chmod(0o755)
        what = {"folder": name, "slower": options.slower, "jobs": options.cores * options.gpus}
        environment = {**os.environ, "GENKERN_PRETENDED": json.dumps(what)}
        environment["PATH"] = f"{programs}:{environment['PATH']}"
        environment["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [environment.get("PYTHONPATH")])])
        arguments = ["-i", str(folder / "sizes.yaml"), "-o", str(folder / "results.yaml")]
        arguments += [
            "--cache_dir",
            str(folder / "cache"),
            "--ngpus",
            str(options.gpus),
            "--libtype",
            "triton,cute,torch",
            "-v",
        ]
        program = ["-m", "benchmarks.timeline.traced", options.traced, "--"] if options.traced else ["-m", "genkern"]
        started_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, *program, *arguments, *others],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        took_s = time.monotonic() - started_s
        if done.returncode:
            sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
        # From winner to winner: the first has the starts.
        times_s = [float(line) for line in (folder / "won").read_text().split()]
        further_s = (times_s[-1] - times_s[0]) / max(1, len(times_s) - 1)
        binaries = next(line for line in done.stdout.splitlines() if line.startswith("binaries: "))
        loss = _loss(folder / "results.yaml", folder)
        slower, first_s = options.slower, (times_s[0] - started_s) / options.slower
        print(f"{options.gpus} GPUs, {options.sizes} sizes: {took_s / slower:.1f} s; first {first_s:.1f}")
        print(f"a further size: {further_s / slower:.2f} s; {binaries}; mean loss {loss:.2%}")
    return 0


def _write_truth(folder: Path, count: int) -> str:
    from genkern.recorded.reading import recorded_problems

    found = [
        each
        for each in recorded_problems(str(_TABLE))
        if each.problem.op == "a16w16"
        and each.problem.layout == "TN"
        and not each.problem.bias
        and min(each.problem.N, each.problem.K) >= 512
    ]
    # Not sorted by M, as lists seldom are.
    found.sort(key=lambda each: zlib.crc32(each.problem.name.encode()))
    text, truth = "", {}
    for each in found[:count]:
        problem = each.problem
        text += f"- {{'M': {problem.M}, 'N': {problem.N}, 'K': {problem.K}, 'dtype_a': 'bf16'}}\n"
        us = {config.name: us for config, us in each.us.items()}
        truth[problem.size] = us, {config.name: ms for config, ms in each.took_ms.items()}, min(us.values())
    compile_s = sorted(s for each in found for s in each.compile_s.values())
    (folder / "truth.pickle").write_bytes(pickle.dumps((truth, compile_s[:: max(1, len(compile_s) // 5000)])))
    return text


def _loss(results: Path, folder: Path) -> float:
    truth, _ = pickle.loads((folder / "truth.pickle").read_bytes())
    from genkern.formats.kind import read_results

    losses = []
    for row in read_results(str(results)):
        us, _, best = truth[row.problem.size]
        losses.append(us.get(row.config.name, 2 * best) / best - 1)
    return sum(losses) / len(losses)


# In the processes of the run.


def pretend() -> None:
    """Make this process one of the pretended machine."""
    jobs = _what()["jobs"]
    os.sched_getaffinity = lambda pid: set(range(jobs))
    if "genkern.profiling.harness" in sys.orig_argv:
        try:
            _serve()
        finally:
            os._exit(0)
    import importlib.abc
    import importlib.util

    class Loader(importlib.abc.Loader):
        def __init__(self, loader, after):
            self.loader, self.after = loader, after

        def create_module(self, spec):
            return self.loader.create_module(spec)

        def exec_module(self, module):
            self.loader.exec_module(module)
            self.after(module)

        def __getattr__(self, name):
            return getattr(self.loader, name)

    class Finder(importlib.abc.MetaPathFinder):
        inside = False

        def find_spec(self, name, path=None, target=None):
            if name not in _CHANGED or self.inside:
                return None
            self.inside = True
            spec = importlib.util.find_spec(name)
            self.inside = False
            spec.loader = Loader(spec.loader, _CHANGED[name])
            return spec

    sys.meta_path.insert(0, Finder())


def _what() -> dict[str, Any]:
    return json.loads(os.environ["GENKERN_PRETENDED"])


def _sleeping_pool(module: Any) -> None:
    """The farm's pool: workers are threads that sleep."""
    from concurrent.futures import Future, ThreadPoolExecutor

    what = _what()
    _, compile_s = pickle.loads((Path(what["folder"]) / "truth.pickle").read_bytes())
    workers = None

    def compiled(job: Any) -> Any:
        from genkern.farm.cache import BinaryCache
        from genkern.gemm.records import Resources

        drawn = zlib.crc32(job.key.encode()) % len(compile_s)
        time.sleep(compile_s[drawn] * what["slower"])
        resources = Resources(registers=128, spills=0, shared_bytes=65536, code_sha256=job.key)
        files = {"kernel.cubin": job.key.encode(), "kernel.json": b"{}"}
        return BinaryCache(job.cache_dir).put(job.key, job.spec, job.spec.function, resources, files, compile_s[drawn])

    def begin(job: Any, count: int) -> Future[Any]:
        nonlocal workers
        workers = workers or ThreadPoolExecutor(count)
        return workers.submit(compiled, job)

    module.begin, module.end, module.warm = begin, lambda: None, lambda workers: []
    module.ready = lambda workers: Future()


def _no_space(module: Any) -> None:
    """CuTe DSL is taken to be installed."""
    module.cute_installed = lambda: True


def _winners_noted(module: Any) -> None:
    won = module.Facts.won

    def noted(self: Any, winner: Any) -> None:
        won(self, winner)
        with open(Path(_what()["folder"]) / "won", "a") as file:
            file.write(f"{time.monotonic()}\n")

    module.Facts.won = noted


_CHANGED = {
    "genkern.farm.pool": _sleeping_pool,
    "genkern.journal.journal": _winners_noted,
}


def _serve() -> None:
    """Speak the protocol of profiling/harness.py."""
    what = _what()
    folder, slower = Path(what["folder"]), what["slower"]
    began_s = time.monotonic()
    truth, _ = pickle.loads((folder / "truth.pickle").read_bytes())
    us: dict[str, float] = {}
    ms: dict[str, float] = {}
    best = 0.0
    environment = dict(os.environ)
    if "--wait" in sys.orig_argv and (line := sys.stdin.readline()):
        environment = json.loads(line)["environment"]
    alone = os.open(folder / f"gpu{environment.get('CUDA_VISIBLE_DEVICES', '0')}", os.O_CREAT | os.O_RDWR)

    def say(answer: Any) -> None:
        print(json.dumps(answer), flush=True)

    for line in sys.stdin:
        request = json.loads(line)
        command = request["command"]
        if command == "start":
            time.sleep(max(0.0, _START_S * slower - (time.monotonic() - began_s)))
            say({})
            continue
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say({"bug": "two measurements at once", "details": ""})
            continue
        begin_s = time.monotonic()
        count = 1
        if command == "open":
            time.sleep(max(0.0, _START_S * slower - (time.monotonic() - began_s)) + _OPEN_S * slower)
            problem = json.loads(request["session"])["problem"]
            us, ms, best = truth["{M}x{N}x{K}".format(**problem)]
            answer: Any = {"device": "pretended", "torch": "2.11", "copies": 1}
        elif command == "screen":
            count = len(request["configs"])
            for number, name in enumerate(request["configs"]):
                time.sleep(ms.get(name, 1.0) / 1000 * slower)
                known = us.get(name, 3 * best)
                answer = {"config": name, "samples_us": [known], "took_ms": ms.get(name, 1.0)}
                if number < count - 1:
                    say(answer)
        elif command == "retime":
            time.sleep(_STAGES["confirm" if request["confirm"] else "retime"](best) * slower)
            names = [entry["config"] for entry in request["candidates"]]
            times = {name: us.get(name, 3 * best) for name in names} | (
                {"vendor": 1.1 * best} if request["vendor"] else {}
            )
            samples = {name: [one * (1 + 1e-5 * i) for i in range(60)] for name, one in times.items()}
            answer = {
                "samples_us": samples,
                "errors": {},
                "discarded": dict.fromkeys(times, 0),
                "usual_mhz": 1755.0,
                "watts": 688.4,
            }
        elif command == "semifinal":
            time.sleep(_STAGES["semifinal"](best) * slower)
            names = sorted(
                (entry["config"] for entry in request["candidates"]), key=lambda name: us.get(name, 3 * best)
            )
            answer = {"fastest": names[: request["most"]]}
        elif command == "alike":
            time.sleep(_STAGES["check"](best) * slower)
            answer = {"alike": {}}
        else:
            time.sleep(_STAGES["check"](best) * slower)
            answer = {
                "config": request.get("config", ""),
                "error_ratio": 0.0,
                "worst_row_error": 0.0,
                "rounds": ["exact"],
                "passed": True,
                "message": "",
            }
        fcntl.flock(alone, fcntl.LOCK_UN)
        if trace := os.environ.get("GENKERN_TIMELINE"):
            with open(os.path.join(trace, f"{os.getpid()}.jsonl"), "a") as file:
                file.write(json.dumps([f"gpu {command}", begin_s, time.monotonic(), 0.0, {"count": count}]) + "\n")
        say(answer)


if __name__ == "__main__":
    sys.exit(main())
