"""Learned: a model of times that `genkern train` makes, of regression trees and, if it has them, neural networks."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from genkern.errors import ResultsError
from genkern.file_io import open_regular
from genkern.search.guided.network import Network
from genkern.search.guided.trees import Numbers, Trees

# Exceptions of NumPy and zipfile for files that are damaged or are no model.
UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


@dataclass(frozen=True, eq=False)
class Learned:
    """A model of times: the trees alone, or the mean of the trees and each of the networks."""

    trees: Trees
    network: Network | None = None

    @property
    def arch(self) -> str:
        """The architecture of the times with which the model was trained."""
        return str(self.trees.arch)

    def octaves(self, columns: Mapping[str, Numbers], of_trees: Numbers) -> Numbers:
        """Return log2 of the times [rows] of one size, up to a constant that depends on the size.

        `of_trees` [rows] are the predictions of the trees for the same rows.
        """
        if self.network is None:
            return of_trees
        # Each model has its own additive constant, which changes only the constant of the mean.
        networks = self.network.count
        return (of_trees + networks * self.network.octaves(columns)) / (1 + networks)

    def write(self, file: BinaryIO) -> None:
        """Write the model as an .npz file."""
        arrays: dict[str, Any] = self.trees.arrays() | (self.network.arrays() if self.network else {})
        np.savez_compressed(file, **arrays)

    @classmethod
    def read(cls, path: str | Path) -> Learned:
        """Read and validate a model. Raises ResultsError if the file is no valid model."""
        try:
            with open(path, "rb", opener=open_regular) as data, np.load(data, allow_pickle=False) as file:
                return cls(Trees.of(file), Network.of(file))
        except UNREADABLE as error:
            raise ResultsError(f"{path}: no model of times ({error}); make one with genkern train") from None
