"""Training of networks: they learn what times hang on, every size counts the same, and a seed gives one network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from genkern.recorded import training_network
from genkern.recorded.training_network import fitted

NAMES = ["size", "x", "y"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is little to learn here."""
    monkeypatch.setattr(training_network, "_HIDDEN", (32, 32))
    monkeypatch.setattr(training_network, "_RATE", 1e-2)


def sizes(counts: tuple[int, ...] = (400, 400, 60)) -> tuple[list[Any], list[Any]]:
    """Of each size rows of two features, and octaves above its best: a bowl whose bottom hangs on the size."""
    random = np.random.default_rng(0)
    matrices, octaves = [], []
    for place, count in enumerate(counts):
        x, y = random.uniform(-1, 1, size=(2, count))
        of = (x - 0.3 * place) ** 2 + 0.5 * y**2
        matrices.append(np.array([np.full(count, place), x, y]).T)
        octaves.append(of - of.min())
    return matrices, octaves


def columns(place: int) -> dict[str, Any]:
    x, y = (each.ravel() for each in np.meshgrid(np.linspace(-1, 1, 21), np.linspace(-1, 1, 21)))
    return {"size": np.full(len(x), place), "x": x, "y": y}


def test_a_network_learns_the_features_that_decide_times() -> None:
    """Of a size with few rows as of others."""
    network = fitted(*sizes(), NAMES)
    for place in range(3):
        of = columns(place)
        best = network.octaves(of).argmin()
        assert of["x"][best] == pytest.approx(0.3 * place, abs=0.31)
        assert of["y"][best] == pytest.approx(0.0, abs=0.31)


def test_a_seed_gives_one_network() -> None:
    said = [fitted(*sizes(), NAMES).octaves(columns(1)) for _ in range(2)]
    assert said[0].tolist() == said[1].tolist()


def test_one_size_of_one_row_is_enough() -> None:
    network = fitted([np.zeros((1, 3))], [np.zeros(1)], NAMES)
    assert np.isfinite(network.octaves(columns(0))).all()
