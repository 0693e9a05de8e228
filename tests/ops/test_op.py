"""Tests of genkern.ops.op and genkern.ops: what each format takes, on each target."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from genkern.errors import InputError
from genkern.gemm.dtypes import DTYPES, parse_dtype
from genkern.gemm.gpus import gpu_for_arch, known_archs
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import bytes_moved, check_problem, gb_per_s, get_op, has_exponents, op_names


def test_ops_are_the_files_of_the_folder() -> None:
    """Every module in genkern/ops is an op under its own name, with its own template."""
    assert {"a16w16", "a8w8"} <= set(op_names())
    for name in op_names():
        op = get_op(name)
        assert op.name == name
        assert op.folder == name


@pytest.mark.parametrize("name", ["", "a4w4", "../a16w16", "os", "__init__", "a16w16.py"])
def test_unknown_ops_are_refused(name: str) -> None:
    """Only a name in the list imports anything."""
    with pytest.raises(InputError, match="use one of a16w16, a16w4"):
        get_op(name)


def test_default_types_fit() -> None:
    """An op's default types are ones that it takes, and that the GPU has matrix instructions for."""
    for name in op_names():
        for arch in known_archs():
            a, b, c = (parse_dtype(dtype, arch).name for dtype in get_op(name).default_dtypes(arch))
            check_problem(GemmProblem(64, 64, 64, name, a, b, c), arch)
            assert ("fp8" if DTYPES[a].is_float8 else a) in gpu_for_arch(arch).peak_tflops


@pytest.mark.parametrize("arch", known_archs())
def test_fp8_needs_fp8_instructions(arch: str) -> None:
    """a8w8 takes fp8 exactly where the GPU table has an fp8 rate, and then one family of encodings only."""
    taken = set()
    for a, b in itertools.product(DTYPES, DTYPES):
        try:
            check_problem(GemmProblem(16, 16, 16, "a8w8", a, b, "bf16"), arch)
        except InputError:
            continue
        taken.add((a, b))
    assert ("int8", "int8") in taken
    types = {dtype for pair in taken for dtype in pair} - {"int8"}
    own = {parse_dtype("fp8", arch).name, parse_dtype("bf8", arch).name}
    assert types == (own if "fp8" in gpu_for_arch(arch).peak_tflops else set())


def test_an_unstated_arch_takes_fp8() -> None:
    """A results file need not say its arch: then fp8 is its business, as is int8."""
    for dtype in ("fp8e4m3fn", "int8"):
        check_problem(GemmProblem(16, 16, 16, "a8w8", dtype, dtype, "bf16"), "")
    assert get_op("a8w8").default_dtypes("") == ("fp8", "fp8", "bf16")


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (("bf16", "fp32", "bf16"), "must be the same, or fp16 and bf16"),
        (("int8", "int8", "bf16"), "--op a8w8"),
        (("bf16", "bf16", "int32"), "dtype_c = int32"),
    ],
)
def test_a16w16_says_why_not(types: tuple[str, str, str], message: str) -> None:
    """A refusal names the size, the op and the type that does not fit."""
    with pytest.raises(InputError, match=f"16x16x16 a16w16: .*{message}"):
        check_problem(GemmProblem(16, 16, 16, "a16w16", *types), "sm_90")


def test_operands_and_accumulators() -> None:
    """Scales come before the bias, in the order of the kernels' arguments; integers are summed as integers."""
    a16w16, a8w8 = get_op("a16w16"), get_op("a8w8")
    plain, biased = GemmProblem(1, 1, 1), GemmProblem(1, 1, 1, bias=True)
    names = [[operand.name for operand in op.extra_operands(p)] for op, p in ((a16w16, plain), (a16w16, biased))]
    assert names == [[], ["bias"]]
    assert [operand.name for operand in a8w8.extra_operands(biased)] == ["scale_a", "scale_b", "bias"]
    assert a8w8.accumulator(GemmProblem(1, 1, 1, "a8w8", "int8", "int8")) == "int32"
    assert a8w8.accumulator(GemmProblem(1, 1, 1, "a8w8", "fp8e4m3fn", "fp8e4m3fn")) == "fp32"


def test_which_formats_have_exponents() -> None:
    """Those with a byte for each group of either operand; weights with exponents alone become A's type."""
    assert has_exponents(GemmProblem(1, 32, 64, "a4w4_blockscale", "fp8e4m3fn", "int8"))
    assert not has_exponents(GemmProblem(1, 32, 64, "a16w4", "bf16", "int8", own=(("weights", "mxfp4"),)))
    assert not has_exponents(GemmProblem(1, 32, 64, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn"))
    assert not has_exponents(GemmProblem(1, 32, 64))


def test_traffic_is_that_of_the_operands() -> None:
    """Bytes count each matrix once, in its own type, and scales and bias; GB/s is bytes over time."""
    problem = GemmProblem(2, 3, 5, "a8w8", "int8", "int8", "fp32", bias=True)
    assert bytes_moved(problem) == 2 * 5 + 5 * 3 + 4 * 2 * 3 + 2 * 4 + 4 * 3
    assert gb_per_s(problem, 1e-3) == pytest.approx(69.0)


def test_a_format_that_cannot_make_its_inputs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that names the operand, before anything is compiled; with exact_inputs it is not."""
    plain = get_op("a8w8")
    packed = lambda problem: tuple(  # noqa: E731
        replace(operand, packed=2) if operand.name == "b" else operand for operand in plain.operands(problem)
    )
    problem = GemmProblem(16, 16, 16, "a8w8", "int8", "int8", "bf16")
    monkeypatch.setattr("genkern.ops.op.get_op", lambda name: replace(plain, operands=packed))
    with pytest.raises(InputError, match=r"16x16x16 a8w8: .* b: .* exact_inputs"):
        check_problem(problem, "sm_90")
    made = lambda problem, operand, numbers, generator: numbers  # noqa: E731
    monkeypatch.setattr("genkern.ops.op.get_op", lambda name: replace(plain, operands=packed, exact_inputs=made))
    check_problem(problem, "sm_90")
    monkeypatch.setattr("genkern.ops.op.get_op", lambda name: replace(plain, encoded=("scale_a",)))
    with pytest.raises(InputError, match="values for scale_a"):
        check_problem(problem, "sm_90")


@pytest.mark.parametrize("name", op_names())
def test_limits_allow_a_rounding_but_not_a_wrong_result(name: str) -> None:
    """The limit of a row's error is above one rounding of the output type and far below a wrong product's."""
    for dtype, rounding in (("bf16", 2**-9), ("fp16", 2**-12), ("fp32", 2**-25)):
        limit = get_op(name).worst_row_limit(GemmProblem(1, 1, 1, name, dtype_c=dtype))
        assert rounding < limit < 0.05


def test_folders_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem asks for its op, many times a size: that reads no folder."""
    get_op("a16w16")

    def listed(*_: object) -> None:
        raise AssertionError("a folder is listed")

    monkeypatch.setattr("pkgutil.iter_modules", listed)
    assert get_op("a8w8").name == "a8w8"
