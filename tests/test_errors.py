"""Tests of genkern.errors: one family, each also the builtin that a caller would expect; and bugs."""

from __future__ import annotations

import pickle

import pytest

from genkern.errors import (
    BugError,
    GenkernError,
    InputError,
    OutputError,
    ProfilerError,
    ResultsError,
    one_line,
    reporting_bugs,
)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [(InputError, ValueError), (ResultsError, ValueError), (OutputError, OSError), (ProfilerError, RuntimeError)],
)
def test_family_and_builtin(error: type[GenkernError], builtin: type[Exception]) -> None:
    """Each error is caught as a GenkernError and as its builtin, and prints as its message alone."""
    raised = error("cannot write x: no space; try y")
    assert isinstance(raised, GenkernError)
    assert isinstance(raised, builtin)
    assert str(raised) == "cannot write x: no space; try y"


def raised(error: BaseException) -> BaseException:
    """What comes out when this is raised where bugs are told."""
    try:
        with reporting_bugs("making tea"):
            raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("error", [KeyError("x"), NameError("x is not defined"), RuntimeError("x"), ValueError("x")])
def test_a_bug_is_told_with_its_place(error: Exception) -> None:
    """The line says what and in doing what, the details where; both survive the way to another process."""
    bug = raised(error)
    assert isinstance(bug, BugError)
    assert str(bug) == f"making tea: {one_line(error)}"
    assert "test_errors.py" in bug.details
    again = pickle.loads(pickle.dumps(bug))
    assert (type(again), again.message, again.details) == (BugError, bug.message, bug.details)


@pytest.mark.parametrize(
    "error", [InputError("x"), OutputError("x"), OSError(28, "full"), MemoryError(), KeyboardInterrupt(), BugError("x")]
)
def test_what_is_no_bug_stays_what_it_is(error: BaseException) -> None:
    """Users' errors, the machine's, a stop, and a bug that is told already."""
    assert raised(error) is error


def test_errors_fit_one_line() -> None:
    """Whatever a library raises, the message is one line of at most 300 characters."""
    said = one_line(ValueError("first\n  second\t" + "x" * 1000))
    assert said.startswith("ValueError: first second xxx")
    assert len(said) == 300
