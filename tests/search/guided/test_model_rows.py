"""Rows: one for each binary and SPLIT_K, of the usual GROUP_SIZE_M; none is lost."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.search.guided.model_rows import Rows

TILE = ("tiled", 64, 64, 64)
CONFIGS = [
    Config(*TILE, GROUP_SIZE_M=group, SPLIT_K=split, num_stages=stages)
    for stages in (2, 3)
    for split in (2, 4)
    for group in (1, 8, 16)
]


def test_every_config_is_in_one_row() -> None:
    rows = Rows(CONFIGS)
    assert len(rows.units) == 2
    assert [config.GROUP_SIZE_M for config in rows.configs] == [8] * 4
    assert rows.unit.tolist() == [0, 0, 1, 1]
    assert sorted(
        config for row, others in zip(rows.configs, rows.others, strict=True) for config in (row, *others)
    ) == (sorted(CONFIGS))


def test_a_binary_is_first_launched_with_each_split() -> None:
    assert [config.SPLIT_K for config in Rows(CONFIGS).first_of(1).configs] == [2, 4]
