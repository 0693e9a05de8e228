"""Judged: how good a model's first choices were, without any measurement, at recorded sizes that it did not know.

A file of a model may have it beside the model, as arrays: `genkern train` writes it where it judges what it trains.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

import numpy as np

from genkern.errors import ResultsError
from genkern.files import regular
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.learned import UNREADABLE
from genkern.search.guided.model import path_of

_SHARES, _KINDS = "judged_shares", "judged_kinds"
# Of fewer sizes of a kind than these all sizes tell more.
_LEAST_OF_KIND = 4


@dataclass(frozen=True)
class Judged:
    """`shares` [sizes]: the time of the best, by the finals, over that of the first choice of a model that was trained
    without the size; 1 at most. `kinds` [sizes]: format and layout of each, as `kind_of` says them.
    """

    shares: tuple[float, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, found: Iterable[tuple[GemmProblem, float]]) -> Judged:
        """Of sizes with their shares, at least one."""
        kinds, shares = zip(*((kind_of(problem), share) for problem, share in found), strict=True)
        return cls(shares, kinds)

    def share_for(self, problem: GemmProblem) -> float:
        """The geometric mean of the shares of sizes of the problem's kind, or of all where these are few."""
        its = kind_of(problem)
        alike = [share for share, kind in zip(self.shares, self.kinds, strict=True) if kind == its]
        return _geomean(alike if len(alike) >= _LEAST_OF_KIND else self.shares)

    def __str__(self) -> str:
        p10 = np.quantile(self.shares, 0.1)
        return f"{_geomean(self.shares):.3f} in geomean, P10 {p10:.3f}, over {len(self.shares)} sizes"

    def add_to(self, file: BinaryIO) -> None:
        """Add the arrays to a model that is written there, beside what it has."""
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as arrays:
            for name, array in ((_SHARES, np.array(self.shares, dtype=np.float32)), (_KINDS, np.array(self.kinds))):
                with arrays.open(f"{name}.npy", "w") as part:
                    np.lib.format.write_array(part, array, allow_pickle=False)

    @classmethod
    def read(cls, path: str) -> Judged | None:
        """What a file of a model has of it, None where it was not judged. Raises ResultsError for damage."""
        try:
            with open(path, "rb", opener=regular) as data, np.load(data, allow_pickle=False) as file:
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
    """Format and layout: how good a model is hangs on how many of those it has seen."""
    return f"{problem.op} {problem.layout}"


def judged_of(arch: str) -> Judged | None:
    """How the model for an architecture was judged; None where there is none, or nobody did. Raises ResultsError."""
    path = path_of(arch)
    return None if path is None else _read(path)


def _geomean(shares: Iterable[float]) -> float:
    return float(np.exp(np.log(list(shares)).mean()))


@lru_cache(maxsize=8)
def _read(path: str) -> Judged | None:
    return Judged.read(path)
