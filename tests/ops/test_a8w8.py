"""a8w8 with a scale for each row of A and each column of B (--scales per_token)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import SHARING, compile_all
from interpreted import INTERPRETED, Interpreter
from long_tests import in_turns
from small_gemms import (
    CLUSTER,
    SPLIT,
    TILED,
    TMA,
    WARP_SPECIALIZED_SPLIT,
    WARP_SPECIALIZED_SWAPPED_SPLIT,
    make_module,
    needs_interpreter,
    taking,
)

from genkern.gemm.problem import GemmProblem
from genkern.ops.op import bytes_moved, get_op

PER_TOKEN = (("scales", "per_token"),)
INT8, FP8 = ("int8", "int8", "bf16"), ("fp8e4m3fn", "fp8e4m3fn", "bf16")


def per_token(m: int, n: int, k: int, types: tuple[str, str, str], bias: bool, activation: str = "none") -> GemmProblem:
    """A problem with a scale a row and a column."""
    return GemmProblem(m, n, k, "a8w8", *types, bias=bias, activation=activation, own=PER_TOKEN)


def test_scales_have_the_shape_that_they_are_for() -> None:
    """One a tensor by default; (M, 1) and (1, N) per token, which count as traffic."""
    plain = GemmProblem(6, 7, 8, "a8w8", *INT8)
    shapes = {operand.name: operand.shape for operand in get_op("a8w8").operands(plain)}
    assert (shapes["scale_a"], shapes["scale_b"]) == ((1,), (1,))
    problem = per_token(6, 7, 8, INT8, bias=False)
    shapes = {operand.name: operand.shape for operand in get_op("a8w8").operands(problem)}
    assert (shapes["scale_a"], shapes["scale_b"]) == ((6, 1), (1, 7))
    assert bytes_moved(problem) - bytes_moved(plain) == 4 * (6 + 7 - 2)


SIZES = [(80, 48, 96, True, "silu"), (37, 50, 70, False, "none"), (1, 50, 70, True, "none")]
SCALED = [*itertools.product(SIZES, [INT8, FP8])]


@needs_interpreter
@pytest.mark.parametrize(("number", "case"), [*enumerate(SCALED)], ids=str)
def test_every_family_scales_rows_and_columns(
    interpreter: Interpreter, number: int, case: tuple[tuple[int, int, int, bool, str], tuple[str, str, str]]
) -> None:
    """Whole tiles and overhanging ones, splits, swapped tiles and one row: each element has its own two scales."""
    (m, n, k, bias, activation), types = case
    gemm = per_token(m, n, k, types, bias, activation)
    configs = [config for config in taking(gemm) if config.family in INTERPRETED]
    # Each family for one size and type, and for some of the others.
    for config in in_turns(configs, 3, number) if number else configs:
        # Small tiles take the interpreter long; so many overhang as do of the whole.
        few = replace(gemm, M=min(m, 4 + m % 4), N=8 + n % 4) if config.family == "skinny" else gemm
        answer = interpreter.run(few, config)
        assert answer.worst_row_error < 2**-7, config.name
        assert not answer.again, config.name


@pytest.mark.parametrize("arch", SHARING)
def test_kernels_compile(tmp_path: Path, arch: str) -> None:
    """For AMD and NVIDIA, with scales at the end of a tile and of a reduction."""
    fp8 = "fp8e4m3fnuz" if arch == "gfx942" else "fp8e4m3fn"
    for types in (INT8, (fp8, fp8, "bf16")):
        folder = tmp_path / types[0]
        folder.mkdir()
        problem = per_token(100, 208, 320, types, bias=True)
        assert compile_all(folder, problem, in_turns([TILED, SPLIT, TMA], 2, types != INT8), arch)


def test_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    """A kernel would read beyond them."""
    torch = pytest.importorskip("torch")
    _, module = make_module(tmp_path, per_token(32, 48, 64, INT8, bias=False), [TILED], "sm_90")
    operands = module.make_operands("cpu")
    module.check_operands(module.CONFIGS[TILED.name], operands)
    for name, wrong, said in (
        ("scale_a", torch.ones(1), r"scale_a is \(1,\), this module is for \(32, 1\)"),
        ("scale_b", torch.ones(1, 96)[:, ::2], "scale_b must be 48 contiguous elements of float32"),
        ("scale_a", torch.ones(32, 1, dtype=torch.float64), "scale_a must be 32 contiguous elements of float32"),
    ):
        with pytest.raises(ValueError, match=said):
            module.check_operands(module.CONFIGS[TILED.name], {**operands, name: wrong})


@pytest.mark.parametrize("dtype", ["int8", "fp8e4m3fn"])
def test_gluon_kernels_compile(tmp_path: Path, dtype: str) -> None:
    """Their finish is the format's too: upright, swapped and in a cluster, with shares of K."""
    problem = per_token(208, 256, 512, (dtype, dtype, "bf16"), bias=True)
    gluon = (WARP_SPECIALIZED_SPLIT, WARP_SPECIALIZED_SWAPPED_SPLIT, CLUSTER)
    # The types share them out, but for `make test-long`.
    configs = [replace(config, BLOCK_SIZE_K=128) for config in in_turns(gluon, 2, dtype == "int8")]
    assert len(compile_all(tmp_path, problem, configs, "sm_90")) == len(configs)
