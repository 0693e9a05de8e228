"""Properties of every family's kernels under Triton's interpreter, on problems that nobody chose.

Families come from the catalogue: a new one is held to all of this without being named here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from forms import FORMS, made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted import INTERPRETED, Answer, Interpreter, fitted
from long_tests import drawn, in_turns, repeats, spread
from small_gemms import needs_interpreter

from genkern.gemm.config import Config
from genkern.gemm.problem import ACTIVATIONS, GemmProblem
from genkern.kernels.catalogue import block_problem
from genkern.kernels.families.alignment_copy import copied_operands
from genkern.ops.op import get_op

pytestmark = needs_interpreter
FEW = settings(
    max_examples=repeats(2, 8),
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Small, around the blocks, prime, and one.
SIZES = st.one_of(st.integers(1, 70), st.sampled_from([1, 2, 16, 17, 31, 32, 37, 61, 64, 97]))
TYPES = st.sampled_from(
    [*(("a16w16", name) for name in ("fp16", "bf16", "fp32")), *(("a8w8", name) for name in ("int8", "fp8e4m3fn"))]
)
# Unit roundoff of float32, rounding to nearest.
ROUNDOFF = 2.0**-24
LARGE_K = repeats(8_192, 65_536)


@st.composite
def problems(draw: st.DrawFn) -> GemmProblem:
    """Any problem with few elements: sizes, types of operands and output, layouts, bias, activation."""
    op, dtype = draw(TYPES)
    return GemmProblem(
        *(draw(SIZES), draw(SIZES), draw(SIZES), op, dtype, dtype),
        draw(st.sampled_from(["fp16", "bf16", "fp32"])),
        *(draw(st.booleans()), draw(st.booleans()), draw(st.booleans())),
        draw(st.sampled_from(ACTIVATIONS)),
    )


@st.composite
def configs(draw: st.DrawFn, family: str) -> Config:
    """A config of the family with small blocks; what compiles it is of no interest here."""
    blocks = []
    for field in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"):
        # Without a dot every row is a step of its own: small blocks take the interpreter long.
        sizes = (4, 16, 32, 64) if FORMS[family].uses_dot or field == "BLOCK_SIZE_M" else (32, 64, 128)
        taken = [size for size in sizes if not block_problem(FORMS[family], field, size, "triton")]
        blocks.append(draw(st.sampled_from(taken)))
    split = draw(st.sampled_from([1, 2, 3, 7])) if FORMS[family].splits_k else 1
    return made(family, *blocks, draw(st.sampled_from([1, 2, 5])), split)


def agrees(problem: GemmProblem, answer: Answer) -> None:
    """Every element of the NaN-filled output is written and close, every row within the op's limit."""
    assert answer.error_ratio == 0
    assert answer.worst_row_error <= get_op(problem.op).worst_row_limit(problem)


@pytest.mark.parametrize("family", INTERPRETED)
@FEW
@given(data=st.data())
def test_any_product_is_right(interpreter: Interpreter, family: str, data: st.DataObject) -> None:
    """Bias and activation once, whatever the split; output of any type, whatever the operands' type."""
    config = data.draw(configs(family))
    problem = fitted(data.draw(problems()), config)
    agrees(problem, interpreter.run(problem, config, seed=data.draw(st.integers(0, 99))))


@pytest.mark.parametrize("family", INTERPRETED)
@FEW
@given(data=st.data())
def test_slices_of_larger_matrices(interpreter: Interpreter, family: str, data: st.DataObject) -> None:
    """Leading dimensions are those of the operands at run time, odd ones too; nothing beside C is written.

    The copy engine takes only those that are multiples of 16 bytes.
    """
    config = data.draw(configs(family))
    problem = fitted(data.draw(problems()), config)
    longer = st.sampled_from([0, 32, 64]) if FORMS[family].uses_tma else st.integers(0, 40)
    extra = {name: data.draw(longer) for name in "abc"}
    if family == "gemv" and not problem.row_major_a:
        extra["a"] = 0
    answer = interpreter.run(problem, config, extra=extra)
    agrees(problem, answer)
    assert answer.around_is_untouched is not False


@pytest.mark.parametrize(("activation", "family"), spread([*itertools.product(ACTIVATIONS, INTERPRETED)], 4))
def test_every_epilogue_of_every_family(interpreter: Interpreter, family: str, activation: str) -> None:
    """With and without a split, a bias and scales, to each type of output."""
    kinds = (
        (1, True, ("a16w16", "bf16", "fp16")),
        (3, False, ("a16w16", "bf16", "fp32")),
        (1, False, ("a8w8", "int8", "bf16")),
        (3, True, ("a8w8", "int8", "bf16")),
    )
    for split, bias, (op, dtype, dtype_c) in in_turns(kinds, 2, INTERPRETED.index(family)):
        split = split if FORMS[family].splits_k else 1
        config = made(family, *(16, 16, 32) if FORMS[family].uses_dot else (16, 64, 64), 1, split)
        problem = GemmProblem(20, 33, 100, op, dtype, dtype, dtype_c, bias=bias, activation=activation)
        fitting = fitted(problem, config)
        agrees(fitting, interpreter.run(fitting, config))


