"""Tests of genkern/compile/binary_groups.py: which configs share what is compiled, and which launches are copies."""

from __future__ import annotations

import dataclasses

import pytest
from small_gemms import AMD, SPLIT, TILED

from genkern.compile.binary_groups import binary_group, launch_group
from genkern.gemm.config import Config
from genkern.gemm.records import Binary, Resources

ONE = (Binary("a", "/a", "a", Resources(code_sha256="code", shared_bytes=1)),)
SAME = (Binary("b", "/b", "b", Resources(code_sha256="code", shared_bytes=1)),)
OTHER = (Binary("c", "/c", "c", Resources(code_sha256="another", shared_bytes=1)),)


@pytest.mark.parametrize("config", [TILED, SPLIT, AMD])
def test_what_is_set_at_run_time_is_shared(config: Config) -> None:
    """GROUP_SIZE_M, and SPLIT_K as long as it is above 1; nothing else."""
    assert binary_group(dataclasses.replace(config, GROUP_SIZE_M=5)) == binary_group(config)
    one, two, four = (binary_group(dataclasses.replace(config, SPLIT_K=split)) for split in (1, 2, 4))
    assert one != two == four
    for changes in ({"num_stages": 7}, {"num_warps": 16}, {"BLOCK_SIZE_K": 256}):
        assert binary_group(dataclasses.replace(config, **changes)) != binary_group(config)


def test_copies_are_told_by_code_and_launch() -> None:
    """Whatever the compiler was asked; another grid, or another code, is another launch; unknown code equals none."""
    assert launch_group(AMD, ONE) == launch_group(dataclasses.replace(AMD, num_stages=9, kpack=2), SAME) is not None
    assert launch_group(AMD, ONE) != launch_group(AMD, OTHER)
    assert launch_group(AMD, ONE) != launch_group(dataclasses.replace(AMD, GROUP_SIZE_M=5), ONE)
    assert launch_group(AMD, (Binary("d", "/d", "d", Resources()),)) is None
