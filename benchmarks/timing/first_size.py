"""What somebody waits for the winner of one size: seconds from the start of the process to its end, nothing compiled.

    python -m benchmarks.timing.first_size input_sizes/held_out_3.yaml [--count 7] [--limit_s 100] [-- OPTIONS]

Of --count sizes, spread over the list, one after the other: `genkern -m M -n N -k K OPTIONS`, each with an empty cache
(OPTIONS: --compare --libtype triton,torch,cublaslt). Before them a size that is in none of the figures fills the
bytecode of Python, which an installed package has, and the host's file cache. Sizes are bf16, TN.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common.figures import median, table
from benchmarks.common.workbench import errors_end
from genkern.files.sizes import GemmDefaults, read_sizes
from genkern.gemm.problem import GemmProblem

OPTIONS = "--compare", "--libtype", "triton,torch,cublaslt"
# In no list of sizes.
WARMING = 40, 2048, 1024
# M, N, K.
Size = tuple[int, int, int]
# A size, a folder for its files: the seconds; None where there is no winner.
Seconds = Callable[[Size, Path], float | None]


def chosen(problems: Sequence[GemmProblem], count: int) -> list[Size]:
    """So many of the sizes, as far apart in the list as they can be, in its order."""
    count = min(count, len(problems))
    return [(p.M, p.N, p.K) for p in (problems[n * len(problems) // count] for n in range(count))]


def command(size: Size, folder: Path, options: Sequence[str]) -> list[str]:
    """What tunes the size with a cache in `folder`, where its results and what it prints go."""
    of_size = (part for name, value in zip("mnk", size, strict=True) for part in (f"-{name}", str(value)))
    own = ["-o", str(folder / "results.yaml"), "--cache_dir", str(folder / "cache"), "-v"]
    return [sys.executable, "-m", "genkern", *of_size, *options, *own]


def seconds_of(options: Sequence[str]) -> Seconds:
    """What measures a size by a process of its own, which keeps bytecode."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def seconds(size: Size, folder: Path) -> float | None:
        with (folder / "log.txt").open("w") as log:
            begun_s = time.perf_counter()
            argv = command(size, folder, options)
            done = subprocess.run(argv, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False)
            took_s = time.perf_counter() - begun_s
        if done.returncode:
            print((folder / "log.txt").read_text()[-1000:], file=sys.stderr)
            return None
        return took_s

    return seconds


def waited(sizes: Sequence[Size], seconds: Seconds, limit_s: float) -> dict[Size, float]:
    """The seconds of each size that has a winner; none is begun after `limit_s`."""
    begun_s, found = time.monotonic(), {}
    for place, size in enumerate((WARMING, *sizes)):
        if time.monotonic() - begun_s > limit_s:
            break
        with tempfile.TemporaryDirectory(prefix="genkern-first-") as folder:
            took_s = seconds(size, Path(folder))
        if place and took_s is not None:
            found[size] = took_s
    return found


def report(found: dict[Size, float], wanted: int) -> str:
    """Markdown: a line a size; the key of results/figures.yaml where all have a winner."""
    rows = [("x".join(map(str, size)), f"{took_s:.2f}") for size, took_s in found.items()]
    lines = [table(("size", "s"), rows), ""]
    if found and len(found) == wanted:
        took_s = list(found.values())
        spread = f"median of {wanted}, {min(took_s):.2f} to {max(took_s):.2f}"
        lines.append(f"guided_first_size_s: {median(took_s):.2f} ({spread})")
    else:
        lines.append(f"{len(found)} of {wanted} sizes")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", help="a list of sizes")
    parser.add_argument("--count", type=int, default=7, help="so many of them (default: 7)")
    parser.add_argument("--limit_s", type=float, default=100.0, help="begin none after so long (default: 100)")
    own, more = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, OPTIONS)
    options = parser.parse_args(own)
    with errors_end():
        sizes = chosen(read_sizes(options.sizes, GemmDefaults(), None).problems, options.count)
        found = waited(sizes, seconds_of(more), options.limit_s)
    print(report(found, len(sizes)))
    return 0 if len(found) == len(sizes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
