"""Tests of genkern.errors: one family, each also the builtin that a caller would expect."""

from __future__ import annotations

import pytest

from genkern.errors import GenkernError, InputError, OutputError, ProfilerError, ResultsError


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
