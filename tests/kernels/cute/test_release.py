"""Tests of genkern.kernels.cute.release: an optional extra, and where it is not installed."""

from __future__ import annotations

import configparser
import importlib.metadata
from pathlib import Path

import pytest

from genkern.kernels.cute import release

ROOT = Path(__file__).resolve().parents[3]


def test_the_pinned_version_is_the_extra_s() -> None:
    """A machine without CuTe DSL looks for the binaries of the one that setup.cfg installs."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert f"{release.DISTRIBUTION}[cu13]=={release.PINNED}" in setup["options.extras_require"]["cute"]


def test_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and names the version whose binaries are looked for."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    release.cute_installed.cache_clear()
    assert not release.cute_installed()
    assert release.cute_version() == release.PINNED
    assert ".[cute]" in release.MISSING
    release.cute_installed.cache_clear()


def test_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is in the addresses of what it compiles."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9")
    release.cute_installed.cache_clear()
    assert release.cute_installed()
    assert release.cute_version() == "9.9"
    release.cute_installed.cache_clear()
