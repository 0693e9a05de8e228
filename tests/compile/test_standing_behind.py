"""Owners of a farm that stand behind others, as sizes do that are prepared: what they leave free."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_gemms import TRITON_VERSION, target_of
from test_farm import HeldPool, Owner

from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm


def test_an_owner_behind_leaves_some_workers_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has what others leave but for a share, and that too once it comes forward."""
    pool = HeldPool(monkeypatch)
    farm = Farm(BinaryCache(tmp_path), target_of("gfx942"), TRITON_VERSION, jobs=4, timeout_s=1)
    following, measured = Owner(farm), Owner(farm)
    farm.set_background(following, background=True)
    following.order(*((n, f"next_{n}") for n in range(8)))
    pool.wait_for("next_0", "next_1", "next_2")
    measured.order((0, "a"), (1, "b"))
    pool.wait_for("next_0", "next_1", "next_2", "a", "b")
    for name in ("a", "next_0"):
        pool.end(farm, name)
    pool.wait_for("next_1", "next_2", "b")
    farm.set_background(following, background=False)
    pool.wait_for("next_1", "next_2", "b", "next_3", "next_4", "next_5")
    farm.close()
