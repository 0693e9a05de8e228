"""Tests of genkern.runtime.bundles.shipped_bundles: winners that come with the package."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from genkern.runtime.bundles import shipped_bundles
from genkern.runtime.bundles.bundle import write_bundle
from genkern.runtime.bundles.records import Contents
from genkern.runtime.calls.configuration import configuration
from genkern.runtime.process.bundle_sources import Sources


def test_a_word_stands_for_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among other paths, for all formats and for one; the bundle is read as any other."""
    monkeypatch.setattr(shipped_bundles, "FOLDER", tmp_path)
    place = str(tmp_path / "nvidia_h200.genkern")
    write_bundle(place, Contents((), {}), {})
    (tmp_path / "README").write_text("none")
    said = configuration(
        {"GENKERN_CONFIG": os.pathsep.join(["mine.genkern", "shipped"]), "GENKERN_CONFIG_A8W8": "shipped"}
    )
    assert said.notes == ()
    assert said.paths == ("mine.genkern", place)
    assert said.paths_of("a8w8") == (place, "mine.genkern")
    (bundle,) = Sources(lambda line: None).bundles([place])
    assert bundle.where.endswith("nvidia_h200.genkern")


def test_a_checkout_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and all calls are the library's."""
    monkeypatch.setattr(shipped_bundles, "FOLDER", tmp_path)
    said = configuration({"GENKERN_CONFIG": "shipped"})
    assert said.paths == ()
    assert said.notes == (
        "GENKERN_CONFIG=shipped: this genkern was installed without winners (`make bundle` makes them)",
    )
    assert configuration({"GENKERN_CONFIG": "./shipped"}).paths == ("./shipped",)
