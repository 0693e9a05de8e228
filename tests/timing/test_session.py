"""Tests of genkern/timing/session.py."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from genkern.gemm.problem import ACTIVATIONS, MAX_DIMENSION, GemmProblem
from genkern.timing.session import Budget, Screening, Session

problems = st.builds(
    GemmProblem,
    *[st.integers(1, MAX_DIMENSION)] * 3,
    dtype_a=st.sampled_from(["bf16", "fp8e4m3fn"]),
    row_major_b=st.booleans(),
    bias=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
)
budgets = st.builds(
    Budget,
    protocol=st.sampled_from(["genkern", "tune_gemm"]),
    min_rounds=st.integers(1, 100),
    timeout_s=st.floats(0.1, 86_400),
    rotating_mb=st.floats(0, 65_536),
    icache_flush=st.booleans(),
)


@given(problems, budgets, st.text(), st.integers(0, 2**31))
def test_a_session_survives_its_way_to_the_measured_process(
    problem: GemmProblem, budget: Budget, path: str, seed: int
) -> None:
    """What the process reads is what was sent, on one line whatever the path holds."""
    session = Session(path, problem, "sm_90", 3, path, budget, "hpl", seed, 7.5, Screening(1.6, 40.0, None, 500.0))
    text = session.to_json()
    assert Session.from_json(text) == session
    assert "\n" not in text
    assert json.loads(text)["problem"]["M"] == problem.M


def test_the_default_budget_is_the_documented_protocol() -> None:
    """10 to 60 rounds, and an equal session for an equal problem, so that it is not opened twice."""
    assert (Budget().min_rounds, Budget().final_rounds, Budget().icache_flush) == (10, 60, False)
    a, b = (Session("m.py", GemmProblem(1, 2, 3), "sm_90", 0, ".", Budget()) for _ in range(2))
    assert a == b
