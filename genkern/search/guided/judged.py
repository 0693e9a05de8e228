"""Judged: how fast a model's first choices were on recorded sizes that were not in its training data.

The arrays may be in the model's file: `genkern train` adds them if it judges the model.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

import numpy as np

from genkern.errors import ResultsError
from genkern.file_io import open_regular
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.learned import UNREADABLE
from genkern.search.guided.model import path_of

_SHARES, _KINDS = "judged_shares", "judged_kinds"
# For a kind with fewer sizes than this, the mean over all sizes is used.
_LEAST_OF_KIND = 4


@dataclass(frozen=True)
class Judged:
    """How a model was judged.

    shares: [sizes] time of the best config in the finals, over the time of the first choice of a model that was trained
        without the size; at most 1
    kinds: [sizes] number format and layout (`kind_of`)
    """

    shares: tuple[float, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, found: Iterable[tuple[GemmProblem, float]]) -> Judged:
        """Return the judgement from pairs of problem and share, at least one pair."""
        kinds, shares = zip(*((kind_of(problem), share) for problem, share in found), strict=True)
        return cls(shares, kinds)

    def share_for(self, problem: GemmProblem) -> float:
        """Return the geometric mean of the shares of the problem's kind, or of all sizes if the kind has few."""
        its = kind_of(problem)
        alike = [share for share, kind in zip(self.shares, self.kinds, strict=True) if kind == its]
        return _geomean(alike if len(alike) >= _LEAST_OF_KIND else self.shares)

    def __str__(self) -> str:
        p10 = np.quantile(self.shares, 0.1)
        return f"{_geomean(self.shares):.3f} in geomean, P10 {p10:.3f}, over {len(self.shares)} sizes"

    def add_to(self, file: BinaryIO) -> None:
        """Add the arrays to a model's file, after its own arrays."""
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as arrays:
            for name, array in ((_SHARES, np.array(self.shares, dtype=np.float32)), (_KINDS, np.array(self.kinds))):
                with arrays.open(f"{name}.npy", "w") as part:
                    np.lib.format.write_array(part, array, allow_pickle=False)

    @classmethod
    def read(cls, path: str) -> Judged | None:
        """Read the judgement from a model's file; None if there is none. Raises ResultsError for a damaged file."""
        try:
            with open(path, "rb", opener=open_regular) as data, np.load(data, allow_pickle=False) as file:
                if _SHARES not in file:
                    return None
                shares, kinds = file[_SHARES], file[_KINDS]
            right = shares.shape == kinds.shape == (len(shares),) and len(shares) and kinds.dtype.kind == "U"
            if not right or not ((shares > 0) & (shares <= 1)).all():
                raise ValueError("how it was judged makes no sense")
        except UNREADABLE as error:
            raise ResultsError(f"{path}: no model of times ({error}); make one with genkern train") from None
        return cls(tuple(shares.tolist()), tuple(kinds.tolist()))


def kind_of(problem: GemmProblem) -> str:
    """Return number format and layout: a model is better for kinds that it was trained on."""
    return f"{problem.op} {problem.layout}"


def judged_of(arch: str) -> Judged | None:
    """Return the judgement of an architecture's model; None without a model or judgement.

    Raises ResultsError for a damaged file.
    """
    path = path_of(arch)
    return None if path is None else _read(path)


def _geomean(shares: Iterable[float]) -> float:
    return float(np.exp(np.log(list(shares)).mean()))


@lru_cache(maxsize=8)
def _read(path: str) -> Judged | None:
    return Judged.read(path)
