"""What a fresh process pays: imports, its first dispatched call; and what packing results takes.

    python -m benchmarks.serving.start_up [--bundle BUNDLE] [--results results/nvidia_h200/*.yaml] [--processes 5]

Imports: PyTorch, then genkern's dispatcher over it, in one process; and genkern with `tuned_gemm` where no PyTorch is
imported. With --bundle and a GPU, the first call of a process whose PyTorch has a context, to the end of its work, and
the second one: dispatched, and torch.mm. With --results, `genkern pack` of them all, into an empty cache and again with
everything in it. Processes of all kinds take turns, and medians are printed. import_s is that of the dispatcher.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import genkern
from benchmarks.common.figures import table
from benchmarks.common.kept import Kept
from benchmarks.common.rounds import Limit
from genkern.errors import ResultsError
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import read_bundle

ROOT = str(Path(genkern.__file__).parent.parent)
_START = "import json, time; start = time.perf_counter(); "
_END = "; print(json.dumps(found))"
IMPORTS = {
    "dispatcher": _START + "import torch; torch_s = time.perf_counter() - start; start = time.perf_counter(); "
    "from genkern import tuned_gemm; tuned_gemm.gemm_a16w16; "
    "found = {'torch': torch_s, 'dispatcher over torch': time.perf_counter() - start}" + _END,
    "alone": _START + "import sys, genkern; from genkern import tuned_gemm; assert 'torch' not in sys.modules; "
    "found = {'genkern without torch': time.perf_counter() - start}" + _END,
}
_OPERANDS = (
    "import json, time, torch; x = torch.randn({M}, {K}, dtype=torch.bfloat16, device='cuda'); "
    "weight = torch.randn({N}, {K}, dtype=torch.bfloat16, device='cuda'); {imports}; torch.cuda.synchronize(); "
    "times = [time.perf_counter()]\n"
    "with torch.no_grad():\n"
    "    for _ in range(2): {call}; torch.cuda.synchronize(); times.append(time.perf_counter())\n"
    "print(json.dumps({{'{who}, first call': times[1] - times[0], '{who}, second call': times[2] - times[1]}}))"
)


def first_calls(winner: Result) -> dict[str, str]:
    """Programs that make the first calls of a process: dispatched ones, and torch.mm."""
    size = {name: getattr(winner.problem, name) for name in "MNK"}
    of_us = _OPERANDS.format(
        **size, imports="from genkern import tuned_gemm", call="tuned_gemm.gemm_a16w16(x, weight)", who="dispatched"
    )
    return {
        "dispatched": of_us,
        "torch.mm": _OPERANDS.format(**size, imports="pass", call="torch.mm(x, weight.mT)", who="torch.mm"),
    }


def median_s(programs: Mapping[str, str], processes: int, environ: Mapping[str, str], limit: Limit) -> dict[str, float]:
    """What they print, in seconds: medians over so many processes of each, after one that fills the disk's cache.

    With the limit's end no process is begun: what only ran for the disk, or not at all, is left out.
    """
    found: dict[str, list[float]] = {}
    for turn in range(processes + 1):
        for program in programs.values():
            if limit.is_over:
                break
            done = subprocess.run(
                [sys.executable, "-c", program], env=dict(environ), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise ResultsError(f"a process failed: {done.stderr.strip().splitlines()[-1:]}")
            for name, taken_s in json.loads(done.stdout.splitlines()[-1]).items():
                found.setdefault(name, [])
                if turn:
                    found[name].append(taken_s)
    return {name: median(taken) for name, taken in found.items() if taken}


def packed(results: Sequence[str], jobs: int, folder: Path, bundle: Path) -> dict[str, float]:
    """Seconds of packing all results, cold and again, bytes of the bundle that is left, and winners in it."""
    cache = folder / "cache"
    argv = [sys.executable, "-m", "genkern", "pack", *results, "-o", str(bundle), "--overwrite", "--no_proofs"]
    argv += ["--jobs", str(jobs), "--cache_dir", str(cache)]
    found = {}
    for name in ("pack, empty cache, s", "pack, all in the cache, s"):
        started_s = time.perf_counter()
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=own_environ())
        found[name] = time.perf_counter() - started_s
        if not bundle.exists():
            raise ResultsError(f"pack failed: {done.stderr.strip().splitlines()[-1:]}")
    found["bytes of the bundle"] = float(bundle.stat().st_size)
    found["winners in it"] = float(len(read_bundle(str(bundle)).winners))
    return found


def own_environ(**more: str) -> dict[str, str]:
    """That of a process which imports this genkern and is told nothing else."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GENKERN_", "AITER_"))}
    paths = [ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), **more}


def report(found: Mapping[str, float]) -> str:
    """Markdown: a line a figure."""
    rows = [
        (name, f"{value:,.0f}" if value == int(value) and value > 10 else f"{value:.4f}")
        for name, value in found.items()
    ]
    return table(("what", "s, bytes or a number"), rows)


def key_line(found: Mapping[str, float]) -> str:
    """The key of results/figures.yaml."""
    key = found.get("dispatcher over torch")
    return f"import_s: {'-' if key is None else f'{key:.3f}'}"


def run(argv: Sequence[str]) -> str:
    """What is printed. Raises ResultsError."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", help="of the first call, which is of its first winner with kernels")
    parser.add_argument("--results", nargs="+", default=[], help="results files to pack")
    parser.add_argument("--keep", metavar="FILE", help="the bundle that is packed (default: it goes away)")
    parser.add_argument("--jobs", type=int, default=-1, help="processes that compile (default: a core each)")
    parser.add_argument("--processes", type=int, default=5, help="of each kind (default: 5), 0 for packing alone")
    parser.add_argument("-o", "--output", help="JSON lines, added at once")
    parser.add_argument("--limit_s", type=float, default=float("inf"), help="begin nothing after so many seconds")
    arguments = parser.parse_args(argv)
    limit, kept = Limit(arguments.limit_s), Kept(arguments.output)
    found: dict[str, float] = {}
    if arguments.processes:
        found |= kept.add("imports", median_s(IMPORTS, arguments.processes, own_environ(), limit))
        # Whoever ends what takes long has this already.
        print(key_line(found), flush=True)
    if arguments.bundle and arguments.processes and not limit.is_over:
        (winner, *_) = [winner for winner in read_bundle(arguments.bundle).winners if winner.choice == "config"]
        environ = own_environ(GENKERN_CONFIG=os.path.abspath(arguments.bundle))
        calls = median_s(first_calls(winner), arguments.processes, environ, limit)
        found |= kept.add("first calls", calls)
    if arguments.results and not limit.is_over:
        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(arguments.keep or Path(folder) / "all.genkern")
            found |= kept.add("pack", packed(arguments.results, arguments.jobs, Path(folder), bundle))
    return report(found)


def main() -> None:
    try:
        print(run(sys.argv[1:]))
    except ResultsError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
