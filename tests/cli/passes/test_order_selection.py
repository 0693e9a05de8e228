"""Tests of genkern/cli/passes: sizes that differ in M alone get winners of one order (--batch_invariant)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command import run_here
from machines import machine

from genkern.files.file_kind import read_results
from genkern.files.results import ResultsFile
from genkern.gemm.config import Config
from genkern.result.result import Result

SPACE = """archs: [sm_90]
ops: [a16w16]
rules: []
families:
  - {family: tiled, BLOCK_SIZE_M: [64], BLOCK_SIZE_N: [64], BLOCK_SIZE_K: [64], num_warps: [4], GROUP_SIZE_M: [1],
     SPLIT_K: [1, 2], num_stages: [3, 4]}
"""
SIZES = "".join(f"- {{'M': {m}, 'N': 128, 'K': 256, 'rowMajorA': 'T', 'rowMajorB': 'N'}}\n" for m in (16, 1024))
WHOLE, PARTS = "wgmma k16", "wgmma k16; 2 parts of 128"
ONE, TWO = (Config("tiled", 64, 64, 64, SPLIT_K=split, num_warps=4, num_stages=3) for split in (1, 2))
SLOW = [config.with_values(num_stages=4) for config in (ONE, TWO)]
REFERENCE = ONE.with_values(num_stages=2)


def times(few: tuple[float, float], many: tuple[float, float], vendor: float = 500.0) -> dict[str, object]:
    """By size what the whole sum and the two parts take; others take much more."""
    replay = {}
    for size, (one, two) in (("16x128x256", few), ("1024x128x256", many)):
        us = {ONE.name: one, TWO.name: two, "vendor": vendor}
        us |= {config.name: 400.0 for config in (*SLOW, REFERENCE, REFERENCE.with_values(SPLIT_K=2))}
        replay[size] = dict.fromkeys(("screen", "retime", "confirm"), us)
    return replay


class Run:
    """A folder in which the command runs on a stand-in for a GPU, and what its process was asked."""

    def __init__(self, folder: Path, cache: Path, replay: dict[str, object], **what: object) -> None:
        self.folder, self._cache = folder, cache
        (folder / "space.yaml").write_text(SPACE)
        (folder / "sizes.yaml").write_text(SIZES)
        (folder / "replay.json").write_text(json.dumps(replay))
        files = {"replay": str(folder / "replay.json"), "log": str(folder / "log")}
        self._env = machine(folder, gpus=1, **files, **what)

    def __call__(self, capsys: pytest.CaptureFixture[str], *options: object) -> tuple[int, str]:
        argv = ["-i", self.folder / "sizes.yaml", "-o", self.folder / "r.yaml", "--space", self.folder / "space.yaml"]
        argv += ["--cache_dir", self._cache, "--jobs", 1, "--search", "predicted", "--libtype", "triton,torch,cublaslt"]
        ran = run_here(capsys, *argv, "--batch_invariant", *options, env=self._env)
        return ran.status, ran.out + ran.err

    @property
    def rows(self) -> dict[int, Result]:
        return {row.problem.M: row for row in read_results(str(self.folder / "r.yaml"))}

    @property
    def asked(self) -> list[str]:
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


def test_one_order_for_all_m(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of the least total, and each M's winner in it; what it costs stands in the results. Then all is done."""
    run = Run(tmp_path, cache_dir, times((12, 10), (100, 130)))
    status, said = run(capsys)
    assert status == 0, said
    rows = run.rows
    said_by_rows = {m: (row.config, row.sums, row.batch_invariant) for m, row in rows.items()}
    assert said_by_rows == dict.fromkeys((16, 1024), (ONE, WHOLE, True))
    assert {m: round(row.invariant_loss or 0.0, 3) for m, row in rows.items()} == {16: 0.2, 1024: 0.0}
    asked = run.asked
    assert f"rows {ONE.name}" in " ".join(asked)
    # Of 1024 rows the winner had the order before.
    assert sum("screen" in line for line in asked) == 2 * 4 + (2 + 2) + 2
    assert re.search(rf"1024x128x256 +100\.03 +0\.0 % +5\.000x +{ONE.name} +{WHOLE}", said)
    status, said = run(capsys)
    assert (status, run.asked) == (0, [])
    shown = run_here(capsys, "status", tmp_path / "r.yaml").out
    assert shown.count("finished") == 2
    assert "r.yaml.order1" in shown
    assert "are in" in said


