"""What tests of the farm share: a compile process, and a module of kernels that make trouble."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trouble_kernels import write_trouble

from genkern.compile.compiler import CompileProcess


@pytest.fixture(scope="module")
def process() -> Iterator[CompileProcess]:
    """One compile process for the tests that do not break it."""
    shared = CompileProcess()
    yield shared
    shared.kill()


@pytest.fixture
def trouble(hostile_path: Path) -> Path:
    """A module of kernels that make trouble when they are compiled, and one, `plain`, that does not."""
    return write_trouble(hostile_path)


@pytest.fixture
def small_files(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes small file systems, each with these options of tmpfs; skips the test if this user may not mount any."""
    made: list[Path] = []

    def make(options: str) -> Path:
        folder = tmp_path / f"small {len(made)}"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this user may not mount a file system")
        made.append(folder)
        return folder

    yield make
    for folder in made:
        subprocess.run(["umount", "-l", folder], check=True)