@pytest.mark.parametrize("family", drawn(INTERPRETED, 5))
def test_long_sums_stay_in_float32(interpreter: Interpreter, family: str) -> None:
    """K of thousands: the error against float64 is within float32's bound, and a split makes it no larger.

    A sum in which each term passes through at most h additions, rounded with unit roundoff u, has a relative error
    of at most h u / (1 - h u) when no terms cancel (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
    edition, sections 3.1 and 4.2). Products of 16-bit floats are exact in float32. Inside a block of K there are at
    most BLOCK_SIZE_K additions, in any order; then one for each block of the split, and one for each split. One
    rounding of a partial sum to 16 bits would be 2^-12 at least, ten times that.
    """
    worst = {}
    for split in (1, 4) if FORMS[family].splits_k else (1,):
        config = made(family, *(16, 16, 256) if FORMS[family].uses_dot else (4, 32, 1024), 1, split)
        problem = fitted(
            GemmProblem(
                config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, LARGE_K, dtype_a="fp16", dtype_b="fp16", dtype_c="fp32"
            ),
            config,
        )
        answer = interpreter.run(problem, config, positive=True)
        agrees(problem, answer)
        assert answer.worst_relative_error is not None
        worst[split] = answer.worst_relative_error
        additions = config.BLOCK_SIZE_K + math.ceil(LARGE_K / config.BLOCK_SIZE_K / split) + split
        assert worst[split] <= additions * ROUNDOFF / (1 - additions * ROUNDOFF)
    assert worst.get(4, 0.0) <= worst[1]


ODD = [({"a": 3, "b": 0, "c": 0}, "a has strides"), ({"a": 0, "b": 1, "c": 0}, "b"), ({"a": 0, "b": 0, "c": 7}, "c")]


@pytest.mark.parametrize("family", INTERPRETED)
@pytest.mark.parametrize(("extra", "why"), ODD)
def test_odd_leading_dimensions_are_taken_or_refused(
    interpreter: Interpreter, family: str, extra: dict[str, int], why: str
) -> None:
    """The copy engine's families say what they need, but for what is copied; all others compute the product."""
    config = made(family, 16, 16, 32)
    problem = fitted(GemmProblem(32, 48, 64), config)
    copied = FORMS[family].realigned and why[0] in copied_operands(problem)
    if copied or not (FORMS[family].stores_tma if why == "c" else FORMS[family].uses_tma):
        agrees(problem, interpreter.run(problem, config, extra=extra))
        return
    with pytest.raises(AssertionError, match=f"ValueError: {why}.* 16 bytes"):
        interpreter.run(problem, config, extra=extra)


def test_one_row_that_is_no_vector_is_refused(interpreter: Interpreter) -> None:
    """gemv reads A as K neighbours, which a column-major A of one row need not be."""
    problem = GemmProblem(1, 32, 64, row_major_a=False)
    with pytest.raises(AssertionError, match=r"ValueError: a .* gemv .* 64 elements"):
        interpreter.run(problem, Config("gemv", 1, 16, 32), extra={"a": 1, "b": 0, "c": 0})


def test_fitting_changes_as_little_as_it_can() -> None:
    """What a family takes stays as it is; else its sizes, layout or types give way."""
    odd = GemmProblem(3, 5, 7, row_major_b=True)
    assert fitted(odd, Config("tiled", 16, 16, 16)) == odd
    assert fitted(odd, Config("tiled_tma", 16, 16, 16)) == dataclasses.replace(odd, M=16, N=16, K=16)
    assert fitted(odd, Config("gemv", 1, 16, 16)) == dataclasses.replace(odd, M=1, row_major_b=False)
    narrow = GemmProblem(96, 32, 64, "a8w8", "int8", "int8", row_major_a=False)
    assert fitted(narrow, Config("tiled_tma", 16, 64, 64, swapped=1)) == narrow
    assert fitted(narrow, Config("tiled_tma", 8, 64, 64, swapped=1)) == dataclasses.replace(narrow, row_major_a=True)
    for gluon in (Config("warp_specialized", 128, 160, 64), Config("warp_specialized", 104, 64, 64, swapped=1)):
        sums = GemmProblem(96, 32, 64, dtype_c="fp32")
        assert fitted(sums, gluon) == sums
        turned = dataclasses.replace(sums, row_major_a=False, row_major_b=True)
        assert fitted(turned, gluon) == turned
        assert fitted(dataclasses.replace(sums, dtype_a="fp32", dtype_b="fp32"), gluon).dtype_a == "fp16"
        assert fitted(dataclasses.replace(sums, M=1, N=33), gluon) == dataclasses.replace(sums, M=16, N=48)
