"""a16w8: 16-bit activations, and weights of int8 or fp8 with a scale for each column of B."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compiled import SHARING, compile_all
from forms import CUTE_FORMS, FORMS, PLACES, REALIGNED, RINGS
from interpreted import INTERPRETED, Interpreter
from long_tests import in_turns, spread
from small_gemms import FEW_ROWS, GEMV, SPLIT, SWAPPED, TILED, TILED_TMA_SPLIT, needs_interpreter, taking

from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.legality import legal_problem
from genkern.ops.op import bytes_moved, get_op
from genkern.space.prune import prune
from genkern.space.space import load_space

OP = get_op("a16w8")
BF16_SCALES = (("scale_type", "bf16"),)


def problem_of(m: int, n: int, k: int, weights: str = "int8", **more: object) -> GemmProblem:
    """A problem with float32 output, which shows what bf16 would round away."""
    return GemmProblem(m, n, k, "a16w8", **{"dtype_b": weights, "dtype_c": "fp32", **more})  # type: ignore[arg-type]


def test_weights_are_half_the_bytes() -> None:
    """One byte each, and a scale for each column, which rotates with them and is for the end of a tile."""
    problem = problem_of(4, 256, 512)
    scale = OP.operands(problem)[3]
    assert (scale.shape, scale.dtype, scale.rotates, scale.in_step) == ((1, 256), "fp32", True, False)
    assert OP.operands(replace(problem, own=BF16_SCALES))[3].dtype == "bf16"
    assert bytes_moved(problem) == 4 * 512 * 2 + 256 * 512 + 4 * 256 * 4 + 256 * 4


def test_each_operand_has_a_type_of_its_own() -> None:
    """What is said of A's type is not meant for the weights, and the other way round."""
    size = {"M": 1, "N": 16, "K": 16, "op": "a16w8"}
    for said, types in (
        ({}, ("bf16", "fp8e4m3fn", "bf16")),
        ({"dtype_a": "fp16"}, ("fp16", "fp8e4m3fn", "fp16")),
        ({"dtype_b": "int8"}, ("bf16", "int8", "bf16")),
    ):
        problem = resolve({**size, **said}, GemmDefaults(), "sm_90").problem
        assert (problem.dtype_a, problem.dtype_b, problem.dtype_c) == types
    assert resolve(size, GemmDefaults(), "sm_80").problem.dtype_b == "int8"
    assert resolve(size, GemmDefaults(), "gfx942").problem.dtype_b == "fp8e4m3fnuz"
    for said in ({"dtype_a": "int8"}, {"dtype_b": "bf16"}, {"dtype_b": "bf8"}):
        with pytest.raises(InputError, match="is not one of"):
            resolve({**size, **said}, GemmDefaults(), "sm_90")
    with pytest.raises(InputError, match="no fp8"):
        resolve({**size, "dtype_b": "fp8"}, GemmDefaults(), "sm_80")


@needs_interpreter
@pytest.mark.parametrize(
    ("weights", "row_major_b", "size"),
    [("int8", False, (20, 40, 72)), ("fp8e4m3fn", True, (37, 50, 90)), ("fp8e4m3fn", False, (1, 24, 90))],
    ids=str,
)
def test_every_family_converts_weights(
    interpreter: Interpreter, weights: str, row_major_b: bool, size: tuple[int, int, int]
) -> None:
    """Whole tiles and overhanging ones, splits, swapped tiles and one row, in both layouts of the weights."""
    own = BF16_SCALES if row_major_b else ()
    problem = problem_of(*size, weights, row_major_b=row_major_b, bias=True, activation="silu", own=own)
    one_each = {config.family: config for config in taking(problem) if config.family in INTERPRETED}
    configs = list(one_each.values())
    for config in spread(configs, 2) if weights == "int8" else [*spread(configs, 4), *([GEMV] if size[0] == 1 else [])]:
        few = replace(problem, M=min(size[0], 3), N=9)
        answer = interpreter.run(few if config.family == "skinny" else problem, config)
        assert answer.worst_row_error < 1e-5, config.name
        assert not answer.again, config.name


@needs_interpreter
@pytest.mark.parametrize(("weights", "config"), [("int8", SPLIT), ("fp8e4m3fn", SWAPPED)])
def test_kernels_pass_the_check(interpreter: Interpreter, weights: str, config: Config) -> None:
    """Exact inputs, slices of larger matrices and random ones."""
    verdict = interpreter.check(problem_of(20, 40, 70, weights, dtype_c="bf16", bias=True), config)
    assert verdict["passed"], verdict
    assert verdict["rounds"] == ["exact", "layout", "random"]


@pytest.mark.parametrize("arch", SHARING)
def test_kernels_compile(tmp_path: Path, arch: str) -> None:
    """For AMD and NVIDIA, by pointers and through the copy engine, with weights on either side of the product."""
    fp8 = "fp8e4m3fnuz" if arch == "gfx942" else "fp8e4m3fn"
    for weights, configs in (("int8", [SWAPPED, FEW_ROWS]), (fp8, [TILED, TILED_TMA_SPLIT])):
        (tmp_path / weights).mkdir()
        assert compile_all(tmp_path / weights, problem_of(100, 208, 320, weights, bias=True), configs, arch)
    one = problem_of(1, 208, 320, fp8, dtype_a="fp16", dtype_c="fp16", own=BF16_SCALES)
    assert compile_all(tmp_path, one, [GEMV], arch)


def test_families_that_multiply_what_they_load_are_refused() -> None:
    """wgmma has both operands of one type."""
    where = gpu_for_arch("sm_90")
    refused = {stem for stem in FORMS if legal_problem(problem_of(1, 128, 1024), *PLACES[stem], where)}
    assert refused == {*RINGS, *CUTE_FORMS, *REALIGNED}


# Each has every second size, but for `make test-long`.
@pytest.mark.parametrize(
    ("turn", "arch"), [*enumerate(["sm_80", "sm_89", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950"])]
)
def test_its_spaces_keep_configs_for_every_size(turn: int, arch: str) -> None:
    """Without --space, the space in the format's folder; with a family without a dot for few rows."""
    space = load_space(None, arch, OP.name)
    for size in in_turns(((1, 8192, 8192), (8, 4096, 14336), (4096, 7168, 2048), (3, 17, 33)), 2, turn):
        kept = prune(space, problem_of(*size), gpu_for_arch(arch)).kept
        assert kept
        if size[0] <= 8 and size[1] > 17:
            assert any(not traits_of(config).uses_dot for config in kept), size
