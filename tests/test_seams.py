"""What knows a format by name: its own folders, and readers of other people's files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from genkern.ops.op import op_names

ROOT = Path(__file__).resolve().parent.parent
# Everything else learns of a format by what it declares. Allowed: readers of formats whose own names say which one they
# mean (AITER's tables), and the format of a problem that nobody names.
ALLOWED = {"genkern/gemm/problem.py": ["a16w16"]}


def generic() -> Iterator[Path]:
    """Code that is of no format: genkern without ops/<op> and formats/, profiling, and the families' templates."""
    places = ("genkern", "**/*.py"), ("profiling", "**/*.py"), ("templates", "*.j2"), ("templates/gemm", "*")
    for folder, pattern in places:
        for path in sorted((ROOT / folder).glob(pattern)):
            parts = path.relative_to(ROOT).parts
            of_format = parts[:2] == ("genkern", "ops") and len(parts) > 3
            if path.is_file() and not of_format and parts[:2] != ("genkern", "formats") and "__pycache__" not in parts:
                yield path


def test_generic_code_names_no_format() -> None:
    """So that the next format is one folder in genkern/ops and one in templates."""
    found = {}
    for path in generic():
        text = path.read_text(encoding="utf-8")
        found[str(path.relative_to(ROOT))] = [name for name in op_names() if name in text]
    assert len(found) > 200
    assert {path: named for path, named in found.items() if named} == ALLOWED
