"""Tests of python_mutants.py on a small checkout: what is found, what is not, and that nothing of a fault stays."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.checking.faults_of_python import Fault
from benchmarks.checking.python_mutants import DoesNotApply, copied, finder, place_of, planted, report

CODE = "def area(rows: int, columns: int) -> int:\n    return rows * columns\n"
TESTS = """
from pathlib import Path

from genkern.area import area

RUNS = Path(__file__).with_name("runs")


def test_unsteady():
    RUNS.write_text(RUNS.read_text() + "." if RUNS.exists() else ".")
    assert len(RUNS.read_text()) > 1


def test_area():
    assert area(2, 2) == 4


def test_area_of_a_row():
    assert area(1, 3) == 3
"""
FOUND = Fault("a row is lost", "area", "return rows * columns", "return (rows - 1) * columns", ("area",))
NOT_FOUND = Fault("rows are limited", "area", "return rows * columns", "return min(rows, 9) * columns", ("area",))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in (
        ("genkern/area.py", CODE),
        ("tests/area/test_area.py", TESTS),
        ("genkern/other.py", "area = 1\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "profiling").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["gpu: none"]\n')
    return tmp_path


def test_a_mutant_is_found_by_a_test_that_fails_with_it_alone(checkout: Path) -> None:
    """A test that passes at the second try has not found it. The code is as before."""
    assert finder(FOUND, checkout, 60.0) == "tests/area/test_area.py::test_area"
    assert finder(NOT_FOUND, checkout, 60.0) == ""
    assert (checkout / "genkern/area.py").read_text() == CODE


def test_a_fault_whose_code_is_gone_or_doubled_does_not_apply(checkout: Path) -> None:
    assert place_of(FOUND, checkout) == checkout / "genkern/area.py"
    with planted(FOUND, checkout):
        assert "rows - 1" in (checkout / "genkern/area.py").read_text()
    assert (checkout / "genkern/area.py").read_text() == CODE
    for text in ("", CODE + CODE):
        (checkout / "genkern/area.py").write_text(text)
        with pytest.raises(DoesNotApply, match=FOUND.name):
            place_of(FOUND, checkout)


def test_a_copy_has_what_git_does_not_ignore(checkout: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    (checkout / ".gitignore").write_text("*.log\n")
    (checkout / "run.log").write_text("")
    (checkout / "genkern" / "link").symlink_to("../profiling")
    copied(checkout, checkout / "copy")
    assert (checkout / "copy/tests/area/test_area.py").read_text() == TESTS
    assert (checkout / "copy/genkern/link").is_symlink()
    assert not (checkout / "copy/run.log").exists()


def test_all_found_is_good_and_what_was_not_found_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([FOUND, NOT_FOUND], [True, True]) == 0
    assert report([FOUND, NOT_FOUND], [True, False]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "python_mutants_found: 1" in lines
    assert any(NOT_FOUND.name in line for line in lines)
