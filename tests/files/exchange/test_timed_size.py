"""Tests of genkern/files/exchange/timed_size.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from genkern.files.timed_size import Choice, TimedSize, least_loss
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

A, B, C = (Config("tiled", 16, 16, block_k) for block_k in (32, 64, 128))


def timed(m: int, **times: float) -> TimedSize:
    return TimedSize(
        GemmProblem(m, 64, 64), {{"A": A, "B": B, "C": C}[name]: us for name, us in times.items()}, "gfx942"
    )


def test_the_most_common_best_may_be_the_worst_choice() -> None:
    """A is the best of two sizes of three, and three times as slow on the last: B costs the least."""
    sizes = [timed(1, A=10.0, B=10.5), timed(2, A=10.0, B=10.5), timed(3, A=30.0, B=10.0)]
    choice = least_loss(sizes)
    assert choice.config == B
    assert choice.loss == pytest.approx((1.05 * 1.05) ** (1 / 3))


def test_one_size_has_its_best() -> None:
    """At no loss; of equally fast configs always the same one, and the winner before any other."""
    choice = least_loss([timed(1, A=2.0, B=1.0)])
    assert (choice.config, choice.loss) == (B, 1.0)
    assert timed(1, B=1.0, A=1.0).best == timed(1, A=1.0, B=1.0).best
    checked = replace(timed(1, A=2.0, B=1.9), winner=A)
    assert (checked.best, checked.best_us) == (A, 2.0)
    assert least_loss([replace(timed(1, A=1.0, B=1.0), winner=B)]).config == B


def test_what_was_timed_on_more_sizes_comes_first() -> None:
    """C is faster where it was timed, of which there is one size; the loss says over how many it is."""
    assert least_loss([timed(1, A=2.0, C=1.0), timed(2, A=2.0)]) == Choice(A, pytest.approx(2**0.5), 2)
    choice = least_loss([timed(1, A=2.0), timed(2, B=2.0, C=1.0), timed(3, B=2.0)])
    assert (choice.config, choice.sizes) == (B, 2)
