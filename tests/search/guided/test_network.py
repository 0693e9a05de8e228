"""Network: NumPy says what PyTorch's layers say, whatever rows share, and arrays that do not fit are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from genkern.search.guided.network import Network

NAMES = ["same", "x", "y"]
WIDTHS = 3, 5, 4, 1


def network(count: int = 2) -> Network:
    random = np.random.default_rng(0)

    def some(*shape: int) -> Any:
        return random.normal(size=shape).astype(np.float32)

    pairs = list(pairwise(WIDTHS))
    weights, biases = tuple(some(count, a, b) for a, b in pairs), tuple(some(count, b) for _, b in pairs)
    return Network(np.array(NAMES), some(3), np.abs(some(3)) + np.float32(0.5), weights, biases)


def columns(rows: int = 40) -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {"same": np.full(rows, 0.7), "x": random.normal(size=rows) * 4.0, "y": random.normal(size=rows) * 40.0}


def said_by_torch(of: Network, given: dict[str, Any]) -> list[float]:
    rows = np.array([given[name] for name in NAMES]).T
    x = torch.tensor(np.clip((rows - of.centre) / of.spread, -6.0, 6.0), dtype=torch.float64)
    outputs = []
    for number in range(len(of.weights[0])):
        values = x
        for place, (weight, bias) in enumerate(zip(of.weights, of.biases, strict=True)):
            values = torch.nn.functional.silu(values) if place else values
            values = values @ torch.tensor(weight[number]).double() + torch.tensor(bias[number]).double()
        outputs.append(values[:, 0])
    said: list[float] = torch.stack(outputs).mean(dim=0).tolist()
    return said


def test_it_says_what_the_layers_say() -> None:
    of = network()
    assert of.octaves(columns()).tolist() == pytest.approx(said_by_torch(of, columns()), abs=2e-4)


def test_a_row_alone_and_a_feature_that_nobody_gives() -> None:
    of = network()
    row = {name: values[:1] for name, values in columns().items()}
    assert of.octaves(row).tolist() == pytest.approx(of.octaves(columns())[:1].tolist(), abs=2e-4)
    without = {name: values for name, values in columns().items() if name != "x"}
    zero = {**columns(), "x": np.zeros(40)}
    assert of.octaves(without).tolist() == of.octaves(zero).tolist()


def test_values_far_below_nought_are_no_overflow() -> None:
    low = replace(network(), biases=tuple(bias - np.float32(1e4) for bias in network().biases))
    with np.errstate(over="raise", invalid="raise"):
        assert np.isfinite(low.octaves(columns())).all()


def test_arrays_give_it_back() -> None:
    again = Network.of(network().arrays())
    assert again is not None
    assert again.octaves(columns()).tolist() == pytest.approx(network().octaves(columns()).tolist(), abs=0.02)
    assert Network.of({"feature": np.zeros(1)}) is None


def test_a_network_without_names_is_damaged() -> None:
    with pytest.raises(KeyError):
        Network.of({name: array for name, array in network().arrays().items() if name != "network_names"})


def test_many_rows_are_as_few() -> None:
    """They are not all multiplied at once."""
    of, given = network(), columns(1500)
    parts = [of.octaves({name: values[at : at + 300] for name, values in given.items()}) for at in range(0, 1500, 300)]
    assert of.octaves(given).tolist() == pytest.approx(np.concatenate(parts).tolist(), abs=2e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"names": np.array(["x"])},
        {"names": np.zeros(3)},
        {"names": np.array("x")},
        {"weights": tuple(np.float32(weight.sum()) for weight in network().weights)},
        {"biases": tuple(bias + np.float32(1e6) for bias in network().biases)},
        {"spread": np.zeros(3, dtype=np.float32)},
        {"centre": np.array([0.0, np.inf, 0.0], dtype=np.float32)},
        {"biases": tuple(bias.astype(np.float64) for bias in network().biases)},
        {"weights": (), "biases": ()},
        {"biases": tuple(bias[:1] for bias in network().biases)},
        {"weights": network().weights[:2], "biases": network().biases[:2]},
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError)):
        Network.of(replace(network(), **change).arrays())
