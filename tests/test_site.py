"""Tests of docs/site.py, which gathers the documents of the web site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

import genkern

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


def test_every_page_is_in_the_navigation(tmp_path: Path) -> None:
    """A reader reaches each page of the site from the navigation, once, under one of its four groups or as the home."""
    subprocess.run([sys.executable, str(ROOT / "docs" / "site.py"), str(tmp_path / "site")], check=True)
    pages = {page.relative_to(tmp_path / "site").as_posix() for page in (tmp_path / "site").rglob("*.md")}
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    assert [next(iter(group)) for group in nav] == ["Home", "Tutorial", "How-to", "Reference", "Explanation"]
    named = list(pages_of(nav))
    assert len(named) == len(set(named))
    assert pages <= set(named)


def pages_of(nav: object) -> list[str]:
    """The pages that a part of the navigation names."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else []
    return [page for part in parts for page in pages_of(part)]


def test_the_reference_has_every_public_name() -> None:
    """docs/api.md asks for the documentation of each name that `import genkern` offers, and of no other."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"(?m)^::: genkern\.(\w+)$", text)
    assert sorted([*named, "__version__"]) == sorted([*genkern.__all__, "errors"])
