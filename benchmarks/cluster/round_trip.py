"""Seconds from `sh submit.sh` to the results of all sizes, by a real Slurm of two nodes that is started here.

    python -m benchmarks.cluster.round_trip [--sizes 8] [--jobs 4] [--gpu] [--arch sm_90]

What Slurm and the starts of genkern cost: two kernels a size are compiled, in an array of so many jobs on four CPUs,
and without --gpu times are predicted. Needs root and apt-get, which installs Slurm (tests/slurm_machine.py).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from slurm_machine import slurm, why_not

_SPACE = """archs: [%s]
ops: [a16w16]
rules: []
families:
  - {family: tiled, BLOCK_SIZE_M: [16], BLOCK_SIZE_N: [32, 64], BLOCK_SIZE_K: [64], num_warps: [4], GROUP_SIZE_M: [1],
     SPLIT_K: [1], num_stages: [2]}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--arch", default="sm_90")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="genkern-slurm-") as name, slurm() as running:
        at = Path(name)
        (at / "sizes.yaml").write_text(
            "".join(f"- {{'M': {16 + i}, 'N': 64, 'K': 64}}\n" for i in range(options.sizes))
        )
        (at / "space.yaml").write_text(_SPACE % options.arch)
        command = [sys.executable, "-m", "genkern", "sbatch", "--arch", options.arch, "-i", "sizes.yaml", "-o", "work"]
        command += ["--space", "space.yaml", "--jobs", str(options.jobs), "--cpus", "1"]
        command += [] if options.gpu else ["--profiler", "predict"]
        root = str(Path(__file__).resolve().parents[2])
        environment = os.environ | running.environment | {"PYTHONPATH": root}
        subprocess.run(command, cwd=at, env=environment, check=True)
        started = time.perf_counter()
        done = subprocess.run(
            ["sh", "work/submit.sh"], cwd=at, env=environment, check=True, capture_output=True, text=True
        )
        logs = at / "work" / "logs"
        running.wait(done.stdout.split()[-1], lambda: "\n".join(path.read_text() for path in logs.glob("*.log")))
        took_s = time.perf_counter() - started
        rows = (at / "work" / "tuned.yaml").read_text().count("\n- ")
        assert rows == options.sizes, rows
    print(f"sbatch_roundtrip_s: {took_s:.1f} ({rows} sizes in {options.jobs} jobs; load {os.getloadavg()[0]:.1f})")


if __name__ == "__main__":
    main()
