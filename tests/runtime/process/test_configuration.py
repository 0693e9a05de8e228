"""What the environment says of dispatch, and that the documents say so too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from genkern.files.aiter_variables import AITER_TABLES
from genkern.ops.op import op_names
from genkern.runtime.calls.configuration import (
    OF_FORMAT,
    ONLINE_OF_OTHERS,
    Configuration,
    configuration,
)

ROOT = Path(__file__).resolve().parents[3]


def test_without_variables_nothing_is_done() -> None:
    """Without variables nothing is read, written, logged or tuned, and there is nothing to complain of."""
    assert configuration({"PATH": "/bin"}) == Configuration()


def test_lists_of_all_names_merge() -> None:
    """A format has the paths of its own variables, genkern's and AITER's, and those for all, each once."""
    found = configuration(
        {
            "GENKERN_CONFIG": "all.genkern::b.yaml",
            "GENKERN_CONFIG_A8W8": "b.yaml:c.csv",
            "AITER_CONFIG_GEMM_A8W8": "/d.csv:c.csv",
            "AITER_CONFIG_GEMM_BF16": "e.csv",
            "GENKERN_CONFIG_GEMM_BF16": "f.csv",
        }
    )
    assert found.paths_of("a8w8") == ("b.yaml", "c.csv", "/d.csv", "all.genkern")
    assert found.paths_of("a16w16") == ("f.csv", "e.csv", "all.genkern", "b.yaml")
    assert found.paths_of("a8w8_blockscale") == ("all.genkern", "b.yaml")
    assert found.notes == ()


@pytest.mark.parametrize("prefix", OF_FORMAT)
def test_every_format_has_a_variable(prefix: str) -> None:
    """Named after it in capitals."""
    found = configuration({f"{prefix}{op.upper()}": f"{op}.yaml" for op in op_names()})
    assert found.notes == ()
    assert [found.paths_of(op) for op in op_names()] == [(f"{op}.yaml",) for op in op_names()]


@pytest.mark.parametrize(("name", "op"), [(name, op) for name, op in AITER_TABLES.items() if op])
def test_aiters_tables_are_read_by_their_names(name: str, op: str) -> None:
    """Every variable of AITER's whose table is of a format that genkern has."""
    found = configuration({name: "x.csv:y.yaml"})
    assert (found.paths_of(op), found.notes) == (("x.csv", "y.yaml"), ())
    assert found.paths_of("a16w16") == ()


@pytest.mark.parametrize("name", ONLINE_OF_OTHERS)
@pytest.mark.parametrize(("text", "told"), [("1", 1), ("true", 1), ("0", 0), ("", 0)])
def test_online_tuning_of_others_is_told(name: str, text: str, told: int) -> None:
    """It starts nothing in genkern; one line says what does, unless that is asked for."""
    found = configuration({name: text})
    assert (found.online, len(found.notes)) == (False, told)
    assert all(name in note and "GENKERN_ONLINE_TUNING" in note for note in found.notes)
    assert configuration({name: text, "GENKERN_ONLINE_TUNING": "1"}).notes == ()


@pytest.mark.parametrize(
    "name",
    [
        "GENKERN_CONFIG_A9W9",
        "AITER_CONFIG_GEMM_",
        "AITER_CONFIG_GEMM_A9W9",
        *(name for name, op in AITER_TABLES.items() if not op),
    ],
)
def test_formats_that_are_not_there_are_said(name: str) -> None:
    """One line, and the rest counts."""
    found = configuration({name: "x.csv", "GENKERN_CONFIG": "y.yaml"})
    assert [name in note for note in found.notes] == [True]
    assert found.paths_of("a16w16") == ("y.yaml",)


@pytest.mark.parametrize(("text", "meant"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("", False)])
@pytest.mark.parametrize("of", ["GENKERN", "AITER"])
def test_switches(text: str, meant: bool, of: str) -> None:
    """genkern's names and AITER's are the same switches."""
    found = configuration({f"{of}_TUNE_GEMM": text, f"{of}_LOG_TUNED_CONFIG": text})
    assert (found.record, found.log_choices, found.notes) == (meant, meant, ())


def test_own_name_is_the_stronger_word() -> None:
    """What genkern's own variable says holds, 0 too."""
    assert not configuration({"GENKERN_TUNE_GEMM": "0", "AITER_TUNE_GEMM": "1"}).record
    assert configuration({"GENKERN_TUNE_GEMM": "1", "AITER_TUNE_GEMM": "0"}).record


def test_the_folder_has_a_name_of_earlier_releases() -> None:
    """Today's name is the stronger word; an empty one says nothing."""
    assert configuration({"GENKERN_CAPTURE_DIR": "old"}).record_dir == "old"
    assert configuration({"GENKERN_RECORD_DIR": "new", "GENKERN_CAPTURE_DIR": "old"}).record_dir == "new"
    assert configuration({"GENKERN_RECORD_DIR": "", "GENKERN_CAPTURE_DIR": "old"}).record_dir == "old"
    assert configuration({}).record_dir == ""


def test_what_makes_no_sense_is_said() -> None:
    """A switch that is neither, and options that no shell would take, are left out with a line each."""
    found = configuration({"GENKERN_ONLINE_TUNING": "maybe", "GENKERN_ONLINE_OPTIONS": "--space 'x"})
    assert (found.online, found.online_options, len(found.notes)) == (False, (), 2)
    assert configuration({"GENKERN_ONLINE_OPTIONS": "--space 'a b'"}).online_options == ("--space", "a b")


def test_pinned_winners_by_variable() -> None:
    """One or several, in capitals too; what can fit nothing is said, and still keeps all else out."""
    one, other = "ab" * 32, "12" * 32
    assert configuration({"GENKERN_BUNDLE_SHA256": f"{one.upper()}:{other}"}).pins == (one, other)
    found = configuration({"GENKERN_BUNDLE_SHA256": "abc"})
    assert (found.pins, len(found.notes)) == (("abc",), 1)


def test_only_proved() -> None:
    """Off unless somebody says so."""
    assert [configuration(said).only_proved for said in ({}, {"GENKERN_ONLY_PROVED": "1"})] == [False, True]


def test_documents_have_every_variable() -> None:
    """Each variable that genkern's code names, its own and AITER's, has a row in the table of docs/dispatch.md."""
    text = (ROOT / "docs" / "dispatch.md").read_text(encoding="utf-8")
    documented = {
        name.rstrip("_")
        for line in text.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([A-Z][A-Z0-9_]+)", line.split("|")[1])
    }
    sources = [*(ROOT / "genkern").glob("**/*.py"), *(ROOT / "profiling").glob("**/*.py")]
    named = {
        name
        for path in sources
        for name in re.findall(r"\"((?:GENKERN|AITER)_[A-Z0-9_]*[A-Z])_?\"", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 8
    assert named <= documented, named - documented
