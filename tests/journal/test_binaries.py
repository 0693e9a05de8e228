"""A journal keeps, to the last bit, what compilers made for a size."""

from __future__ import annotations

from pathlib import Path

from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Measurement, Outcome, Resources
from genkern.journal.binaries import JournalBinary
from genkern.journal.facts import read_journal
from genkern.journal.journal import Journal

PROBLEM = GemmProblem(64, 1280, 8192)
NAME = "tiled_BM64_BN64_BK64_GM1_SK1_nW4_nS3"


def _journal(path: Path) -> Journal:
    return Journal(path, {"arch": "sm_90"})


def test_binaries_come_back(tmp_path: Path) -> None:
    known = Binary("ab" * 32, "/nowhere", "k", Resources(registers=168, spills=0, shared_bytes=4096), 0.25)
    unknown = Binary("cd" * 32, "/nowhere", "k", Resources())
    made = {NAME: JournalBinary.of(known), NAME.replace("nS3", "nS4"): JournalBinary.of(unknown)}
    with_both = _journal(tmp_path / "journal")
    with_both.add_binaries(PROBLEM, made)
    with_both.close()
    assert read_journal(tmp_path / "journal").of(PROBLEM).made == made
    assert made[NAME].key == "ab" * 8
    assert made[NAME].compile_s == 0.25


def test_how_long_a_measurement_took_comes_back(tmp_path: Path) -> None:
    journal = _journal(tmp_path / "journal")
    took = Measurement(NAME, Outcome.MEASURED, "cudagraph", duration_us=5.0, samples_us=(5.0,), took_ms=1.25)
    unsaid = Measurement(NAME.replace("nS3", "nS4"), Outcome.MEASURED, "cudagraph", duration_us=6.0, samples_us=(6.0,))
    journal.add_screened(PROBLEM, took)
    journal.add_screened(PROBLEM, unsaid)
    journal.close()
    assert set(read_journal(tmp_path / "journal").of(PROBLEM).screened.values()) == {took, unsaid}
