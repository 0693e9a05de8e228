"""Judged: what a model's first choices were worth goes beside its trees, and comes back; damage is one line."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from model_factory import JUDGED, SQUARE, model_file, of_wide_tiles

from genkern.errors import ResultsError
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.judged import Judged, judged_of
from genkern.search.guided.learned import Learned
from genkern.search.guided.model import MODEL_VARIABLE


def test_it_lies_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_file(tmp_path)
    assert Learned.read(path).trees.value.tolist() == of_wide_tiles().trees.value.tolist()
    monkeypatch.setenv(MODEL_VARIABLE, str(path))
    assert judged_of("sm_90") == JUDGED
    assert judged_of("gfx942") is None


def test_a_model_that_nobody_judged_says_nothing(tmp_path: Path) -> None:
    assert Judged.read(str(model_file(tmp_path, None))) is None


def test_sizes_of_the_same_kind_count() -> None:
    """All, where these are few."""
    assert JUDGED.share_for(SQUARE) == 0.5
    of_all = 0.5 ** (4 / 6)
    assert JUDGED.share_for(GemmProblem(8, 8, 8, row_major_a=False)) == pytest.approx(of_all)
    assert str(JUDGED) == "0.630 in geomean, P10 0.500, over 6 sizes"


@pytest.mark.parametrize(
    ("shares", "kinds"),
    [([0.5], ["a", "b"]), ([1.5], ["a"]), ([float("nan")], ["a"]), ([], []), ([0.5], [1.0]), (0.5, "a")],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, shares: object, kinds: object) -> None:
    path = model_file(tmp_path, None)
    with zipfile.ZipFile(path, "a") as file:
        for name, values in (("judged_shares", shares), ("judged_kinds", kinds)):
            with file.open(f"{name}.npy", "w") as part:
                np.lib.format.write_array(part, np.array(values), allow_pickle=False)
    with pytest.raises(ResultsError, match=r"model\.npz: .*genkern train"):
        Judged.read(str(path))
