"""Tests of genkern.compile.binary.machine_code: blocks end at branches and begin where these go."""

from __future__ import annotations

import pytest
from machine_words import branch, code

from genkern.compile.binary.machine_code import MATRIX, OTHER, blocks_of_assembly, blocks_of_code

NO_OPERATION, HMMA, EXIT = 0x918, 0x23C, 0x94D


@pytest.mark.parametrize("capability", [80, 90, 121])
def test_blocks_follow_each_other_and_their_branches(capability: int) -> None:
    long = capability >= 90
    loop = code(NO_OPERATION, HMMA, branch(-2, predicate=0, long=long), NO_OPERATION, EXIT)
    blocks = blocks_of_code(loop, capability)
    assert blocks is not None
    assert list(blocks.starts) == [0, 1, 3, 5]
    assert [sorted(after) for after in blocks.follows] == [[1], [1, 2], []]
    assert [blocks.count(block, MATRIX) for block in range(3)] == [0, 1, 0]


def test_a_branch_that_is_always_taken_has_one_way() -> None:
    blocks = blocks_of_code(code(branch(1), NO_OPERATION, EXIT), 90)
    assert blocks is not None
    assert [sorted(after) for after in blocks.follows] == [[2], [2], []]


@pytest.mark.parametrize("capability", [75, 130])
def test_other_encodings_are_not_guessed(capability: int) -> None:
    assert blocks_of_code(code(NO_OPERATION, EXIT), capability) is None


def test_blocks_of_amd_are_those_of_its_assembly() -> None:
    text = """kernel:
  s_mov_b32 s0, 0
.LBB0_1:
  v_mfma_f32_16x16x16_bf16 a[0:3]
  s_cbranch_scc1 .LBB0_1
  s_endpgm
"""
    blocks = blocks_of_assembly(text)
    assert bytes(blocks.kinds[:2]) == bytes([OTHER, MATRIX])
    assert [sorted(after) for after in blocks.follows] == [[1], [1, 2], []]
