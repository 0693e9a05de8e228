"""Tests of genkern/ops/accumulate.py: which problems ask for full sums, what reads and writes them, who promotes."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults, problem_of_cells, resolve
from genkern.files.sizes import read_sizes
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import (
    adds_up_fast,
    as_called,
    as_fast,
    as_full,
    is_full,
    on_arch,
    promotes_products,
)
from genkern.ops.command_line import add_fields, option_fields
from genkern.ops.fields import problem_cells
from genkern.ops.op import get_op

FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
PLAIN = GemmProblem(64, 128, 512, "a8w8", *FP8)
# Every format that adds up products of fp8 all along K.
PROBLEMS = [
    PLAIN,
    replace(PLAIN, own=(("scales", "per_token"),)),
    replace(PLAIN, op="a8w8_bpreshuffle"),
    replace(PLAIN, op="batched_a8w8", own=(("batch_size", 3),)),
    replace(PLAIN, op="grouped_gemm", own=(("groups", 4),)),
    replace(PLAIN, op="fused_moe", own=(("experts", 4), ("stage", "gate_up")), activation="silu"),
]
VALUES = {"M": 64, "N": 128, "K": 512, "op": "a8w8", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e4m3fn"}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.op)
def test_rows_say_full_and_rows_without_the_field_are_fast(problem: GemmProblem) -> None:
    full = as_full(problem)
    assert is_full(full)
    assert not is_full(problem)
    assert as_fast(full) == problem
    assert full.name != problem.name
    for each in (problem, full):
        assert problem_of_cells(problem_cells(each)) == each
        assert not get_op(each.op).refuse(each, "sm_90")


def test_the_command_line_and_entries_say_it() -> None:
    parser = argparse.ArgumentParser()
    add_fields(parser.add_argument_group())
    said = option_fields(parser.parse_args(["--accumulate", "full"]))
    assert is_full(resolve(VALUES, GemmDefaults(own=said), "sm_90").problem)
    assert not is_full(resolve(VALUES, GemmDefaults(), "sm_90").problem)
    # What an entry says comes first; of results it alone.
    assert not is_full(resolve({**VALUES, "accumulate": "fast"}, GemmDefaults(own=said), "sm_90").problem)
    assert not is_full(resolve(VALUES, GemmDefaults(own=said), None).problem)
    with pytest.raises(InputError, match=r"accumulate = 'precise' .* fast, full"):
        resolve({**VALUES, "accumulate": "precise"}, GemmDefaults(), "sm_90")


def test_a_list_leaves_it_to_the_command_line_unless_it_says_full(tmp_path: Path) -> None:
    """As `genkern shapes` and merge write lists."""
    path = tmp_path / "sizes.yaml"
    path.write_text(size_line(PLAIN) + size_line(as_full(replace(PLAIN, M=65))))
    for own, wanted in ((), [False, True]), ((("accumulate", "full"),), [True, True]):
        found = read_sizes(str(path), GemmDefaults(own=own), "sm_90").problems
        assert [is_full(problem) for problem in found] == wanted


@pytest.mark.parametrize("arch", ["sm_100", "sm_120", "gfx950"])
def test_where_sums_are_full_anyway_nobody_asks_for_them(arch: str) -> None:
    """One problem has one row there; a note says so."""
    found = resolve({**VALUES, "accumulate": "full"}, GemmDefaults(), arch)
    assert not is_full(found.problem)
    assert any("accumulate = full is what it does anyway" in note for note in found.notes)
    assert on_arch(as_full(PLAIN), arch) == PLAIN
    assert not promotes_products(as_full(PLAIN), arch)
    assert not adds_up_fast(PLAIN, arch)


@pytest.mark.parametrize("arch", ["sm_89", "sm_90"])
def test_where_few_bits_are_kept_kernels_promote(arch: str) -> None:
    assert on_arch(as_full(PLAIN), arch) == as_full(PLAIN)
    assert promotes_products(as_full(PLAIN), arch)
    assert not promotes_products(PLAIN, arch)
    assert adds_up_fast(PLAIN, arch)
    assert not adds_up_fast(as_full(PLAIN), arch)
    # Nobody knows what another one keeps.
    assert promotes_products(as_full(PLAIN), "any")


def test_other_sums_are_refused_in_lists_and_plain_in_calls() -> None:
    """int8 is exact, and with scales of blocks sums of blocks are promoted by their nature."""
    blocks = replace(PLAIN, op="grouped_gemm", own=(("groups", 4), ("scales", "blocks")))
    for problem in (
        replace(PLAIN, dtype_a="int8", dtype_b="int8"),
        blocks,
        replace(blocks, dtype_a="bf16", dtype_b="bf16", own=(("groups", 4),)),
    ):
        op = get_op(problem.op)
        assert "accumulate = full is only for fp8" in op.refuse(as_full(problem), "sm_90")
        assert as_called(as_full(problem), op.operands(problem)) == problem
    assert as_called(as_full(PLAIN), get_op("a8w8").operands(PLAIN)) == as_full(PLAIN)
    with pytest.raises(InputError, match=r"accumulate .* a8w8_blockscale"):
        resolve({**VALUES, "op": "a8w8_blockscale", "accumulate": "full"}, GemmDefaults(), "sm_90")
