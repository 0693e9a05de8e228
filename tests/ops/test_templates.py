"""Tests of genkern.ops.templates: what jinja2 makes of a template is kept, and never believed when it is another's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import jinja2
import pytest

from genkern.ops.templates import environment_of


@pytest.fixture
def render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The template as a new process renders it, after this text was written to it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)

    def rendered(text: str) -> str:
        (tmp_path / "kernel.py.j2").write_text(text)
        environment_of.cache_clear()
        return environment_of((("own", tmp_path),)).get_template("own/kernel.py.j2").render(n=3)

    return rendered


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(jinja2.Environment, "_parse", fail)


def kept(folder: Path) -> list[Path]:
    return list((folder / "__pycache__").glob("*")) if (folder / "__pycache__").exists() else []


def test_a_template_is_compiled_once(
    render: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process takes what the first one made, and makes a changed text anew."""
    assert render("{{ n }} tiles") == "3 tiles"
    assert len(kept(tmp_path)) == 1
    assert render("{{ n }} waves") == "3 waves"
    no_compiler(monkeypatch)
    assert render("{{ n }} waves") == "3 waves"
    with pytest.raises(AssertionError, match="compiled again"):
        render("{{ n }} warps")


@pytest.mark.parametrize("place", [0, 40, -1])
def test_what_is_damaged_is_made_again(place: int, render: Callable[[str], str], tmp_path: Path) -> None:
    """One wrong byte anywhere, or a file that ends early, is as if nothing were there."""
    assert render("{{ n }} tiles") == "3 tiles"
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    wrong = bytearray(whole)
    wrong[place] ^= 1
    for data in (bytes(wrong), whole[:place], b""):
        file.write_bytes(data)
        assert render("{{ n }} tiles") == "3 tiles"
        assert file.read_bytes() == whole


def test_nothing_is_written_where_python_writes_nothing(
    render: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONDONTWRITEBYTECODE holds for templates too, and a folder that cannot be written to is no error."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert render("{{ n }} tiles") == "3 tiles"
    assert kept(tmp_path) == []
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "__pycache__").write_text("no folder")
    assert render("{{ n }} tiles") == "3 tiles"


def test_a_name_that_nothing_gives_is_an_error(render: Callable[[str], str]) -> None:
    """A template that asks for what it is not given ends, and writes nothing wrong into a kernel."""
    with pytest.raises(jinja2.UndefinedError, match="'warps' is undefined"):
        render("{{ n * warps }}")
