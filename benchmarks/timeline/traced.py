"""A run of genkern of which every process notes what it does.

    python -m benchmarks.timeline.traced FOLDER -- genkern's options

FOLDER gets the notes (a file a process, `hooks`) and, every 20 ms, the CPU seconds that the machine has spent; what is
printed is genkern's. `benchmarks.timeline.table FOLDER` says where the time went.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

_SAMPLE_S = 0.02
# What Python runs first in each process: the hooks, then the file of this name that this one hides.
_HIDDEN = (
    "import importlib.machinery, importlib.util, os, sys",
    "def _run(name, path):",
    "    spec = importlib.util.spec_from_file_location(name, path)",
    "    module = importlib.util.module_from_spec(spec)",
    "    spec.loader.exec_module(module)",
    "    return module",
    "if os.environ.get('GENKERN_TIMELINE'):",
    "    _run('genkern_timeline_hooks', {hooks!r}).install()",
    "_spec = importlib.machinery.PathFinder.find_spec('sitecustomize', [p for p in sys.path if p != {site!r}])",
    "if _spec is not None and _spec.origin:",
    "    _run('sitecustomize_hidden', _spec.origin)",
    "",
)


def _busy_s() -> float:
    """CPU seconds that the machine has spent, of this container where it knows them apart."""
    try:
        with open("/sys/fs/cgroup/cpu.stat") as file:
            return int(dict(line.split() for line in file)["usage_usec"]) / 1e6
    except (OSError, KeyError, ValueError):
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, softirq, *_ = map(int, file.readline().split()[1:])
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _sample(folder: Path, ended: threading.Event) -> None:
    with open(folder / "cores.csv", "w") as file:
        while not ended.wait(_SAMPLE_S):
            file.write(f"{time.monotonic():.4f},{_busy_s():.4f}\n")


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    site = folder / "site"
    site.mkdir(exist_ok=True)
    hooks = Path(__file__).with_name("hooks.py")
    hidden = "\n".join(_HIDDEN).format(hooks=str(hooks), site=str(site.resolve()))
    (site / "sitecustomize.py").write_text(hidden)
    environment = {**os.environ, "GENKERN_TIMELINE": str(folder.resolve())}
    environment["PYTHONPATH"] = os.pathsep.join([str(site.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = threading.Event()
    sampler = threading.Thread(target=_sample, args=(folder, ended), daemon=True)
    sampler.start()
    started_s = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "genkern", *sys.argv[3:]], env=environment, check=False).returncode
    ended.set()
    (folder / "whole.json").write_text(
        json.dumps({"begin": started_s, "end": time.monotonic(), "code": code, "cores": os.cpu_count()})
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
