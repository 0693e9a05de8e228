"""The commands of docs/cluster.md that make a cache for a group, run as root or as whoever runs the tests."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

from cluster_page import commands
from command import environment
from other_users import GROUP

_STORE = """
import os
from genkern.compile.cache import BinaryCache, Failure
from genkern.gemm.records import Outcome
BinaryCache(os.environ["GENKERN_CACHE_DIR"] + "/binaries").put_failure(Failure("ab" * 32, Outcome.COMPILE_FAILED, "no"))
"""


def test_a_cache_for_a_group(tmp_path: Path) -> None:
    """What a member makes in it belongs to the group, whose members can write to it."""
    said = commands("A cache for a group")
    lines = [
        line.removeprefix("sudo ").replace("-g gemm", f"-g {_group()}").replace("/shared", shlex.quote(str(tmp_path)))
        for line in said
    ]
    done = subprocess.run(
        ["bash", "-ec", "\n".join([*lines, f"{shlex.quote(sys.executable)} -c {shlex.quote(_STORE)}"])],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (lines, done.stderr)
    made = [path for path in (tmp_path / "genkern").rglob("*") if path.name != ".unborn"]
    assert len(made) == 4
    for path in made:
        found = path.stat()
        assert found.st_gid == (tmp_path / "genkern").stat().st_gid == _group()
        assert stat.S_IMODE(found.st_mode) == (0o2775 if path.is_dir() else 0o664)


def _group() -> int:
    return GROUP if os.geteuid() == 0 else os.getegid()
