"""The Makefile: what it asks Python is answered by the package as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_what_make_asks_python_is_answered() -> None:
    """Every program in one line of the Makefile runs: `make tune` asks so for the GPU of the machine."""
    programs = re.findall(r"\$\(PY\) -c '([^']+)'", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert programs
    for program in programs:
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
