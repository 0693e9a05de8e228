"""How much faster two GPUs tune sizes that nobody has tuned, with nothing in the cache.

    python -m benchmarks.cluster.cold_gpus [--sizes 40] [--gpus 1 2] [--cores 16] [-- --libtype triton,torch,cublaslt]

The sizes are drawn from a seed. Each run begins with an empty cache and compiles beside its measurements; what follows
`--` goes to genkern. gpus2_speedup is the seconds of the run with one GPU over those with two, starts included. With
--cores all runs are at the same time, each on GPUs of its own and so many cores for each of these; the host needs the
GPUs and cores of all.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.figures import table

_ROWS = 1, 3, 16, 17, 64, 100, 128, 250, 500, 512, 1000, 2048, 3000, 4096
_SEED = 11


def sizes_text(count: int) -> str:
    """So many sizes as lists have them: whole and ragged M, weights of 1,024 to 14,336 rows and columns."""
    draw = random.Random(_SEED)
    drawn = [(draw.choice(_ROWS), 128 * draw.randint(8, 112), 128 * draw.randint(8, 112)) for _ in range(2 * count)]
    distinct = list(dict.fromkeys(drawn))[:count]
    return "".join(f"- {{'M': {m}, 'N': {n}, 'K': {k}, 'dtype_a': 'bf16'}}\n" for m, n, k in distinct)


@dataclass(frozen=True)
class Run:
    """Which GPUs and cores a run has; no `cores`: all of the host."""

    gpus: range
    cores: range = range(0)

    def seconds(self, sizes: int, options: Sequence[str]) -> tuple[float, str]:
        """Of a run, with its line on binaries; it ends this program where a size has no winner."""
        with tempfile.TemporaryDirectory(prefix="genkern-cold-") as name:
            at = Path(name)
            (at / "sizes.yaml").write_text(sizes_text(sizes))
            command = ["taskset", "--cpu-list", f"{self.cores[0]}-{self.cores[-1]}"] if self.cores else []
            command += [sys.executable, "-m", "genkern", "-i", str(at / "sizes.yaml"), "-o", str(at / "results.yaml")]
            command += ["--cache_dir", str(at / "cache"), "--gpu_ids", ",".join(map(str, self.gpus)), *options]
            started = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            took_s = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])
        return took_s, next(line for line in done.stdout.splitlines() if line.startswith("binaries: "))


def runs(gpus: Sequence[int], cores: int) -> list[Run]:
    """One for each number of GPUs; with `cores` for each of them, none has another's."""
    if not cores:
        return [Run(range(count)) for count in gpus]
    firsts = itertools.accumulate(gpus, initial=0)
    return [
        Run(range(first, first + count), range(cores * first, cores * (first + count)))
        for first, count in zip(firsts, gpus, strict=False)
    ]


def main() -> None:
    own, others = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, others = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=40)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cores", type=int, default=0)
    options = parser.parse_args(own)
    with ThreadPoolExecutor(len(options.gpus) if options.cores else 1) as pool:
        found = list(pool.map(lambda run: run.seconds(options.sizes, others), runs(options.gpus, options.cores)))
    took = dict(zip(options.gpus, (took_s for took_s, _ in found), strict=True))
    rows = [
        [gpus, f"{took_s:.1f}", f"{took_s / options.sizes:.2f}", binaries]
        for gpus, (took_s, binaries) in zip(options.gpus, found, strict=True)
    ]
    print(table(["GPUs", "seconds", "a size", "binaries"], rows))
    for gpus in options.gpus[1:]:
        print(f"gpus{gpus}_speedup: {took[options.gpus[0]] / took[gpus]:.3f}")


if __name__ == "__main__":
    main()
