"""Tests of runtime/backends/cublaslt_library.py: which libcublasLt is taken, and what is said where there is none."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from genkern.runtime.backends import cublaslt, cublaslt_library
from genkern.runtime.backends.cublaslt_api import Api
from genkern.runtime.backends.cublaslt_library import find, version_of
from genkern.runtime.backends.lt_api import LtError

NOTHING_LOADED = "/nowhere/maps"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages with a PyTorch for CUDA 13.0."""
    place = tmp_path / "site packages" / "torch" / "__init__.py"
    place.parent.mkdir(parents=True)
    place.write_text("raise RuntimeError('nobody imports this')\n")
    (place.parent / "version.py").write_text("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(place))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "torch" else None)
    return place.parent.parent


def add(site: Path, name: str) -> str:
    path = site / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


def test_what_is_loaded_comes_first(tmp_path: Path, site: Path) -> None:
    """Two versions of the library in one process would have two sets of kernels; its path may hold blanks."""
    add(site, "nvidia/cu13/lib/libcublasLt.so.13")
    maps = tmp_path / "maps"
    mapped = "/opt/my cuda/lib/libcublasLt.so.13.1.0.3"
    maps.write_text(
        "7f00-7f01 r--p 00000000 08:01 17    /usr/lib/libc.so.6\n7f02-7f03 rw-p 00000000 00:00 0\n"
        f"7f04-7f05 r-xp 00000000 08:01 18    {mapped}\n"
    )
    assert find(str(maps)) == (mapped, "")


def test_pytorchs_cublaslt_is_found_without_importing_pytorch(site: Path) -> None:
    """In the folder of its CUDA, whatever other CUDA has its wheels there; the folder of CUDA 12 has another name."""
    older = add(site, "nvidia/cublas/lib/libcublasLt.so.12")
    newer = add(site, "nvidia/cu13/lib/libcublasLt.so.13")
    assert find(NOTHING_LOADED) == (newer, "")
    (site / "torch" / "version.py").write_text("cuda = '12.8'\n")
    assert find(NOTHING_LOADED) == (older, "")


def test_a_system_library_goes_by_its_name(site: Path) -> None:
    """Where no wheel brings it, the loader knows, of this CUDA only."""
    assert find(NOTHING_LOADED) == ("libcublasLt.so.13", "")


@pytest.mark.parametrize("text", ["cuda: Optional[str] = None\n", "hip = '6.4'\n", ""])
def test_a_pytorch_without_cuda_brings_none(site: Path, text: str) -> None:
    """AMD's and the one for CPUs; the reason says so."""
    (site / "torch" / "version.py").write_text(text)
    assert find(NOTHING_LOADED) == ("", "this PyTorch is not built with CUDA, so it brings no libcublasLt")
    (site / "torch" / "version.py").unlink()
    assert version_of("cuda", site / "torch") == ""


def test_without_pytorch_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says what is missing."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find(NOTHING_LOADED) == ("", "PyTorch, which brings libcublasLt, is not installed")


def test_what_cannot_be_loaded_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake: Api) -> None:
    """No library, or one that lacks a function, is one line; one that is right is there."""
    broken = tmp_path / "libcublasLt.so.13"
    broken.write_text("no library\n")
    for path, why in ((str(broken), "cannot be used: "), ("libm.so.6", "cannot be used: ")):
        cublaslt_library.load.cache_clear()
        monkeypatch.setattr(cublaslt_library, "find", lambda path=path: (path, ""))
        assert why in cublaslt.BACKEND.available()
        assert "\n" not in cublaslt.BACKEND.available()
        with pytest.raises(LtError, match="cannot be used"):
            cublaslt.BACKEND.library()
    cublaslt_library.load.cache_clear()
    monkeypatch.setattr(cublaslt_library, "find", lambda: (fake.path, ""))
    assert cublaslt.BACKEND.available() == ""
    assert cublaslt.BACKEND.library().version == 131000
    cublaslt_library.load.cache_clear()
