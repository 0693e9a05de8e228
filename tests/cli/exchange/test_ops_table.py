"""`genkern ops` as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here
from winner_factory import winner, write_results

from genkern.cli.ops_table import searched_archs, state
from genkern.errors import InputError
from genkern.gemm.gpus import known_archs
from genkern.ops.op import op_names
from genkern.space.space import load_space


def table(out: str) -> dict[str, dict[str, str]]:
    """State by format and architecture, of the tables of all vendors; a measured state has a count behind it."""
    found: dict[str, dict[str, str]] = {}
    for part in out.partition("note:")[0].strip().split("\n\n"):
        head, *lines = (line.replace("measured ", "measured_").split() for line in part.splitlines())
        for line in lines:
            found.setdefault(line[0], {}).update(zip(head[1:], line[1:], strict=True))
    return found


def test_what_is_measured_compiled_and_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes count once, by their device; predictions and files that are no results do not."""
    write_results(tmp_path / "one.yaml", [winner(16), winner(32), winner(64, time_source="predicted")])
    write_results(tmp_path / "again.csv", [winner(16)])
    (tmp_path / "figures.yaml").write_text("figures: 3\n")
    ran = run_here(capsys, "ops", tmp_path)
    assert (ran.status, ran.err) == (0, "")
    found = table(ran.out)
    assert list(found) == list(op_names())
    assert list(found["a16w16"]) == list(known_archs())
    assert found["a16w16"]["gfx942"] == "measured_2"
    assert found["a16w16"]["sm_90"] == "compiled"
    assert "1 other files" in ran.out


def test_the_shipped_results(capsys: pytest.CaptureFixture[str]) -> None:
    """Without an argument: what the checkout's own results say of the H200."""
    found = table(run_here(capsys, "ops").out)
    assert found["a16w16"]["sm_90"].startswith("measured_")
    assert found["a8w8_blockscale"]["sm_90"].startswith("measured_")


def test_a_target_without_the_format() -> None:
    """No space, or types that it does not compute in."""
    assert state("a16w16", "gfx942", True, 0) == "compiled"
    assert state("a16w16", "gfx942", False, 0) == "-"
    assert state("a8w8", "gfx942", True, 7) == "measured 7"
    assert [has_space("a16w4", arch) for arch in ("sm_90", "gfx906")] == [True, False]
    assert [arch in searched_archs("a16w4") for arch in ("sm_90", "gfx906")] == [True, False]


def has_space(op: str, arch: str) -> bool:
    """As a run finds it."""
    try:
        return bool(load_space(None, arch, op))
    except InputError:
        return False


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is named must hold results; a folder must have some."""
    (tmp_path / "figures.yaml").write_text("figures: 3\n")
    assert run_here(capsys, "ops", tmp_path / "figures.yaml").refusal
    (tmp_path / "empty").mkdir()
    assert run_here(capsys, "ops", tmp_path / "empty").refusal
    assert run_here(capsys, "ops", "--frob").refusal
