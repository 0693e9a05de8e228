"""What pruning rules make of rows in groups: a tile has those of one group, so what a group has counts, not all M."""

from __future__ import annotations

import pytest
from forms import made

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.space.rules.registry import rule_for

H200 = gpu_for_arch("sm_90")


def in_groups(m: int, groups: int) -> GemmProblem:
    """So many rows in groups of any size, which are as many to a group on average."""
    return GemmProblem(m, 4096, 7168, "grouped_gemm", own=(("capacity", m), ("groups", groups)))


def gluon(m: int, family: str = "warp_specialized_swapped", group: int = 1) -> Config:
    """A config of a form in Gluon."""
    return made(family, m, 128, 64, group, 1, 8, 2)


# With about 284 and 43 rows few groups have more of.
OF_256, OF_32 = in_groups(1024, 4), in_groups(2048, 64)


@pytest.mark.parametrize(
    ("rule", "dropped", "kept"),
    [
        ("group_m_redundant", (OF_256, gluon(128, group=8)), (OF_256, gluon(128, group=4))),
        ("group_m_redundant", (OF_256, gluon(256, group=4)), (OF_256, gluon(64, group=4))),
        ("group_m_redundant", (OF_32, gluon(48, group=2)), (OF_32, Config("tiled", 48, 128, 64, 2))),
        ("wgmma_width", (OF_32, gluon(56)), (OF_32, gluon(48))),
        ("wgmma_rows", (OF_32, gluon(128, "warp_specialized")), (OF_256, gluon(128, "warp_specialized"))),
        ("wgmma_tile_small", (OF_32, gluon(24)), (OF_32, gluon(48))),
    ],
)
def test_drops_what_no_group_needs(
    rule: str, dropped: tuple[GemmProblem, Config], kept: tuple[GemmProblem, Config]
) -> None:
    """And keeps a neighbour."""
    drop = rule_for(rule, [1, 2, 4, 8])
    assert drop(*dropped, H200)
    assert not drop(*kept, H200)
