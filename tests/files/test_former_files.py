"""Files of genkern 0.1.0, which gave kernel families other names, are refused in one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkern.errors import ResultsError
from genkern.files.file_kind import read_results
from genkern.journal.facts import read_journal
from genkern.journal.header import SCHEMA, OldJournal
from genkern.journal.journal_line import journal_line

HEAD = "# genkern results, schema 1: a list that readers of tune_gemm's results can load\n"
ROW = (
    "- {'M': 16, 'N': 4096, 'K': 13110, 'rowMajorA': 'T', 'rowMajorB': 'T', 'BLOCK_SIZE_M': 16, 'BLOCK_SIZE_N': 64, "
    "'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 1, 'SPLIT_K': 4, 'num_warps': 4, 'num_stages': 4, 'op': 'a16w16', "
    "'family': 'tiled_swapped', 'config': 'tiled_swapped_BM16_BN64_BK64_GM1_SK4_nW4_nS4', 'dtype_a': 'bf16', "
    "'dtype_b': 'bf16', 'dtype_c': 'bf16', 'bias': false, 'time_us': 29.164, 'time_source': 'cudagraph', "
    "'arch': 'sm_90', 'device': 'NVIDIA H200', 'compute_units': 132} # TFLOPS: 58.92 time(us): 29.16\n"
)


def test_a_row_with_a_former_family_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(HEAD + ROW)
    with pytest.raises(ResultsError) as caught:
        read_results(str(path))
    said = str(caught.value)
    assert "\n" not in said
    assert all(part in said for part in ("r.yaml, line 2", "tiled_swapped", "0.1.0", "tune its size again"))


def test_a_journal_of_0_1_0_is_another_versions(tmp_path: Path) -> None:
    """A run that finds such a journal keeps it, and begins anew."""
    path = tmp_path / "j"
    path.write_bytes(journal_line("header", {"schema": SCHEMA, "genkern": "0.1.0"}))
    with pytest.raises(OldJournal) as caught:
        read_journal(path)
    assert "\n" not in str(caught.value)
    assert "0.1.0" in caught.value.reason
