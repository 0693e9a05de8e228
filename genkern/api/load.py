"""`load`: the winners of a results file or a bundle."""

from __future__ import annotations

import os
from pathlib import Path

from genkern.api.options import StrPath
from genkern.api.pieces import Pieces, kind_suffix, rows_and_text
from genkern.api.result import TunedKernel, TuningResult
from genkern.errors import InputError, ResultsError
from genkern.formats.gemm_entry import GemmDefaults
from genkern.formats.tuned_row import TunedRow, parse_config
from genkern.runtime.bundle import SUFFIX, is_bundle, read_bundle
from genkern.runtime.packed import PackedWinner


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
        rows = [_row(winner, bundle.where) for winner in bundle.winners]
    else:
        rows, text = rows_and_text(name, GemmDefaults())
        pieces = Pieces(kind_suffix(name), text, predicted=any(row.predicted for row in rows))
    return TuningResult(tuple(TunedKernel(row, pieces) for row in rows), {}, (), Path(path), pieces)


def _row(winner: PackedWinner, where: str) -> TunedRow:
    """Return a bundle's winner as a row of results; a bundle does not keep all of its fields."""
    try:
        config = parse_config(winner.config) if winner.config else None
    except InputError as error:
        raise ResultsError(f"{where}: {error}") from None
    return TunedRow(
        winner.problem,
        config,
        winner.time_us,
        winner.arch,
        winner.device,
        winner.time_source or None,
        dict(winner.versions),
        vendor_us=winner.library_us,
        torch_us=winner.torch_us,
        choice=winner.choice,
        compute_units=winner.compute_units,
        check=winner.check,
        vendor=winner.vendor,
        code=winner.code,
        batch_invariant=bool(winner.batch_invariant),
        sums=winner.batch_invariant,
    )
