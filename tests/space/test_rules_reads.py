"""Which fields of a config the pruning rules read: what pruning asks once for many configs rests on it."""

from __future__ import annotations

import itertools

import pytest

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.space.rules.registry import GROUP_RULES, RUNTIME_RULES, SHAPE_FIELDS, rule_for

MI300X, H200 = gpu_for_arch("gfx942"), gpu_for_arch("sm_90")
GROUP_SIZES = (1, 2, 4, 8, 16, 32)


class Watched:
    """A config that notes which of its fields are read."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.read: set[str] = set()

    def __getattr__(self, field: str) -> object:
        self.read.add(field)
        return getattr(self.config, field)


@pytest.mark.parametrize("name", sorted(RUNTIME_RULES))
def test_what_runtime_rules_read(name: str) -> None:
    """Besides the shape, a rule of RUNTIME_RULES reads GROUP_SIZE_M if it is in GROUP_RULES, and else SPLIT_K."""
    drop, read = rule_for(name, GROUP_SIZES), set()
    in_cute = "cute_split", "cute_split_swapped_2x4"
    for family, size, (blocks, split, group_size), gpu in itertools.product(
        in_cute if name.startswith("cute_") else ("tiled", "warp_specialized", "warp_specialized_swapped"),
        ((1, 64, 4096), (17, 4096, 8192), (4096, 4096, 4097)),
        itertools.product(((16, 16, 32), (128, 256, 64), (64, 160, 64)), (1, 2, 24), (1, 16)),
        (MI300X, H200),
    ):
        watched = Watched(Config(family, *blocks, group_size, split))
        drop(GemmProblem(*size), watched, gpu)  # type: ignore[arg-type]
        read |= watched.read
    runtime = "GROUP_SIZE_M" if name in GROUP_RULES else "SPLIT_K"
    assert read - {*SHAPE_FIELDS, "family"} == {runtime}
