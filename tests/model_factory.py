"""A model of times of one split, and how it was judged, as a file of `genkern train` has them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from genkern.gemm.problem import GemmProblem
from genkern.search.guided.judged import Judged
from genkern.search.guided.learned import Learned
from genkern.search.guided.trees import Trees

SQUARE = GemmProblem(64, 64, 64)
JUDGED = Judged.of([(SQUARE, 0.5)] * 4 + [(GemmProblem(64, 64, 64, row_major_a=False), 1.0)] * 2)


def of_wide_tiles(arch: str = "sm_90") -> Learned:
    """Of which the widest tiles are the fastest."""
    one = np.array([[0]], dtype=np.int16)
    sides = np.array([[~0]], dtype=np.int16), np.array([[~1]], dtype=np.int16)
    value = np.array([[5.0, 1.0]], dtype=np.float32)
    names, at = np.array(["log_bn"]), np.array([[6.5]], dtype=np.float32)
    return Learned(Trees(np.array(arch), names, one, at, *sides, value))


def model_file(folder: Path, judged: Judged | None = JUDGED) -> Path:
    """A model of sm_90 in `folder`."""
    data = io.BytesIO()
    of_wide_tiles().write(data)
    if judged is not None:
        judged.add_to(data)
    path = folder / "model.npz"
    path.write_bytes(data.getvalue())
    return path
