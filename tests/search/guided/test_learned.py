"""Learned: a file gives the model back, what is no model is refused in one line, and networks share in what is said."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from model_factory import of_wide_tiles

from genkern.errors import ResultsError
from genkern.search.guided.learned import Learned
from genkern.search.guided.network import Network

COLUMNS = {"log_bn": np.array([6.0, 7.0])}
# Of the one input as it is, beyond 0.
NETWORK = Network(
    np.array(["log_bn"]),
    np.zeros(1, dtype=np.float32),
    np.ones(1, dtype=np.float32),
    (np.full((1, 1, 1), 2.0, dtype=np.float32),),
    (np.full((1, 1), -1.0, dtype=np.float32),),
)


def said_by(model: Learned) -> list[float]:
    octaves: list[float] = model.octaves(COLUMNS, model.trees.octaves(model.trees.leaves(COLUMNS))).tolist()
    return octaves


def written(model: Learned, path: Path) -> Path:
    data = io.BytesIO()
    model.write(data)
    path.write_bytes(data.getvalue())
    return path


def test_trees_and_networks_say_the_mean() -> None:
    trees = of_wide_tiles()
    assert said_by(trees) == [5.0, 1.0]
    # Inputs count as no farther than six deviations.
    assert said_by(replace(trees, network=NETWORK)) == [(5.0 + 11.0) / 2, (1.0 + 11.0) / 2]


@pytest.mark.parametrize("network", [None, NETWORK])
def test_a_file_gives_them_back(network: Network | None, tmp_path: Path) -> None:
    model = replace(of_wide_tiles(), network=network)
    again = Learned.read(written(model, tmp_path / "model.npz"))
    assert said_by(again) == said_by(model)
    assert again.arch == "sm_90"


def test_objects_are_not_loaded(tmp_path: Path) -> None:
    """Such a file would run code."""
    np.savez(tmp_path / "model.npz", names=np.array([{}], dtype=object))
    with pytest.raises(ResultsError, match="no model of times"):
        Learned.read(tmp_path / "model.npz")


def test_a_flipped_bit_is_read_or_refused(tmp_path: Path) -> None:
    """Whatever it hits: numbers, names of members, how they are packed."""
    whole = written(replace(of_wide_tiles(), network=NETWORK), tmp_path / "model.npz").read_bytes()
    refused = 0
    for bit in range(0, 8 * len(whole), 37):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / "model.npz").write_bytes(data)
        try:
            Learned.read(tmp_path / "model.npz")
        except ResultsError:
            refused += 1
    assert refused


def test_another_kind_of_array_file_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "model.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ResultsError, match="no model of times"):
        Learned.read(tmp_path / "model.npz")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"text"])
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.npz").write_bytes(data)
    with pytest.raises(ResultsError, match=r"model\.npz: .*genkern train"):
        Learned.read(tmp_path / "model.npz")


def test_damage_is_refused(tmp_path: Path) -> None:
    trees = of_wide_tiles()
    walks_nowhere = replace(trees, trees=replace(trees.trees, left=np.array([[0]], dtype=np.int16)))
    has_no_number = replace(trees, network=replace(NETWORK, centre=np.array([np.nan], dtype=np.float32)))
    for model in (walks_nowhere, has_no_number):
        with pytest.raises(ResultsError, match=r"model\.npz: .*genkern train"):
            Learned.read(written(model, tmp_path / "model.npz"))
