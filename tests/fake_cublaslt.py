"""A libcublasLt that computes on the host, compiled from fake_cublaslt.c."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from genkern.runtime.backends.cublaslt_api import Api

SOURCE = Path(__file__).with_suffix(".c")


def build(folder: Path, version: int = 131000) -> Api:
    """Compile and load the library of a version; without a C compiler the test is skipped."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    path = folder / "libcublasLt.so.13"
    flags = ["-O1", "-shared", "-fPIC", f"-DVERSION={version}"]
    subprocess.run([compiler, *flags, "-o", str(path), str(SOURCE), "-lm"], check=True)
    return Api(str(path))
