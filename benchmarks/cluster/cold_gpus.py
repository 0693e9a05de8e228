"""How much faster two GPUs tune sizes that nobody has tuned, with nothing in the cache.

    python -m benchmarks.cluster.cold_gpus [--sizes 40] [--gpus 1 2] [-- --libtype triton,torch,cublaslt]

The sizes are drawn from a seed. Each run begins with an empty cache and compiles beside its measurements; what follows
`--` goes to genkern. gpus2_speedup is the seconds of the run with one GPU over those with two, starts included.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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


def seconds(gpus: int, sizes: int, options: Sequence[str]) -> tuple[float, str]:
    """Of a run, with its line on binaries; it ends this program where a size has no winner."""
    with tempfile.TemporaryDirectory(prefix="genkern-cold-") as name:
        at = Path(name)
        (at / "sizes.yaml").write_text(sizes_text(sizes))
        command = [sys.executable, "-m", "genkern", "-i", str(at / "sizes.yaml"), "-o", str(at / "results.yaml")]
        command += ["--cache_dir", str(at / "cache"), "--ngpus", str(gpus), *options]
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        took_s = time.perf_counter() - started
    if done.returncode:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    return took_s, next(line for line in done.stdout.splitlines() if line.startswith("binaries: "))


def main() -> None:
    own, others = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, others = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=40)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args(own)
    took = {}
    rows = []
    for gpus in options.gpus:
        took[gpus], binaries = seconds(gpus, options.sizes, others)
        rows.append([gpus, f"{took[gpus]:.1f}", f"{took[gpus] / options.sizes:.2f}", binaries])
    print(table(["GPUs", "seconds", "a size", "binaries"], rows))
    for gpus in options.gpus[1:]:
        print(f"gpus{gpus}_speedup: {took[options.gpus[0]] / took[gpus]:.3f}")


if __name__ == "__main__":
    main()
