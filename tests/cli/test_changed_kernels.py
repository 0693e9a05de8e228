"""Runs that go on with other templates: what is of other code is measured anew, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command import run_here
from long_tests import drawn
from machines import machine
from tiny_space import EVERYTHING, traced

from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.journal.journal_line import entry_of
from genkern.kernels import generate
from genkern.kernels.contract.call import Kernel

SPACE = """archs: [sm_90]
ops: [a16w16]
rules: []
families:
  - {family: tiled, BLOCK_SIZE_M: [16], BLOCK_SIZE_N: [64], BLOCK_SIZE_K: [64], num_warps: [4],
     GROUP_SIZE_M: [1, 4], SPLIT_K: [1], num_stages: [2]}
  - {family: tiled_tma, BLOCK_SIZE_M: [16], BLOCK_SIZE_N: [64], BLOCK_SIZE_K: [64], num_warps: [4],
     GROUP_SIZE_M: [1, 4], SPLIT_K: [1], num_stages: [2]}
"""
SIZES = "- {'M': 16, 'N': 128, 'K': 256}\n- {'M': 64, 'N': 128, 'K': 256}\n"
PLAIN, CHANGED = (
    [Config(family, 16, 64, 64, group, 1, 4, 2).name for group in (1, 4)] for family in ("tiled", "tiled_tma")
)
FIRST, SECOND = "16x128x256", "64x128x256"


def edit_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one family, and with it the digest of all that generates kernels."""
    text_of = generate._kernel_text

    def edited(kernel: Kernel, context: Mapping[str, Any]) -> str:
        return text_of(kernel, context) + "\n    pass" * ("tiled_tma" in kernel.variant.template)

    monkeypatch.setattr(generate, "_kernel_text", edited)
    for module in ("setting", "run"):
        monkeypatch.setattr(f"genkern.cli.{module}.generator", lambda: "f" * 16)


@pytest.mark.parametrize("winners", drawn([PLAIN, CHANGED], 1))
def test_what_is_of_other_code_is_measured_anew(
    winners: list[str],
    tmp_path: Path,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Killed ahead of the second size's finals: the kernels of the changed template are timed again, and no others.

    The first size is done, and so it stays unless its winner is of the changed template; the second was screened.
    """
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "sizes.yaml").write_text(SIZES)
    results, journal = tmp_path / "r.yaml", tmp_path / "r.yaml.journal"
    files = ["-i", tmp_path / "sizes.yaml", "-o", results, "--space", tmp_path / "space.yaml"]
    command = [*files, "--cache_dir", cache_dir, *EVERYTHING]
    times = {name: (100.0 if name in winners else 120.0) + place for place, name in enumerate(PLAIN + CHANGED)}
    trace = tmp_path / "trace"
    env = machine(tmp_path, gpus=1, faster=times, trace=str(trace))
    assert run_here(capsys, *command, env=env).status == 0
    before = results.read_text().splitlines(keepends=True)
    finished = tmp_path / "r.yaml.journal.previous"
    lines = finished.read_bytes().splitlines(keepends=True)
    facts = [entry_of(line.rstrip()) for line in lines]
    cut = next(n for n, each in enumerate(facts) if (each.get("problem"), each["fact"]) == (1, "retimed"))
    journal.write_bytes(b"".join(lines[:cut]))
    finished.unlink()
    results.write_text("".join(before[:2]))
    trace.unlink()

    edit_the_template(monkeypatch)
    ran = run_here(capsys, *command, env=env)
    assert (ran.status, ran.err) == (0, "")
    screens = [event for event in traced(trace) if event["event"].startswith("screen ")]
    screened = sorted((event["size"], event["event"].split()[1]) for event in screens)
    again = [FIRST, SECOND] if winners == CHANGED else [SECOND]
    assert screened == sorted((size, name) for size in again for name in CHANGED)
    assert ("1 row is of kernels that genkern now generates differently: tuned again" in ran.out) == (
        winners == CHANGED
    )
    rows = read_results(str(results))
    assert [row.config.name if row.config else "" for row in rows] == [winners[0]] * 2
    old = [line.partition("'source': '")[2][:16] for line in before[1:]]
    assert [row.source != source for row, source in zip(rows, old, strict=True)] == [winners == CHANGED] * 2
    entries = [entry_of(line) for line in (tmp_path / "r.yaml.journal.previous").read_bytes().splitlines()]
    assert [entry["fact"] for entry in entries].count("outdated") == len(again)
    # To the run that follows nothing has changed.
    assert "already (--all tunes them again)" in run_here(capsys, *command, env=env).out


def test_a_finished_run_says_what_is_of_other_code(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a note, as it does for another Triton: its sizes are done."""
    (tmp_path / "space.yaml").write_text(SPACE)
    files = ["-m", 16, "-n", 128, "-k", 256, "-o", tmp_path / "r.yaml", "--space", tmp_path / "space.yaml"]
    command = [*files, "--cache_dir", cache_dir, *EVERYTHING]
    env = machine(tmp_path, gpus=1, faster={CHANGED[0]: 50.0})
    assert run_here(capsys, *command, env=env).status == 0
    assert "otherwise" not in run_here(capsys, *command, env=env).out
    edit_the_template(monkeypatch)
    said = " ".join(run_here(capsys, *command, env=env).out.split())
    assert "1 of these was tuned differently: 1 row is of kernels that genkern now generates differently" in said
