"""results/figures.yaml is the one place for headline figures: documents quote it, and say nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
FIELDS = {"value", "unit", "device", "versions", "commit", "date", "command", "of"}
# A figure, then its key: 1.087<!-- anchors_over_torch -->
QUOTED = re.compile(r"([0-9][0-9.,]*)?<!--\s*([a-z][a-z0-9_]*)\s*-->")


def figures() -> dict[str, dict[str, Any]]:
    """The figures by key."""
    read = yaml.safe_load((ROOT / "results" / "figures.yaml").read_text(encoding="utf-8"))
    return dict(read["figures"])


def documents() -> list[Path]:
    """The documents that may quote figures."""
    return [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("*/**/README.md"))]


def git(*argv: str) -> str | None:
    """What git prints; None where the checkout has no history."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        return None
    done = subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


@pytest.mark.parametrize("key", figures())
def test_a_figure_says_where_it_comes_from(key: str) -> None:
    """Each has value, unit, device, versions, commit, date and command, and its value is a number as printed."""
    figure = figures()[key]
    assert set(figure) == FIELDS
    assert re.fullmatch(r"[0-9][0-9,]*(\.[0-9]+)?", figure["value"])
    assert all(figure[field] for field in FIELDS)
    assert all((ROOT / folder).exists() for folder in figure["of"])


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_quote_figures_as_they_are(document: Path) -> None:
    """Every quoted figure has its key's value."""
    known = figures()
    for value, key in QUOTED.findall(document.read_text(encoding="utf-8")):
        assert key in known, f"{document.name} quotes {key}, which results/figures.yaml lacks"
        assert value.rstrip(".,") == known[key]["value"], f"{document.name} says {value} for {key}"


def test_quotes_are_seen() -> None:
    """The README quotes figures, and the pattern finds them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(QUOTED.findall(text)) == text.count("<!--") > 0


def test_figures_of_older_code_are_reported() -> None:
    """A figure names a commit of this history; one whose code has changed since is reported as a warning."""
    if git("rev-parse", "--is-shallow-repository") != "false\n":
        pytest.skip("no full history here")
    older = []
    for key, figure in figures().items():
        changed = git("diff", "--name-only", figure["commit"], "HEAD", "--", *figure["of"])
        assert changed is not None, f"{key}: there is no commit {figure['commit']}"
        if changed:
            older.append(f"{key} ({figure['commit']}, {figure['date']}: {len(changed.splitlines())} files)")
    if older:
        warnings.warn("figures of code that has changed since: " + "; ".join(older), stacklevel=1)
