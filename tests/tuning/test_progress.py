"""Tests of genkern/tuning/progress.py: bars on a terminal only, lines that fit, and a file for other programs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from genkern.compile.farm import FarmCounts
from genkern.errors import OutputError
from genkern.tuning.progress import Progress, ProgressFile, farm_text


@pytest.mark.parametrize("width", [80, 200])
def test_a_bar_counts_on_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size, how many of how many, failures; the farm's counts where there is room. It leaves no trace."""
    monkeypatch.setenv("TERM", "xterm")
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=width, color_system=None)
    counts = FarmCounts(compiled=7, cached=2, failed=1, compile_s=2.0)
    with Progress(console) as progress, progress.problem("16x4096x4096", 3, counts) as advance:
        advance(1)
        advance(2)
        assert progress._progress is not None
        progress._progress.refresh()
        said = output.getvalue()
    for part in ("16x4096x4096", "3/3", "failed 1"):
        assert part in said
    assert ("compiled 7 (3.5/s), cached 2" in said) == (width == 200)
    assert max(len(line) for line in said.replace("\r", "\n").splitlines()) <= width + 10  # codes of the cursor
    assert not progress._progress.tasks


def test_elsewhere_there_is_silence() -> None:
    """A pipe or a log gets the report's lines and no bars."""
    output = io.StringIO()
    with Progress(Console(file=output)) as progress, progress.problem("16x4096x4096", 3, FarmCounts()) as advance:
        advance(1)
    assert output.getvalue() == ""


def test_a_bar_goes_with_an_error() -> None:
    """The next size starts with one bar."""
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Progress(console) as progress:
        with pytest.raises(ValueError, match="x"), progress.problem("1x1x1", 3, FarmCounts()):
            raise ValueError("x")
        assert progress._progress is not None
        assert not progress._progress.tasks


def test_the_farm_in_words() -> None:
    """Without a rate before anything was compiled."""
    assert farm_text(FarmCounts(cached=12)) == "compiled 0, cached 12"
    assert farm_text(FarmCounts(compiled=320, compile_s=10)) == "compiled 320 (32.0/s), cached 0"


def test_a_progress_file_has_a_line_for_each_step(tmp_path: Path) -> None:
    """When a size's candidates are measured, at intervals how many are done, and how it ended."""
    path = tmp_path / "p.jsonl"
    file = ProgressFile(str(path))
    with Progress(Console(file=io.StringIO()), file) as progress:
        with progress.problem("16x4096x4096", 3, FarmCounts()) as advance:
            advance(1)
            advance(2)
        file.ended("16x4096x4096", "16x4096x4096_a16w16", "")
        file.ended("1x2x3", "1x2x3_a16w16", "no winner")
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    assert steps[0] == {"size": "16x4096x4096", "of": 3}
    assert steps[1] == {"size": "16x4096x4096", "measured": 1}
    assert [step["ended"] for step in steps[-2:]] == ["", "no winner"]
    assert [step["name"] for step in steps[-2:]] == ["16x4096x4096_a16w16", "1x2x3_a16w16"]


def test_a_run_goes_on_where_its_progress_cannot_be_told(tmp_path: Path) -> None:
    """The folder of the file may go; that it cannot be created is said at once."""
    folder = tmp_path / "folder"
    folder.mkdir()
    file = ProgressFile(str(folder / "p.jsonl"))
    (folder / "p.jsonl").unlink()
    folder.rmdir()
    file.ended("1x2x3", "name", "")
    with pytest.raises(OutputError):
        ProgressFile(str(tmp_path))
    (tmp_path / "sizes.yaml").write_text("- {'M': 1, 'N': 2, 'K': 3}\n")
    with pytest.raises(OutputError, match=r"sizes\.yaml"):
        ProgressFile(str(tmp_path / "sizes.yaml"))
    assert (tmp_path / "sizes.yaml").read_text()
