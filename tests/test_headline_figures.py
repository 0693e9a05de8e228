"""results/figures.yaml is the one place for headline figures: documents quote it, and say nothing else."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from long_tests import LONG
from releases import report_older
from winner_factory import winner, write_results

from benchmarks.results.ages import is_older
from genkern.file_io import import_file

ROOT = Path(__file__).resolve().parent.parent
FIELDS = {"value", "unit", "device", "versions", "commit", "date", "command", "of"}
# Of those that are computed from rows of results, which say the rest.
COMPUTED = {"value", "unit", "rows"}
# A figure, then its key: 1.087<!-- anchors_over_torch -->
QUOTED = re.compile(r"([0-9][0-9.,]*)?<!--\s*([a-z][a-z0-9_]*)\s*-->")


@lru_cache(maxsize=1)
def figures() -> dict[str, dict[str, Any]]:
    """The figures by key."""
    read = yaml.safe_load((ROOT / "results" / "figures.yaml").read_text(encoding="utf-8"))
    return dict(read["figures"])


@cache
def written() -> ModuleType:
    """results/figures.py, which keeps the rows that it has read."""
    return import_file(ROOT / "results" / "figures.py", "written_figures")


def documents() -> list[Path]:
    """The documents that may quote figures."""
    found: list[Path] = written().documents(ROOT)
    return found


def git(*argv: str) -> str | None:
    """What git prints; None where the checkout has no history."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        return None
    done = subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def code_of(text: str) -> str:
    """What a file of Python does: without comments and documentation."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body[0].value = ast.Constant("")
    return ast.dump(tree)


def changed_since(commit: str, folders: Sequence[str]) -> list[str] | None:
    """The files that are not as at the commit, of Python those whose code is not; None where there is none."""
    found = git("diff", "--raw", "--no-abbrev", "--no-renames", commit, "HEAD", "--", *folders)
    if found is None:
        return None
    changed = []
    for line in found.splitlines():
        said, path = line.split("\t", 1)
        blobs = said.split()[2:4]
        codes = [code_in(blob) for blob in blobs] if path.endswith(".py") else [None]
        if None in codes or len({*codes}) > 1:
            changed.append(path)
    return changed


@cache
def code_in(blob: str) -> str | None:
    """What a file of Python does, by its name in git, which is the same at many commits; None where there is none."""
    text = git("cat-file", "blob", blob)
    return None if text is None else code_of(text)


def test_a_figure_says_where_it_comes_from() -> None:
    """Each has value and unit, and the rest or the rows that it follows from; its value is a number as printed."""
    for key in figures():
        figure = figures()[key]
        assert set(figure) == (COMPUTED if "rows" in figure else FIELDS)
        assert re.fullmatch(r"[0-9][0-9,]*(\.[0-9]+)?", figure["value"])
        assert all(figure.values())
        assert all((ROOT / folder).exists() for folder in figure.get("of", ()))


def test_figures_follow_from_rows() -> None:
    """`make docs` would change no figure, and no quote of one."""
    assert not written().changes(), "run make docs"


def test_figures_are_computed_and_written_where_they_are_quoted(tmp_path: Path) -> None:
    """Of distinct sizes of some files, over what is called too; typed figures stay, and what quotes them follows."""
    device = tmp_path / "results" / "nvidia_h200"
    times = {"vendor_us": 20.0, "torch_us": 30.0}
    write_results(device / "one.yaml", [winner(16, 10.0, **times), winner(32, 40.0, **times, choice="vendor")])
    write_results(device / "other.yaml", [winner(16, 5.0, **times), winner(64, 5.0)])
    (tmp_path / "results" / "figures.yaml").write_text(
        'figures:\n  mean:\n    value: "1"\n'
        "    rows: {device: nvidia_h200, files: [one, other], ratio: library / genkern, of: mean}\n"
        '  least:\n    value: "1"\n'
        '    rows: {device: nvidia_h200, files: ["o*"], ratio: torch / called, of: least, M: 32}\n'
        '  typed:\n    value: "7"\n'
    )
    (tmp_path / "README.md").write_text("Of 2<!-- mean -->, 3<!-- least --> or 4<!-- typed -->.")
    changed = written().changes(tmp_path)
    read = yaml.safe_load(changed[tmp_path / "results" / "figures.yaml"])["figures"]
    values = {key: figure["value"] for key, figure in read.items()}
    # 20 over 5 and over 40; the library is called for M = 32.
    assert values == {"mean": "1.414", "least": "1.500", "typed": "7"}
    assert changed[tmp_path / "README.md"] == "Of 1.414<!-- mean -->, 1.500<!-- least --> or 7<!-- typed -->."


def test_documents_quote_figures_as_they_are() -> None:
    """Every quoted figure has its key's value."""
    for document in documents():
        known = figures()
        for value, key in QUOTED.findall(document.read_text(encoding="utf-8")):
            assert key in known, f"{document.name} quotes {key}, which results/figures.yaml lacks"
            assert value.rstrip(".,") == known[key]["value"], f"{document.name} says {value} for {key}"


def test_quotes_are_seen() -> None:
    """The README quotes figures, and the pattern finds them."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(QUOTED.findall(text)) == text.count("<!--") > 0


def test_comments_and_documentation_are_no_code() -> None:
    """They change no figure; a default, a name and a text that is returned do."""
    text = '"""Says."""\n\n\ndef f(x=1):\n    """More."""\n    return "a"  # Why.\n'
    assert code_of(text) == code_of(text.replace("Says", "Tells").replace("More", "Less").replace("Why", "How"))
    assert (
        len({code_of(text), *(code_of(text.replace(*pair)) for pair in (("=1", "=2"), ("f(", "g("), ("a", "b")))}) == 4
    )


@pytest.mark.skipif(not LONG, reason="reads the code of every figure's commit: make test-long")
def test_figures_of_older_code_are_reported() -> None:
    """The first figure whose code, or whose rows' kernels, have changed since: a release has none. Commits are ours."""
    if git("rev-parse", "--is-shallow-repository") != "false\n":
        pytest.skip("no full history here")
    older = {}
    for key, figure in figures().items():
        if "rows" in figure:
            of = written().rows_of(ROOT / "results", figure["rows"]["device"], figure["rows"]["files"])
            if kernels := sum(map(is_older, of)):
                older[key] = f"{kernels} of {len(of)} rows are of kernels that genkern does not generate any more"
            continue
        changed = changed_since(figure["commit"], figure["of"])
        assert changed is not None, f"{key}: there is no commit {figure['commit']}"
        if changed:
            older[key] = f"of {figure['commit']}, {figure['date']}, {len(changed)} files have changed since"
    if older:
        first = next(iter(older))
        said = f"{len(older)} figures are of code that has changed since: {', '.join(older)}"
        report_older(f"{said}; the first, {first}: {older[first]}")
