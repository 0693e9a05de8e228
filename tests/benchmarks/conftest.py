"""The benchmarks are scripts that import each other by name, as Python does for the folder of a script."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Those of dispatched calls are tested with the runtime's stand-ins.
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "runtime")]
