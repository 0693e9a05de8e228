"""What benchmarks/search/driver_costs.py prints: each figure once, from the tree as it is."""

from __future__ import annotations

import pytest

from benchmarks.search import driver_costs
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import FAMILIES


def test_every_figure_is_printed_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a table, with what was counted."""
    monkeypatch.setattr(driver_costs, "CUBE", GemmProblem(1, 512, 512))
    driver_costs.main(["--repeats", "1"])
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    said = {first.removeprefix("| "): value.removesuffix(" |") for first, value in lines}
    assert [*said] == ["prune_s", "families", "family_fields", "golden_lines", "doc_words"]
    assert int(said["families"]) == len(FAMILIES)
    assert int(said["doc_words"].replace(",", "")) > 10_000