def test_weights_and_the_librarys_order(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two orders that are nearly as good both are tuned; M that come often count more, and the library's may be
    asked for: its kernel for the most rows says which it is."""
    replay = times((12, 10), (100, 130))
    run = Run(tmp_path, cache_dir, replay, alike={"vendor": ONE.name})
    status, said = run(capsys, "--m_weights", "16:16")
    assert status == 0, said
    assert {row.sums for row in run.rows.values()} == {PARTS}
    assert {m: round(row.invariant_loss or 0.0, 3) for m, row in run.rows.items()} == {16: 0.0, 1024: 0.3}
    # The rows of an order are its own until they are tuned again.
    status, said = run(capsys, "--all", "--sums", "library", "--m_weights", "16:1000")
    assert status == 0, said
    assert {(row.sums, row.vendor_sums) for row in run.rows.values()} == {(WHOLE, WHOLE)}


def test_a_library_of_no_order(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its order cannot be taken: the winners in any order stay, and say nothing of one."""
    run = Run(tmp_path, cache_dir, times((12, 10), (100, 130)))
    status, said = run(capsys, "--sums", "library")
    assert status == 1
    assert "M = 16, 1024 by 128x256: the library adds up in no order that a kernel here has" in said
    assert {m: (row.config, row.batch_invariant) for m, row in run.rows.items()} == {
        16: (TWO, False),
        1024: (ONE, False),
    }


def test_rows_with_other_bits_are_of_no_order(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config whose rows are not those of its order's reference does not win in it."""
    run = Run(tmp_path, cache_dir, times((12, 10), (100, 130)), other_bits=[ONE.name])
    status, said = run(capsys, "-v")
    assert status == 0, said
    configs = {row.config for row in run.rows.values()}
    assert configs <= {SLOW[0], REFERENCE}
    assert f"wrong: {ONE.name}: a row has other bits" in said


def test_rows_are_compared_later_too(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--compare_wo_tuning finds what has other bits by then, and an order that is not the config's."""
    run = Run(tmp_path, cache_dir, times((12, 10), (100, 130)))
    assert run(capsys)[0] == 0
    results = tmp_path / "r.yaml"
    again = ["--compare_wo_tuning", "-i", results, "--cache_dir", cache_dir, "--jobs", 1]
    assert run_here(capsys, *again, env=machine(tmp_path, gpus=1)).status == 0
    ran = run_here(capsys, *again, env=machine(tmp_path, gpus=1, other_bits=[ONE.name]))
    assert ran.status == 1
    assert ran.out.count("WRONG: a row has other bits") == 2
    results.write_text(results.read_text().replace(f"'sums': '{WHOLE}'", f"'sums': '{PARTS}'"))
    ran = run_here(capsys, *again, env=machine(tmp_path, gpus=1))
    assert ran.out.count(f"WRONG: adds up K as {WHOLE}, not {PARTS}") == 2


@pytest.mark.parametrize(("weights", "config", "passes"), [("16:2", ONE, 1), ("16:16", TWO, 2)])
def test_a_run_that_is_stopped_goes_on(
    weights: str,
    config: Config,
    passes: int,
    tmp_path: Path,
    cache_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the second pass too: nothing is measured again; the file has a group's rows of before or of after."""
    run = Run(tmp_path, cache_dir, times((12, 10), (100, 130)))
    write = ResultsFile.write

    def stopped(file: ResultsFile, winners: object) -> None:
        if any(winner.batch_invariant for winner in winners):  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        write(file, winners)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ResultsFile, "write", stopped)
        assert run(capsys, "--m_weights", weights)[0] == 130
    assert not any(row.batch_invariant for row in run.rows.values())
    before = run.asked
    assert any("confirm" in line for line in before)
    assert "m_weights was" in run(capsys)[1]
    status, said = run(capsys, "--m_weights", weights)
    assert len([path for path in tmp_path.iterdir() if ".order" in path.name]) == passes
    assert status == 0, said
    assert run.asked == []
    assert {(row.config, row.batch_invariant) for row in run.rows.values()} == {(config, True)}
