"""The documents: how long they are, and that those which a command writes are what it would write today."""

from __future__ import annotations

import csv
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from genkern.gemm.config import Config
from genkern.kernels.catalogue import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
# What a newcomer has to read before the project is known, in words as wc -w counts them.
MOST_WORDS = {"README.md": 950, "ARCHITECTURE.md": 2200, "docs/kernels.md": 1900, "docs/history.md": 1000}
MOST_WORDS_IN_ALL = 22_900
WRITERS = {"docs/options.py": "docs/options.md", "results/recorded/readme.py": "results/recorded/README.md"}


def documents() -> list[Path]:
    """The documents of the project, each once; folders of tools, whose names begin with a dot, have none."""
    inside = (path.relative_to(ROOT) for path in ROOT.glob("**/*.md"))
    return sorted({(ROOT / path).resolve() for path in inside if not any(part.startswith(".") for part in path.parts)})


def words(path: Path) -> int:
    """How many words `wc -w` counts."""
    return len(path.read_text(encoding="utf-8").split())


def loaded(script: str) -> ModuleType:
    """A script that is in no package."""
    spec = importlib.util.spec_from_file_location(f"written_by_{Path(script).stem}", ROOT / script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("document", "most"), MOST_WORDS.items())
def test_a_document_is_short(document: str, most: int) -> None:
    """What one reads first can be read at once."""
    assert words(ROOT / document) <= most


def test_all_documents_together_are_short() -> None:
    """All of them can be read in two hours."""
    counted = {str(path.relative_to(ROOT)): words(path) for path in documents()}
    assert "docs/options.md" in counted
    assert sum(counted.values()) <= MOST_WORDS_IN_ALL, counted


@pytest.mark.parametrize(("script", "document"), WRITERS.items())
def test_a_written_document_is_up_to_date(script: str, document: str) -> None:
    """`make docs` would change nothing."""
    assert loaded(script).page() == (ROOT / document).read_text(encoding="utf-8"), "run make docs"


def test_pages_of_results_are_up_to_date() -> None:
    """`make docs` would change none; every device that has rows has a page."""
    pages = loaded("results/readme.py").pages()
    assert {path.parent for path in pages} == {path.parent for path in (ROOT / "results").glob("*/made.csv")}
    for path, text in pages.items():
        assert text == path.read_text(encoding="utf-8"), "run make docs"


def test_every_option_is_documented() -> None:
    """docs/options.md has a line for each option and argument of each command."""
    options = loaded("docs/options.py")
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    names = [
        options.shown_names(action) or [action.metavar]
        for parser in options.parsers()
        for action in parser._actions
        if action.dest not in ("help", "version")
    ]
    assert len(names) > 70
    assert not [shown for shown in names if f"- {', '.join(f'`{name}`' for name in shown)}: " not in text]


def test_an_option_is_explained_once() -> None:
    """Each command's section names all of its options; what it has to the word as one above is not explained again."""
    options = loaded("docs/options.py")
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("- `")]
    assert len(lines) == len(set(lines)) > 100
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    for parser in options.parsers():
        for action in parser._actions:
            if action.dest not in ("help", "version"):
                assert options._shown(action) in sections[parser.prog], (parser.prog, action.dest)


def test_every_result_file_says_where_it_comes_from() -> None:
    """made.csv of a device's folder has the commits of each file, which results/provenance.yaml says what it holds."""
    for device, said in yaml.safe_load((ROOT / "results" / "provenance.yaml").read_text(encoding="utf-8")).items():
        folder = ROOT / "results" / device
        if not (folder / "made.csv").exists():
            # Wanted, and never made.
            assert not list(folder.glob("*.yaml"))
            continue
        made = list(csv.DictReader((folder / "made.csv").read_text(encoding="utf-8").splitlines()))
        assert sorted(path.name for path in folder.glob("*.yaml")) == sorted(row["file"] for row in made)
        older = {path.name for path in folder.glob("older/*.yaml")}
        assert not older & {row["file"] for row in made}
        assert bool(older) == ("older" in said)
        for row in made:
            assert said["files"][row["file"]]["what"]
            rows = (folder / row["file"]).read_text(encoding="utf-8").count("\n- ")
            assert int(row["rows"]) == rows, f"{row['file']} has {rows} rows, made.csv says {row['rows']}"
            assert row["command"] in said["commands"]
        commits = [commit for row in made for commit in row["commits"].split()]
        assert all(re.fullmatch(r"[0-9a-f]{7}", commit) for commit in commits)


def test_kernels_has_every_family_and_parameter() -> None:
    """docs/kernels.md has a row for each family, and for each parameter one with the families that declare it."""
    rows = [line.split(" | ") for line in (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8").splitlines()]
    said = {name: row for row in rows if len(row) > 3 for name in re.findall(r"`(\w+)`", row[0])}
    declared: dict[str, set[str]] = {}
    for family in FAMILIES.values():
        assert family.name in said
        for parameter in family.parameters:
            declared.setdefault(parameter.name, set()).add(family.name)
    for name, families in declared.items():
        assert set(re.findall(r"`(\w+)`", said[name][2])) == families, name


def test_names_of_configs_are_real() -> None:
    """The names that docs/kernels.md explains are such as genkern reads and writes."""
    names = re.findall(r"^    (\w+_BM\w+)$", (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) == 2
    for name in names:
        config = Config.parse(name)
        assert config.name == name
        assert config.family in FAMILIES
