"""`load`: the winners of a results file or a bundle."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from genkern.api.options import StrPath
from genkern.api.pieces import Pieces, kind_suffix, rows_and_text
from genkern.api.result import TunedKernel, TuningResult
from genkern.errors import InputError, ResultsError
from genkern.files.config_entry import parse_config
from genkern.files.gemm_entry import GemmDefaults
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import SUFFIX, is_bundle, read_bundle


def load(path: StrPath) -> TuningResult:
    """Read winners from a results file or a bundle.

    Args:
        path (str or Path): results (YAML of genkern and tune_gemm, AITER's tuned CSV) or a bundle (*.genkern). Values
            of a file are data, which is checked and never executed.

    Returns:
        TuningResult: all rows of the file, whatever their device. Its winners can be called on a GPU of their device;
            rows of other libraries' kernels cannot.

    Raises:
        ResultsError: a ValueError: the file cannot be read, is none of these, or is damaged. The message is one line.

    Example::

        result = genkern.load("tuned.yaml")
        result.to_pandas().sort_values("speedup")
        y = genkern.load("winners.genkern").winner(16, 4096, 4096)(x, weight)
    """
    name = os.path.expanduser(os.fspath(path))
    if is_bundle(name):
        bundle = read_bundle(name)
        pieces = Pieces(SUFFIX, bundle=bundle)
        rows = [_with_config(winner, bundle.where) for winner in bundle.winners]
    else:
        rows, text = rows_and_text(name, GemmDefaults())
        pieces = Pieces(kind_suffix(name), text, predicted=any(row.predicted for row in rows))
    return TuningResult(tuple(TunedKernel(row, pieces) for row in rows), {}, (), Path(path), pieces)


def _with_config(winner: Result, where: str) -> Result:
    """Return a bundle's winner with its config, of which a bundle keeps the name."""
    if not winner.kernel_name:
        return winner
    try:
        return replace(winner, config=parse_config(winner.kernel_name), kernel_name="")
    except InputError as error:
        raise ResultsError(f"{where}: {error}") from None
