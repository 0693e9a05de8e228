"""The commands that documents show do run, without a GPU."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from long_tests import LONG

ROOT = Path(__file__).resolve().parent.parent


def commands_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("document_commands", ROOT / "docs" / "commands.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks its own module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


DOCUMENTS = commands_module()
PAGES = {page.relative_to(ROOT).as_posix(): page for page in DOCUMENTS.pages()}


def test_the_tutorial_and_how_to_pages_have_commands() -> None:
    assert "docs/tutorial.md" in PAGES
    assert len([name for name in PAGES if name.startswith("docs/howto/")]) >= 5


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_run(name: str, tmp_path: Path, cache_dir: Path) -> None:
    """All of them, in their order, in one folder; those that take minutes only in the long tests."""
    folder = DOCUMENTS.prepared(tmp_path)
    for command in DOCUMENTS.commands(PAGES[name]):
        if command.long and not LONG:
            continue
        done = DOCUMENTS.run(command, folder, {"GENKERN_CACHE_DIR": str(cache_dir)})
        assert done.returncode == 0, f"{command.text}{done.stdout}"
        # A command that prints nothing has nothing to show, and the other way round.
        assert bool(done.stdout.strip()) == bool(command.shown.strip()), f"run make docs: {command.text}"


@pytest.mark.parametrize("name", PAGES)
def test_times_that_a_page_shows_are_marked(name: str) -> None:
    """Each output with times says whether they were predicted, or names the clock that measured them."""
    for command in DOCUMENTS.commands(PAGES[name]):
        if re.search(r"(?m)\bus\b", command.shown):
            assert re.search("predicted|cudagraph", command.shown), command.text


def test_a_block_is_read_as_commands_with_outputs(tmp_path: Path) -> None:
    """Lines after "$ " and "> " are one command; the lines below are its output; other blocks are not run."""
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nfalse\n```\n\n"
        "```console\n$ cat > file <<'END'\n> text\n> END\n$ cat file\nold\n```\n\n"
        "<!-- long -->\n\n```console\n$ cat file file | tail -1\n```\n",
        encoding="utf-8",
    )
    read = DOCUMENTS.commands(page)
    assert [command.long for command in read] == [False, False, True]
    assert [command.shown for command in read] == ["", "old\n", ""]
    text = DOCUMENTS.rewritten(page)
    assert "$ cat file\ntext\n```" in text
    assert "tail -1\ntext\n```" in text
    assert text.startswith("```sh\nfalse\n```")


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    """Also if it is not the last of a pipe; its page is not changed."""
    page = tmp_path / "page.md"
    page.write_text("```console\n$ false | cat\n```\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"false \| cat"):
        DOCUMENTS.rewritten(page)
