"""A format's own fields in files: part of what a problem is, written, read, and refused where they are none of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from winner_factory import results_text, winner, write_results

from genkern.errors import InputError, ResultsError
from genkern.files import gemm_entry
from genkern.files.aiter_csv import obstacle
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import number, word
from genkern.ops.op import Op, get_op

OWN = (("block_k", 64), ("granule", "column"))


@dataclass(frozen=True)
class Fields:
    granule: str = word("row", "column", help="a word")
    block_k: int = number(128, 16, 256, help="a number")


@pytest.fixture(autouse=True)
def a_format_with_fields(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """a16w16 with two fields more."""

    def found(name: str) -> Op:
        return replace(get_op(name), fields=Fields) if name == "a16w16" else get_op(name)

    monkeypatch.setattr("genkern.files.gemm_entry.get_op", found)
    monkeypatch.setattr("genkern.files.gemm_entry._named", found)
    monkeypatch.setattr("genkern.files.gemm_entry.op_by_type", lambda dtype: found("a16w16"))
    gemm_entry._own_keys.cache_clear()
    yield
    gemm_entry._own_keys.cache_clear()


def test_results_round_trip(tmp_path: Path) -> None:
    """Problems that differ in such a field only are two."""
    plain, own = winner(16), replace(winner(16), problem=replace(winner(16).problem, own=OWN))
    path = tmp_path / "r.yaml"
    write_results(path, [plain, own])
    assert [row.problem for row in read_results(str(path))] == [plain.problem, own.problem]
    assert read_sizes(str(path), GemmDefaults(), "gfx942").problems == (plain.problem, own.problem)
    first, second = yaml.safe_load(results_text([plain, own]))
    assert not {"granule", "block_k"} & first.keys()
    assert (second["granule"], second["block_k"]) == ("column", 64)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("granule: diagonal", "granule = 'diagonal' is not one of row, column"),
        ("block_k: 8", "block_k = '8' is not a whole number from 16 to 256"),
        ("block_k: 0100", "block_k = 0100"),
        ("granul: row", "did you mean granule"),
        ("op: a8w8, granule: row", "granule is not a field of a8w8"),
    ],
)
def test_what_is_no_field_or_value_is_one_line(entry: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "sizes.yaml"
    path.write_text(f"- {{M: 1, N: 2, K: 3, {entry}}}\n")
    with pytest.raises(InputError, match="line 1") as caught:
        read_sizes(str(path), GemmDefaults(), "gfx942")
    assert said in str(caught.value)
    with pytest.raises(ResultsError, match="line 1"):
        read_results(str(path))


def test_a_table_without_a_column_for_them_has_no_room() -> None:
    """Two problems would have one key."""
    assert "block_k=64 granule=column" in obstacle(GemmProblem(1, 2, 3, own=OWN))
    assert not obstacle(GemmProblem(1, 2, 3))
