"""What tests of the farm share: a compile process, and a module of kernels that make trouble."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from trouble_kernels import write_trouble

from genkern.farm.compiler import CompileProcess


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
