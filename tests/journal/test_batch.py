"""Tests of genkern/journal/batch.py: many records as one value, and back to the last bit."""

from __future__ import annotations

import json
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.gemm.records import Measurement, Outcome, Unfit
from genkern.journal.batch import columns, measurements_of, restored, shortened, unfit_columns, unfit_of

times = st.floats(1e-3, 1e7)
words = st.text("_=ab1", max_size=6)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    samples = tuple(draw(st.lists(times, max_size=5)))
    duration_us = draw(st.sampled_from([None, 2.5, *([median(samples)] if samples else [])]))
    # What was measured has a time.
    outcomes = [outcome for outcome in Outcome if duration_us is not None or outcome is not Outcome.MEASURED]
    kind = draw(st.sampled_from(outcomes)), draw(st.sampled_from(["cudagraph", "cupti"]))
    texts = draw(st.sampled_from(["screen", "final"])), duration_us, samples, draw(words)
    return Measurement(draw(words), *kind, *texts, draw(st.integers(0, 3)), draw(st.sampled_from([None, 0.0, 1755.5])))


@given(st.lists(measurements(), max_size=8))
def test_measurements_survive_to_the_last_bit(found: list[Measurement]) -> None:
    """Resuming chooses from the very samples that were measured: no digit is lost, in their order."""
    assert measurements_of(json.loads(json.dumps(columns(found)))) == found


@given(st.lists(words))
def test_names_survive(names: list[str]) -> None:
    """Whatever they are, empty and repeated ones too."""
    assert restored(shortened(names)) == names


def test_neighbours_are_short() -> None:
    """A name says what differs from the one before it."""
    names = ["tiled_BM16_BN32_GM1", "tiled_BM16_BN32_GM4", "tiled_BM32_BN32_GM4", "vendor", "vendor"]
    assert shortened(names) == ["=tiled_BM16_BN32_GM1", "___GM4", "_BM32", "=vendor", ""]


def test_what_is_shared_is_said_once() -> None:
    """One kind of measurement for all that differ in config and times alone; one message for all that it befell."""
    found = [Measurement(f"c_{i}", Outcome.MEASURED, "cudagraph", duration_us=i, samples_us=(i,)) for i in (1.0, 2.5)]
    assert columns(found) == {
        "kinds": [{"outcome": "measured", "time_source": "cudagraph", "stage": "screen"}],
        "config": ["=c_1.0", "_2.5"],
        "us": [1.0, 2.5],
    }
    spills, slow = Unfit(Outcome.OVER_RESOURCES, "spills"), Unfit(Outcome.COMPILE_TIMED_OUT, "slow")
    value = unfit_columns([(["a_1", "a_2"], spills), (["b"], slow), (["a_3"], spills)])
    assert [group["config"] for group in value] == [["=a_1", "_2", "_3"], ["=b"]]
    assert unfit_of(json.loads(json.dumps(value))) == {"a_1": spills, "a_2": spills, "a_3": spills, "b": slow}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"kinds": [], "config": ["=a"], "us": [1.0]},
        {"kinds": [{"outcome": "lost"}], "config": [], "us": []},
        {"kinds": [{"outcome": "measured", "time_source": ""}], "config": ["=a"], "us": []},
        {"kinds": [{"outcome": "measured", "time_source": ""}], "config": ["a"], "us": [1.0]},
        {"kinds": [{"outcome": "measured", "time_source": "", "speed": 1}], "config": ["=a"], "us": [1.0]},
        {"kinds": [{"outcome": "measured", "time_source": ""}], "config": ["=a"], "us": [float("inf")]},
        {"kinds": [{"outcome": "measured", "time_source": ""}], "config": ["=a"], "us": [-1.0]},
        {"kinds": [{"outcome": "measured", "time_source": ""}], "config": ["=a"], "us": [10**400]},
        {"kinds": [{"outcome": "measured", "time_source": ""}], "config": ["=a"], "us": [None]},
    ],
)
def test_what_makes_no_sense_is_refused(value: dict[str, object]) -> None:
    """By an error that the journal's reader knows as damage."""
    with pytest.raises((ValueError, LookupError, TypeError)):
        measurements_of(value)
