"""Tests of genkern/safe_stdio.py: the command talks to whoever listens, and works on when nobody does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import environment
from long_tests import drawn
from tiny_space import TINY_AMD

COMMAND = [sys.executable, "-m", "genkern"]
WORK = [
    "-m",
    "16",
    "-n",
    "128",
    "-k",
    "256",
    "--arch",
    "gfx942",
    "--profiler",
    "predict",
    "--compile",
    "--space",
    TINY_AMD,
]


def shell(line: str, folder: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    """What `line` does, in which "$@" is the command with `argv`; its exit status is that of the command."""
    command = ["bash", "-c", line, "bash", *COMMAND, *map(str, argv)]
    options = {"cwd": folder, "env": environment(), "capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(command, **options, check=False)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    "line",
    drawn(
        [
            '"$@" >&-',
            '"$@" <&- >&-',
            '"$@" >&- 2>&-',
            '"$@" | true; exit ${PIPESTATUS[0]}',
            '"$@" 2>&1 | true; exit ${PIPESTATUS[0]}',
            '"$@" | head -1; exit ${PIPESTATUS[0]}',
        ],
        2,
    ),
)
def test_work_goes_on_without_a_reader(line: str, cache_dir: Path, tmp_path: Path) -> None:
    """Closed streams and readers that leave: the results are whole, the exit status is 0, and there is no complaint."""
    ran = shell(line, tmp_path, *WORK, "-v", "-o", "r.yaml", "--cache_dir", cache_dir)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len((tmp_path / "r.yaml").read_text().splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir() if "journal" in path.name] == ["r.yaml.journal.previous"]
    # None of what was said has found its way into a file.
    assert all(b"TFLOPS (predicted)" not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("line", drawn(['"$@" | head -1', '"$@" | true'], 1))
def test_what_is_for_the_reader_alone_ends_with_it(line: str, tmp_path: Path) -> None:
    """--explain of 5,000 sizes, which would take minutes, ends with the reader; status 0, and no complaint."""
    sizes = "".join(f"- {{M: {m}, N: 256, K: 512}}\n" for m in range(1, 5001))
    (tmp_path / "sizes.yaml").write_text(sizes)
    began_s = time.monotonic()
    argv = ["-i", "sizes.yaml", "--arch", "sm_90", "--explain"]
    ran = shell(f"{line}; exit ${{PIPESTATUS[0]}}", tmp_path, *argv)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert time.monotonic() - began_s < 60


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["status", "--help"]])
def test_help_without_a_reader(argv: list[str], tmp_path: Path) -> None:
    """As before: nothing on standard error, status 0."""
    ran = shell('"$@" | true; exit ${PIPESTATUS[0]}', tmp_path, *argv)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_full_disk_is_said_once(tmp_path: Path) -> None:
    """No traceback and no status of Python's own: one line, 2, and what else there was to do is done."""
    (tmp_path / "sizes.yaml").write_text("- {'M': 1, 'N': 2, 'K': 3}\n")
    for argv in (["--help"], ["merge", "sizes.yaml", "-o", "all.yaml"]):
        ran = shell('"$@" >/dev/full', tmp_path, *argv)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith("genkern: standard output could not be written completely (No space left")
        assert ran.stderr.count("\n") == 1
    assert (tmp_path / "all.yaml").exists()


def test_errors_have_their_status_without_a_reader(tmp_path: Path) -> None:
    """Standard error closed, or its reader gone: still 2, and no traceback elsewhere."""
    for line in ('"$@" 2>&-', '"$@" 2>&1 >&- | true; exit ${PIPESTATUS[0]}'):
        ran = shell(line, tmp_path, "-m", "16")
        assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", "")


def test_names_that_are_no_text_are_escaped(tmp_path: Path) -> None:
    """A byte that no encoding knows is no traceback."""
    name = os.fsdecode(b"no\xff.yaml")
    ran = subprocess.run([*COMMAND, "-i", name], cwd=tmp_path, env=environment(), capture_output=True, check=False)
    assert ran.returncode == 2
    assert b"no\\udcff.yaml" in ran.stderr
