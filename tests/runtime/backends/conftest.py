"""A cuBLASLt without a GPU, compiled from fake_cublaslt.c."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from genkern.runtime.backends.cublaslt_api import Api

SOURCE = Path(__file__).with_name("fake_cublaslt.c")
BuildFake = Callable[[int], Api]


@pytest.fixture(scope="session")
def build_fake(tmp_path_factory: pytest.TempPathFactory) -> BuildFake:
    """Compiles and loads the library of a version."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")

    def build(version: int) -> Api:
        path = tmp_path_factory.mktemp("cublaslt") / "libcublasLt.so.13"
        flags = ["-O1", "-shared", "-fPIC", f"-DVERSION={version}"]
        subprocess.run([compiler, *flags, "-o", str(path), str(SOURCE), "-lm"], check=True)
        return Api(str(path))

    return build


@pytest.fixture(scope="session")
def fake(build_fake: BuildFake) -> Api:
    """Version 13.10.0."""
    return build_fake(131000)
