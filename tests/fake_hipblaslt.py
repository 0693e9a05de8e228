"""A libhipblaslt that computes on the host, compiled from fake_hipblaslt.c."""

from __future__ import annotations

from pathlib import Path

from fake_cublaslt import compiled

from genkern.runtime.backends.hipblaslt_api import Api


def build(folder: Path, old: bool = False) -> Api:
    """Compile and load the library, or an `old` one without what is C++; skipped without a C compiler."""
    source = Path(__file__).with_suffix(".c")
    return Api(str(compiled(source, folder / "libhipblaslt.so.1", ["-DOLD"] if old else [])))
