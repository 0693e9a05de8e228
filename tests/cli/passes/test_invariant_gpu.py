"""A whole run with --batch_invariant on a GPU: one order of sums for all M, proved to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run

from genkern.files.file_kind import read_results

pytestmark = pytest.mark.gpu
SIZES = "".join(
    f"- {{'M': {m}, 'N': 4096, 'K': 4096, 'rowMajorA': 'T', 'rowMajorB': 'N', 'dtype_a': 'bf16'}}\n"
    for m in (1, 16, 1024)
)


@pytest.mark.parametrize("sums", ["least", "library"])
def test_a_run(sums: str, tmp_path: Path) -> None:
    """Rows say one order, what it costs and that rows were compared; the second pass needs no more than the first."""
    (tmp_path / "sizes.yaml").write_text(SIZES)
    argv = ["-i", tmp_path / "sizes.yaml", "-o", tmp_path / "r.yaml", "--batch_invariant", "--sums", sums]
    ran = run(*argv, "--budget", 40)
    print(ran.out)
    assert ran.status == 0, ran
    rows = read_results(str(tmp_path / "r.yaml"))
    assert [row.problem.M for row in rows] == [1, 16, 1024]
    assert len({row.sums for row in rows}) == 1
    assert all(row.batch_invariant and row.proved_by == "gpu" for row in rows)
    assert all(0 <= (row.invariant_loss or 0.0) < 0.5 for row in rows)
    assert all(row.choice == "config" or row.vendor_sums == row.sums for row in rows)
    assert "one order of sums for all M" in ran.out
