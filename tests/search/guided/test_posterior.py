"""Posterior: what was measured is known, what is alike follows, and errors are believed to be as large as they are."""

from __future__ import annotations

import numpy as np
import pytest

from genkern.search.guided.posterior import Numbers, Posterior, expected_gain

PRIOR = np.array([0.0, 0.1, 0.2, 0.3])
KINDS = np.array([0, 0, 1, 1])


def alike(row: int) -> Numbers:
    """Each row is like itself, and rows of a pair like each other."""
    return np.where(KINDS[row] == KINDS, 0.9, 0.0) + 0.1 * (np.arange(4) == row)


def test_before_any_time_it_is_the_prior() -> None:
    mean, deviation = Posterior(PRIOR, alike, KINDS).predicted()
    assert mean.tolist() == PRIOR.tolist()
    assert len(set(deviation.tolist())) == 1


def test_a_time_sets_the_level_and_is_known() -> None:
    posterior = Posterior(PRIOR, alike, KINDS)
    posterior.add(1, 5.1)
    mean, deviation = posterior.predicted()
    assert mean == pytest.approx([5.0, 5.1, 5.2, 5.3], abs=1e-6)
    assert deviation[1] < deviation[0] < deviation[2]


def test_an_error_is_shared_by_what_is_alike() -> None:
    """Row 3 takes half an octave longer than the model says, so row 2 will."""
    posterior = Posterior(PRIOR, alike, KINDS)
    posterior.add(0, 5.0)
    posterior.add(3, 5.8)
    mean, _ = posterior.predicted()
    assert mean[2] - mean[1] > 0.4


def test_what_errs_alike_is_known_before_any_time() -> None:
    """Row 0 with itself, with its pair, and with another kind; asking for that changes nothing of what follows."""
    posterior, other = (Posterior(PRIOR, alike, KINDS) for _ in range(2))
    of_itself, of_pair, *of_others = posterior.correlated(0).tolist()
    assert of_itself == pytest.approx(1.0)
    assert 0.5 < of_pair < 1.0
    assert of_others == [0.0, 0.0]
    for each in (posterior, other):
        each.add(0, 5.0)
    assert posterior.predicted()[0].tolist() == other.predicted()[0].tolist()


def test_large_errors_are_believed() -> None:
    """Where the model is far off at this size, what has no time may be far off too."""

    def deviation_of_last(times: list[float]) -> float:
        posterior = Posterior(np.zeros(9), lambda row: np.eye(9)[row], np.arange(9))
        for row, octaves in enumerate(times):
            posterior.add(row, octaves)
        return float(posterior.predicted()[1][-1])

    quiet, loud = deviation_of_last([5.0, 5.05, 4.95, 5.02] * 2), deviation_of_last([5.0, 7.0, 4.0, 6.0] * 2)
    assert loud > 4 * quiet


def test_expected_gain() -> None:
    """By definition, as the mean over draws; never less than what the mean alone promises."""
    mean, deviation = np.array([0.0, 1.0, -1.0]), np.array([0.5, 0.5, 0.01])
    gain = expected_gain(0.0, mean, deviation)
    draws = np.random.default_rng(0).normal(mean, deviation, size=(200_000, 3))
    assert gain == pytest.approx(np.maximum(-draws, 0.0).mean(axis=0), abs=3e-3)
    assert gain[2] == pytest.approx(1.0)
