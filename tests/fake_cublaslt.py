"""A libcublasLt that computes on the host, compiled from fake_cublaslt.c."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from genkern.runtime.backends.cublaslt_api import Api

SOURCE = Path(__file__).with_suffix(".c")


def build(folder: Path, version: int = 131000) -> Api:
    """Compile and load the library of a version; without a C compiler the test is skipped."""
    return Api(str(compiled(SOURCE, folder / "libcublasLt.so.13", [f"-DVERSION={version}"])))


def compiled(source: Path, path: Path, flags: Sequence[str]) -> Path:
    """The library in a file of this name; without a C compiler the test is skipped."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", *flags, "-o", str(path), str(source), "-lm"], check=True)
    return path
