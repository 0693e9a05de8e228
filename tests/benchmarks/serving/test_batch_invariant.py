"""Tests of batch_invariant.py: what is compared and counted, the figures, and a whole run without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_bundle import pack_here, rows
from stand_ins import cpu_place

from benchmarks.common.rounds import Limit
from benchmarks.serving import batch_invariant
from benchmarks.serving.batch_invariant import BEFORE, INVARIANT, OPS, POOL, TORCH, Compared, Timed, batches, compared
from genkern.gemm.problem import GemmProblem

TIMES = [
    Timed(1, 64, 64, {INVARIANT: 10.0, TORCH: 12.0, BEFORE: 9.5, OPS: 40.0}),
    Timed(16, 64, 64, {INVARIANT: 10.0, TORCH: 9.0, BEFORE: 10.0}),
]


def test_every_m_that_is_tuned_and_others_come() -> None:
    """So many untuned ones, the same for one seed, and more calls until so many rows are had."""
    found = list(batches([1, 16], 50, 300_000, 1))
    assert found[:2] == [1, 16]
    assert sum(found) >= 300_000
    assert all(1 <= m <= POOL for m in found)
    assert found == list(batches([1, 16], 50, 300_000, 1)) != list(batches([1, 16], 50, 300_000, 2))
    assert len(list(batches([1, 16], 50, 0, 1))) == 52


def by_order(parts: int) -> Any:
    """A product of sums over K in so many parts, row by row the same whatever M."""

    def multiply(x: Any, weight: Any) -> Any:
        total = torch.zeros(x.shape[0], weight.shape[0])
        for part in range(parts):
            own = torch.zeros_like(total)
            for k in range(part * x.shape[1] // parts, (part + 1) * x.shape[1] // parts):
                own += x[:, k : k + 1].float() * weight[:, k].float()
            total += own
        return total

    return multiply


def test_rows_of_another_order_are_found() -> None:
    """In whatever batch; those that no kernel serves are counted, and compared with nothing."""
    group = [GemmProblem(m, 4, 96) for m in (1, 64)]
    how = {"untuned": 6, "rows": 100, "limit": Limit(60.0)}
    serves = {1: "whole", 64: "whole"}
    one, two = by_order(1), by_order(2)
    good = compared(one, lambda m: "whole", group, "cpu", **how)
    assert (good.differing, good.first, good.orders) == (0, "", ("whole",))
    assert good.rows >= 100
    assert good.untuned == 6
    few = compared(lambda x, w: two(x, w) if len(x) == 64 else one(x, w), lambda m: "whole", group, "cpu", **how)
    assert 0 < few.differing <= 64
    assert few.first.startswith("M = 64 (whole): ")
    some = compared(one, serves.get, group, "cpu", untuned=3, rows=0, limit=Limit(60.0))
    assert (some.rows, some.untuned, len(some.unserved)) == (65, 0, 3)
    assert compared(one, lambda m: "whole", group, "cpu", untuned=3, rows=10, limit=Limit(0.0)).rows == 0


def test_means_are_over_sizes_with_both_times() -> None:
    """Means over the sizes that have both times; the loss against the winners in any order."""
    found = batch_invariant.figures(TIMES, [Compared(64, 64, 100, 0, 5), Compared(128, 64, 50, 0, 5)])
    assert found["invariant_over_torch"] == pytest.approx((1.2 * 0.9) ** 0.5)
    assert found["invariant_least_over_torch"] == 0.9
    assert found["invariant_over_ops"] == 4.0
    assert found["invariant_loss"] == pytest.approx(100 * ((1 / 0.95) ** 0.5 - 1))
    assert found["invariant_rows_checked"] == 150
    assert set(batch_invariant.figures([], []).values()) == {None}
    text = batch_invariant.report(TIMES, [Compared(64, 64, 100, 3, 5, (7,), ("whole",), "M = 1")])
    assert "| 1 | 1 | 1.200 (1.200) | 0.950 (0.950) | 4.000 (4.000) |" in text
    assert "100 rows, 3 with other bits, 5 untuned M, whole, 1 M served by no kernel of it; M = 1" in text
    assert "invariant_over_ops: 4.000" in text


def test_a_run(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are timed and rows compared; where nothing of genkern's can be launched none is served by it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    bundle = pack_here(tmp_path, rows(), cache_dir)
    sizes = tmp_path / "sizes.yaml"
    sizes.write_text("- {'M': 16, 'N': 64, 'K': 64, 'rowMajorA': 'T', 'rowMajorB': 'N', 'dtype_a': 'bf16'}\n")
    package = tmp_path / "batch_invariant_ops"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "batch_invariant_ops.py").write_text("def matmul_persistent(a, b):\n    return a @ b\n")
    # Other tests' packages of this name are found elsewhere.
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("batch_invariant_ops", "batch_invariant_ops.batch_invariant_ops"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    argv = [bundle, "--before", bundle, "--sizes", str(sizes), "--ops", str(tmp_path), "--rounds", "1"]
    text, status = batch_invariant.run(cpu_place(), [*argv, "--rows", "20", "--untuned", "1"])
    assert status == 0
    assert "1 of 1 sizes" in text
    assert "invariant_over_ops: " in text
    for module in ("batch_invariant_ops", "batch_invariant_ops.batch_invariant_ops"):
        del sys.modules[module]
