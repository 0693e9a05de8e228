"""Models of folds in a folder: each size finds the one that does not know it, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from genkern.errors import OutputError, ResultsError
from genkern.recorded.folds import FoldsFolder, read_folds
from genkern.search.guided.learned import Learned
from genkern.search.guided.trees import Trees

SIZES = [(64, 128, 256), (1, 4096, 4096), (513, 8, 16)]


def model(value: float) -> Learned:
    """A tree of one leaf."""
    left = np.array([[~0]], dtype=np.int16)
    numbers = [np.array([[each]], dtype=np.float32) for each in (0.0, value)]
    split = np.array([[0]], dtype=np.int16)
    return Learned(Trees(np.array("sm_90"), np.array(["log_bm"]), split, numbers[0], left, left, numbers[1]))


def test_each_size_has_its_model(tmp_path: Path) -> None:
    folder = FoldsFolder(str(tmp_path / "new" / "folds"))
    folder.add(model(1.0), SIZES[:2])
    folder.add(model(2.0), SIZES[2:])
    found = read_folds(str(tmp_path / "new" / "folds"))
    assert [found[size].trees.value.item() for size in SIZES] == [1.0, 1.0, 2.0]
    assert len(found) == 3


def test_models_of_before_are_replaced(tmp_path: Path) -> None:
    """None of them is found, also where there are fewer now."""
    before = FoldsFolder(str(tmp_path))
    for place, size in enumerate(SIZES):
        before.add(model(place), [size])
    FoldsFolder(str(tmp_path)).add(model(9.0), SIZES[:2])
    assert {size: each.trees.value.item() for size, each in read_folds(str(tmp_path)).items()} == dict.fromkeys(
        SIZES[:2], 9
    )


def test_the_table_of_before_stays_until_there_is_a_model(tmp_path: Path) -> None:
    FoldsFolder(str(tmp_path)).add(model(1.0), SIZES)
    FoldsFolder(str(tmp_path))
    assert {*read_folds(str(tmp_path))} == {*SIZES}


def test_a_folder_of_something_else_is_let_be(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("notes")
    with pytest.raises(OutputError, match="--models"):
        FoldsFolder(str(tmp_path))
    with pytest.raises(OutputError):
        FoldsFolder(str(tmp_path / "notes"))


ROWS = "", "1.npz,8,x,8\n", "../x,1,2,3\n", ",1,2,3\n"


@pytest.mark.parametrize("table", [None, "", "a,b\n1,2\n", *(f"model,M,N,K\n{row}" for row in ROWS)])
def test_what_is_no_table_of_folds_is_said(tmp_path: Path, table: str | None) -> None:
    FoldsFolder(str(tmp_path)).add(model(1.0), SIZES)
    (tmp_path / "folds.csv").unlink()
    if table is not None:
        (tmp_path / "folds.csv").write_text(table)
    with pytest.raises(ResultsError, match=r"folds\.csv"):
        read_folds(str(tmp_path))


def test_a_damaged_model_is_said(tmp_path: Path) -> None:
    FoldsFolder(str(tmp_path)).add(model(1.0), SIZES)
    (tmp_path / "1.npz").write_bytes(b"none")
    with pytest.raises(ResultsError, match=r"1\.npz"):
        read_folds(str(tmp_path))
