"""Numerics of the kernels in Gluon, which Triton's interpreter does not run: through tests/gluon_stand_in.py."""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np
import pytest
from gluon_stand_in import run_module
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from genkern.config import Config
from genkern.family import FAMILIES
from genkern.generate import generate
from genkern.problem import GemmProblem

GLUON = sorted(name for name, family in FAMILIES.items() if not family.interpreted)


def product(problem: GemmProblem, config: Config, units: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """C of one call, NaN before it, with the exact product as `expected`."""
    a, b, c = _operands(problem, seed)
    operands = {"a": a, "b": b, "c": c}
    expected = a.astype(np.float64) @ b.astype(np.float64)
    if problem.bias:
        operands["bias"] = np.random.default_rng(seed).integers(-8, 9, problem.N).astype(np.float16)
        expected += operands["bias"]
    text = generate(problem, [config], "sm_90").text
    return {"expected": expected, **run_module(text, config.name, operands, units, seed)}


@st.composite
def cases(draw: st.DrawFn) -> tuple[GemmProblem, Config, int]:
    """A problem, a config of some family in Gluon, and a number of SMs."""
    family = draw(st.sampled_from(GLUON))
    size = draw(st.integers(1, 200)), draw(st.integers(1, 200)), draw(st.integers(1, 400))
    problem = GemmProblem(*size, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16", bias=draw(st.booleans()))
    split_k = draw(st.integers(1, 5)) if FAMILIES[family].splits_k else 1
    width = draw(st.sampled_from([32, 48, 80, 112, 128]))
    config = Config(family, 64, width, 64, draw(st.integers(1, 3)), split_k, 4, draw(st.integers(3, 5)))
    return problem, config, draw(st.integers(1, 9))


@settings(max_examples=60, deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_any_size_is_exact(case: tuple[GemmProblem, Config, int], seed: int) -> None:
    """Every element of C is written, with the exact sum, in whatever order the programs run; counters end at zero."""
    problem, config, units = case
    found = product(problem, config, units, seed)
    assert np.array_equal(found["c"].astype(np.float64), found["expected"])
    assert not found.get("counters", np.zeros(1)).any()


def test_only_what_is_beyond_the_last_full_wave_is_shared() -> None:
    """With five SMs, 12 tiles are two full waves and two tiles that all share; four of the five leave a partial sum."""
    problem = GemmProblem(128, 480, 512, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16")
    found = product(problem, Config("warp_specialized", 64, 80, 64, 1, 3, 4, 3), 5)
    assert np.array_equal(found["c"].astype(np.float64), found["expected"])
    left = ~np.isnan(found["workspace"].reshape(5, 64 * 80))
    # Tile 0 is shared by the first three programs, tile 1 by the last three; the last of each adds up.
    assert left.all(axis=1).tolist() == [True, True, True, True, False]
    assert left.any(axis=1).tolist() == left.all(axis=1).tolist()


@pytest.mark.parametrize("family", GLUON)
@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        # The buffer of this step is given away instead of that of the step before.
        (
            r"empty.index\(\(step \+ STAGES - 1\) % STAGES\), count=1, pred",
            "empty.index(slot), count=1, pred",
            "wrong|nobody",
        ),
        (r"num_outstanding=0, deps=\(acc_0,\)", "num_outstanding=1, deps=(acc_0,)", "before its products"),
        (r"( +)fence_async_shared\(\)\n", r"\1pass\n", "may not see"),
        (r"    tma.store_wait\(0\)\n\n", "    pass\n\n", "nobody waits|wrong"),
    ],
    ids=["early release", "early use", "no fence", "no wait"],
)
def test_the_stand_in_notices(family: str, pattern: str, replacement: str, message: str) -> None:
    """A kernel with a mistake in its synchronisation does not pass here."""
    problem = GemmProblem(130, 70, 700, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16")
    config = Config(family, 64, 32, 64, 1, 1, 4, 3)
    text, count = re.subn(pattern, replacement, generate(problem, [config], "sm_90").text)
    assert count > 0
    ast.parse(text)
    with pytest.raises(AssertionError, match=message):
        _exact(problem, text, config)


def _exact(problem: GemmProblem, text: str, config: Config) -> None:
    """Raise AssertionError unless the module runs, and writes the exact product."""
    a, b, c = _operands(problem, 0)
    run_module(text, config.name, {"a": a, "b": b, "c": c}, 2, 0)
    assert np.array_equal(c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64)), "wrong"


def _operands(problem: GemmProblem, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """A, B and an unset C, in whole numbers whose sums float16 holds."""
    draw = np.random.default_rng(seed)
    a = draw.integers(-1, 2, (problem.M, problem.K)).astype(np.float16)
    b = draw.integers(-1, 2, (problem.N, problem.K)).astype(np.float16).T
    return a, b, np.full((problem.M, problem.N), np.nan, np.float16)
