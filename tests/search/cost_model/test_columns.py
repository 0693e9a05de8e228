"""Tests of genkern.search.cost_model.columns: what the model sees of configs."""

from __future__ import annotations

import numpy as np

from genkern.gemm.config import Config
from genkern.gemm.records import Resources
from genkern.search.cost_model.columns import columns_of, each


def test_a_config_keeps_its_place() -> None:
    """Each array has the configs in their order, whatever kinds of kernels they are."""
    configs = [
        Config("tiled", 16, 64, 128, num_warps=2),
        Config("skinny", 1, 8, 256),
        Config("tiled", 64, 16, 64, SPLIT_K=4, reduce="semaphore", waves_per_eu=2),
        Config("tiled", 32, 64, 128, matrix_instr_nonkdim=32),
    ]
    columns = columns_of(configs)
    assert columns["BLOCK_SIZE_M"].tolist() == [16, 1, 64, 32]
    assert columns["vector"].tolist() == [0, 1, 0, 0]
    assert columns["in_one_kernel"].tolist()[::2] == [0, 1]
    assert columns["waves_per_eu"].tolist()[2] == 2
    assert columns["matrix_instr_nonkdim"].tolist()[3] == 32
    assert columns["registers"].tolist() == [0, 0, 0, 0]


def test_a_binary_says_what_it_needs() -> None:
    """What it does not say is none."""
    config = Config("tiled", 64, 64, 64)
    columns = columns_of([config, config], [Resources(registers=96, scratch_bytes=8), Resources(shared_bytes=4)])
    assert columns["registers"].tolist() == [96, 0]
    assert columns["scratch_bytes"].tolist() == [8, 0]
    assert columns["shared_bytes"].tolist() == [0, 4]


def test_a_function_is_asked_once_for_each_value() -> None:
    """And its answers stand where the values do."""
    asked: list[int] = []

    def twice(value: int) -> int:
        asked.append(value)
        return 2 * value

    assert each(np.array([16.0, 64.0, 16.0]), twice).tolist() == [32, 128, 32]
    assert sorted(asked) == [16, 64]
