"""Tests of docs/site.py, which gathers the documents of the web site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_all_links_of_the_site_lead_to_gathered_files(tmp_path: Path) -> None:
    """README.md is the first page, and every link and picture of every page leads to a file of the site."""
    subprocess.run([sys.executable, str(ROOT / "docs" / "site.py"), str(tmp_path / "site")], check=True)
    pages = sorted((tmp_path / "site").rglob("*.md"))
    assert {"README.md", "docs/engines.md", "ARCHITECTURE.md", "CHANGELOG.md"} <= {
        page.relative_to(tmp_path / "site").as_posix() for page in pages
    }
    links = 0
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                links += 1
                assert (page.parent / target).is_file(), (page, target)
    assert links > 100
