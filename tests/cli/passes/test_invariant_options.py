"""Tests of genkern/cli/invariant_options.py: what does not go together."""

from __future__ import annotations

import pytest
from command import run_here


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sums", "library"], "--sums belongs to --batch_invariant"),
        (["--m_weights", "1:2"], "--m_weights belongs to --batch_invariant"),
        (["--batch_invariant", "--m_weights", "1:2,1:3"], "is not M:WEIGHT"),
        (["--batch_invariant", "--bucket", "x"], "--bucket does not"),
        (["--batch_invariant", "--explain"], "--explain does not"),
        (["--batch_invariant", "-o", "/dev/stdout"], "give a file as -o"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, before anything is done."""
    m = [] if "--bucket" in options else ["-m", "1"]
    assert said in run_here(capsys, *m, "-n", 64, "-k", 64, "--arch", "sm_90", *options).refusal
