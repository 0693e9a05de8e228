"""What tests of the command share: in this process a check under the interpreter costs a fork only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from forked_checks import ForkedChecks


@pytest.fixture(scope="session")
def forked_checks() -> Iterator[ForkedChecks]:
    """One process for all."""
    with contextlib.closing(ForkedChecks()) as checks:
        yield checks


@pytest.fixture
def fast_checks(forked_checks: ForkedChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that use it; tests/tuning/test_check.py has the check's own process."""
    monkeypatch.setattr("genkern.tuning.check.run_supervised", forked_checks.run)
