"""Gather the documents of this repository in one folder, from which mkdocs builds the site (`make site`).

    python docs/site.py FOLDER

The folder has the same tree as the repository: README.md is the site's first page. Documents that other documents link
to are copied, and so are the files that they name, such as results/figures.yaml. A link to a folder, or to a file that
is not a document, leads to the copy; a folder that has a README.md leads to that page.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
# Larger files are not copied; the link becomes plain text.
_MOST_BYTES = 2**20


def pages() -> list[Path]:
    """Return the documents of the site, relative to the repository: README.md, docs/, and all that they link to."""
    found = [Path("README.md"), *sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))]
    for page in found:
        for target in _targets(page):
            page_of = target / "README.md" if (ROOT / target).is_dir() else target
            if page_of.suffix == ".md" and (ROOT / page_of).is_file() and page_of not in found:
                found.append(page_of)
    return found


def _targets(page: Path) -> list[Path]:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [match[2] for match in _LINK.finditer(text) if match[2] and "://" not in match[2]]
    return [_resolved(page, link) for link in links]


def _resolved(page: Path, link: str) -> Path:
    """Return a link's target relative to the repository."""
    parts: list[str] = []
    for part in PurePosixPath(page.parent.as_posix(), link).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return Path(*parts)


def gather(folder: Path) -> None:
    """Copy the documents and the files that they name to `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    known = set(pages())
    for page in known:
        text = (ROOT / page).read_text(encoding="utf-8")

        def changed(match: re.Match[str], page: Path = page) -> str:
            words, link, anchor = match[1], match[2], match[3] or ""
            if not link or "://" in link:
                return match[0]
            target = _resolved(page, link)
            if (ROOT / target).is_dir():
                target, link = target / "README.md", f"{link.rstrip('/')}/README.md"
            if target in known:
                return f"[{words}]({link}{anchor})"
            return match[0] if _copied(target, folder) else words

        for match in _PICTURE.finditer(text):
            if "://" not in match[1]:
                _copied(_resolved(page, match[1]), folder)
        written = folder / page
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(_LINK.sub(changed, text), encoding="utf-8")


def _copied(target: Path, folder: Path) -> bool:
    """Copy a file of the repository, and return True; return False for a folder, and for a large or missing file."""
    source = ROOT / target
    if not source.is_file() or source.stat().st_size > _MOST_BYTES:
        return False
    (folder / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, folder / target)
    return True


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    gather(parser.parse_args().folder)


if __name__ == "__main__":
    main()
