"""Learned: a model of times as `genkern train` makes it: trees, and networks beside them."""

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
from genkern.files import regular
from genkern.search.guided.network import Network
from genkern.search.guided.trees import Numbers, Trees

# What NumPy and zipfile raise for files that are damaged, or others than what was written.
UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


@dataclass(frozen=True, eq=False)
class Learned:
    """`trees` alone, or the mean of what they and each network of `network` say."""

    trees: Trees
    network: Network | None = None

    @property
    def arch(self) -> str:
        """The architecture on whose times the model was trained."""
        return str(self.trees.arch)

    def octaves(self, columns: Mapping[str, Numbers], of_trees: Numbers) -> Numbers:
        """[rows]: log2 of time, up to a constant of the size, of rows of one size of which the trees say `of_trees`
        (`genkern.search.guided.passed` has walked them)."""
        if self.network is None:
            return of_trees
        # Each up to another constant, which does not matter.
        networks = self.network.count
        return (of_trees + networks * self.network.octaves(columns)) / (1 + networks)

    def write(self, file: BinaryIO) -> None:
        """Write the arrays, as NumPy has them (.npz)."""
        arrays: dict[str, Any] = self.trees.arrays() | (self.network.arrays() if self.network else {})
        np.savez_compressed(file, **arrays)

    @classmethod
    def read(cls, path: str | Path) -> Learned:
        """The model of a file. Raises ResultsError, one line, for what is none: its numbers are checked."""
        try:
            with open(path, "rb", opener=regular) as data, np.load(data, allow_pickle=False) as file:
                return cls(Trees.of(file), Network.of(file))
        except UNREADABLE as error:
            raise ResultsError(f"{path}: no model of times ({error}); make one with genkern train") from None
