"""Tests of genkern.gemm.problem: what a problem is named, and the work that it stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.errors import InputError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import ACTIVATIONS, MAX_DIMENSION, GemmProblem

DIMENSIONS = st.integers(1, MAX_DIMENSION)
TYPES = st.sampled_from(sorted(DTYPES))
PROBLEMS = st.builds(
    GemmProblem,
    M=DIMENSIONS,
    N=DIMENSIONS,
    K=DIMENSIONS,
    op=st.sampled_from(["a16w16", "a8w8"]),
    dtype_a=TYPES,
    dtype_b=TYPES,
    dtype_c=TYPES,
    row_major_a=st.booleans(),
    row_major_b=st.booleans(),
    bias=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
)


@pytest.mark.parametrize(
    "value", [0, -1, 2**31 - 1, 2**31, 2**40, 1.0, 4096.5, "4096", "1; import os", None, True, [16]]
)
@pytest.mark.parametrize("name", ["M", "N", "K"])
def test_impossible_dimensions_are_refused(name: str, value: object) -> None:
    """A dimension is a whole number from 1 to 2**31 - 2**16; the message names the dimension and the value."""
    sizes: dict[str, object] = {"M": 16, "N": 16, "K": 16, name: value}
    with pytest.raises(InputError, match=f"^{name} = .* 1 to 2147418112$"):
        GemmProblem(**sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", [2**bit for bit in range(4, 11)])
def test_kernels_round_the_largest_size_up_within_32_bits(block: int) -> None:
    """To whole blocks as tl.cdiv does, one block further as a loop does at its end, and to as many blocks a split."""
    blocks = -(-MAX_DIMENSION // block)
    assert MAX_DIMENSION + block - 1 < 2**31
    assert (blocks + 1) * block < 2**31
    assert all(-(-blocks // splits) * splits * block < 2**31 for splits in range(1, 65))


@pytest.mark.parametrize("value", ["tanh", "ReLU", "", None, 1, ["relu"], "relu; import os", "x" * 1000])
def test_unknown_activations_are_refused(value: object) -> None:
    """The message names the value, not all of a long one, and the activations that there are."""
    with pytest.raises(InputError, match=r"^activation = .{1,60} none, relu, gelu, silu$"):
        GemmProblem(16, 16, 16, activation=value)  # type: ignore[arg-type]


@given(PROBLEMS, PROBLEMS)
def test_names_are_distinct_and_fit_a_file_system(one: GemmProblem, other: GemmProblem) -> None:
    """Different problems have different names, of letters, digits and underscores, short enough for a file."""
    assert (one.name == other.name) == (one == other)
    assert one.name.replace("_", "").isalnum()
    assert one.name.isascii()
    assert len(one.name) < 200


def test_name_as_documented() -> None:
    """The layout letters are T for row-major and N for column-major, A first; no activation has no name."""
    assert GemmProblem(16, 32, 64).name == "16x32x64_a16w16_bf16_bf16_bf16_TN"
    named = GemmProblem(16, 32, 64, "a8w8", "int8", "int8", "fp16", False, True, True)
    assert named.name == "16x32x64_a8w8_int8_int8_fp16_NT_bias"
    assert GemmProblem(16, 32, 64, activation="gelu").name == "16x32x64_a16w16_bf16_bf16_bf16_TN_gelu"
    both = GemmProblem(16, 32, 64, bias=True, activation="silu")
    assert both.name == "16x32x64_a16w16_bf16_bf16_bf16_TN_bias_silu"


def test_work() -> None:
    """FLOPs count multiply and add apart."""
    problem = GemmProblem(2, 3, 5, "a8w8", "int8", "int8", "fp32", bias=True)
    assert problem.flops == 60
    assert problem.tflops(1e-6) == pytest.approx(60.0)


@given(PROBLEMS, st.floats(0.1, 1e6))
def test_rates_are_work_over_time(problem: GemmProblem, time_us: float) -> None:
    """TFLOP/s x 10^12 x seconds is the FLOPs, at any size."""
    assert problem.tflops(time_us) * 1e12 * time_us * 1e-6 == pytest.approx(problem.flops)
