"""Documents that a command writes are up to date, and documents name what exists."""

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
WRITERS = {
    "docs/options.py": "docs/options.md",
    "docs/formats.py": "docs/formats.md",
    "results/recorded/readme.py": "results/recorded/README.md",
}


def loaded(script: str) -> ModuleType:
    """A script that is in no package."""
    spec = importlib.util.spec_from_file_location(f"written_by_{Path(script).stem}", ROOT / script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_pictures_are_made_from_results_as_the_documents_show_them(tmp_path: Path) -> None:
    """docs/pictures.py draws each picture of docs/pictures, and a document shows it."""
    pictures = loaded("docs/pictures.py")
    names = {f"{name}.svg" for name in pictures.PICTURES}
    assert {path.name for path in pictures.FOLDER.iterdir()} == names
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert all(f"pictures/{name})" in pages for name in names)
    pictures.draw(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == names
    # Words of a picture are text, so that it can be searched: the title says that the times were measured, and where.
    assert all("measured" in path.read_text(encoding="utf-8") for path in tmp_path.iterdir())


def test_the_picture_of_a_run_shows_its_capture() -> None:
    """README's picture is drawn from the output that docs/runs keeps, without progress bars or fonts to load."""
    capture = (ROOT / "docs" / "runs" / "quickstart.ansi").read_text(encoding="utf-8")
    picture = (ROOT / "docs" / "runs" / "quickstart.svg").read_text(encoding="utf-8")
    assert "docs/runs/quickstart.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")
    words = [word for word in capture.split("\x1b[?25h")[-1].split() if word.isalnum()]
    assert len(words) > 20
    assert all(word in picture for word in words)
    assert "\u2501" not in picture
    assert "url(" not in picture.replace("url(#", "")


def test_every_claim_about_another_tuner_has_a_source() -> None:
    """docs/compared.md: each word about a tuner is a link to a source that the page lists, or a question mark."""
    text = (ROOT / "docs" / "compared.md").read_text(encoding="utf-8")
    sources = dict(re.findall(r"(?m)^\[([\w-]+)\]: (https://\S+)$", text))
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.count(" | ") == 9]
    _, *needs = rows
    assert len(needs) >= 20
    for _, own, *others in needs:
        assert re.fullmatch(r"\[(yes|part|no)\]\(\S+\)", own)
        for cell in others:
            linked = re.fullmatch(r"\[(?:yes|part|no)\]\[([\w-]+)\]", cell)
            assert cell == "?" or (linked and linked[1] in sources), cell
    used = set(re.findall(r"\]\[([\w-]+)\]", text))
    assert used == set(sources)


def test_every_option_is_documented() -> None:
    """docs/options.md has a line for each option and argument of each command."""
    options = loaded("docs/options.py")
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    names = [
        options.shown_names(action) or [action.metavar]
        for parser in options.parsers()
        for action in parser._actions
        if action.dest not in options.HELP
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
            if action.dest not in options.HELP:
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
