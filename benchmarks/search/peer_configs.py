"""What peers try for a GEMM, as strategies: each of their configs by the binary of ours that is the nearest.

Three peers have lists: Inductor (max-autotune, PyTorch 2.13: template_heuristics/triton.py, mm_configs and
persistent_mm_configs, which it scales to the size), QuACK (0.6.5: gemm_config.py, _get_sm90_configs), and
nvMatmulHeuristics (0.1.0.27, CUTLASS 3), whose list is made for the size and the GPU. A recorded space knows no other
configs than genkern's, which leave out what is hopeless, and a binary brings all its GROUP_SIZE_M and SPLIT_K. So this
is more than the peers would find by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.search.strategy import MakesStrategy, Strategy, Task, Unit, units_of

_TRITON = ("tiled", "tiled_tma", "persistent_tma")
_WGMMA = ("cute_wgmma", "warp_specialized", "persistent_tma")
# BLOCK_SIZE_M, _N, _K, num_stages, num_warps.
_INDUCTOR = (
    *((32, 32, 16, 1, 2), (32, 32, 128, 2, 4), (32, 64, 32, 5, 8), (64, 32, 32, 5, 8), (64, 32, 128, 5, 4)),
    *((64, 64, 16, 2, 4), (64, 64, 32, 2, 4), (64, 64, 64, 3, 8), (64, 64, 128, 5, 4), (64, 128, 32, 3, 4)),
    *((64, 128, 32, 4, 8), (64, 128, 64, 3, 4), (64, 128, 128, 4, 4), (128, 64, 32, 3, 4), (128, 64, 32, 4, 8)),
    *((128, 128, 32, 2, 8), (128, 128, 32, 3, 4), (128, 128, 64, 3, 4), (128, 128, 64, 5, 8), (128, 128, 128, 4, 8)),
    (128, 256, 64, 4, 8),
)
_INDUCTOR_TMA = (
    *((128, 256, 64, 3, 8), (128, 128, 64, 3, 8), (128, 128, 128, 3, 8), (128, 128, 128, 3, 4)),
    *((128, 128, 64, 4, 8), (128, 128, 64, 5, 8), (256, 128, 64, 4, 8), (128, 128, 64, 5, 4)),
)
_LEAST_BLOCK = 16
# Tiles of QuACK by its schedule.
_COOPERATIVE = ((256, 128), (256, 160), (256, 192), (256, 208), (128, 224), (128, 256))
_PING_PONG = ((128, 128), (128, 160), (128, 192), (128, 208), (192, 128))
# Letters of nvMatmulHeuristics for types of A and B, the sum, and C.
_LETTERS = {"bf16": "T", "fp16": "H", "fp32": "S"}
# Its names for GPUs.
_GPUS = {"NVIDIA H100": "H100_SXM", "NVIDIA H200": "H200_SXM"}


@dataclass(frozen=True)
class Wanted:
    """A peer's config in our words; None is what it does not say. `families` may stand for it, the first before others.

    `tile` has sides along M, N and K of the problem, `cluster` programs along M and N.
    """

    families: tuple[str, ...]
    tile: tuple[int, int, int | None]
    num_stages: int | None = None
    num_warps: int | None = None
    cluster: str | None = None
    schedule: str | None = None
    swapped: int | None = None
    splits: bool | None = False

    def distance(self, config: Config) -> float:
        """How far a config of ours is off; 0 where it is the same as far as this says. Infinite for other families."""
        if config.family not in self.families:
            return math.inf
        m, n, k = self.tile
        ratios = (
            (2.0, m, config.BLOCK_SIZE_M),
            (2.0, n, config.BLOCK_SIZE_N),
            (1.0, k, config.BLOCK_SIZE_K),
            (0.5, self.num_stages, config.num_stages),
            (0.5, self.num_warps, config.num_warps),
        )
        apart = sum(weight * abs(math.log2(has / wants)) for weight, wants, has in ratios if wants)
        same = (
            (1.0, self.cluster, config.cluster),
            (1.0, self.schedule, config.schedule),
            (1.0, self.swapped, config.swapped),
            (1.0, self.splits, config.SPLIT_K > 1),
        )
        apart += sum(weight for weight, wants, has in same if wants is not None and wants != has)
        return apart + 0.25 * self.families.index(config.family)


class Listed(Strategy):
    """Asks for the binaries that are nearest to a peer's configs, each once, in the peer's order."""

    left_out = "it is on no list of the peer"

    def __init__(self, task: Task, wanted: Iterable[Wanted], most: int) -> None:
        units = units_of(task.configs)
        nearest = (near for each in wanted if (near := _nearest(each, units)) is not None)
        self._left = list(dict.fromkeys(nearest))[:most]

    def ask(self, n: int) -> Sequence[Unit]:
        asked, self._left = self._left[:n], self._left[n:]
        return asked


def listed(configs: Callable[[Task], Iterable[Wanted]], most: int = 1000) -> MakesStrategy:
    """The strategy that measures `most` of a peer's configs for the task."""
    return lambda task: Listed(task, configs(task), most)


def _nearest(wanted: Wanted, units: Sequence[Unit]) -> Unit | None:
    of = [(wanted.distance(unit.configs[0]), unit.configs[0].name, unit) for unit in units]
    apart, _, unit = min(of, key=lambda each: each[:2], default=(math.inf, "", None))
    return None if apart == math.inf else unit


def inductor(task: Task) -> Iterator[Wanted]:
    """The 21 configs of Inductor's mm, its blocks no larger than the size."""
    return _scaled(task.problem, _INDUCTOR, _TRITON)


def inductor_tma(task: Task) -> Iterator[Wanted]:
    """Those and the 8 of its persistent kernel with TMA, which ENABLE_PERSISTENT_TMA_MATMUL adds."""
    yield from inductor(task)
    yield from _scaled(task.problem, _INDUCTOR_TMA, ("persistent_tma", "tiled_tma", "tiled"))


def _scaled(
    problem: GemmProblem, blocks: Iterable[tuple[int, int, int, int, int]], families: tuple[str, ...]
) -> Iterator[Wanted]:
    most = [max(1 << (side - 1).bit_length(), _LEAST_BLOCK) for side in (problem.M, problem.N, problem.K)]
    for *tile, stages, warps in blocks:
        m, n, k = (min(side, limit) for side, limit in zip(tile, most, strict=True))
        yield Wanted(families, (m, n, k), stages, warps)


def quack(task: Task) -> Iterator[Wanted]:
    """The 44 tiles of QuACK on sm_90: eleven, with clusters along either side, plain and swapped."""
    schedules = ((_COOPERATIVE, "cooperative"), (_PING_PONG, "ping_pong"))
    for tile_m, tile_n, schedule in ((m, n, schedule) for tiles, schedule in schedules for m, n in tiles):
        for along_m, along_n in ((1, 2), (2, 1)):
            yield Wanted(("cute_wgmma",), (tile_m, tile_n, None), None, None, f"{along_m}x{along_n}", schedule, 0)
            yield Wanted(("cute_wgmma",), (tile_n, tile_m, None), None, None, f"{along_n}x{along_m}", schedule, 1)


def nv_matmul_heuristics(task: Task, count: int = 64) -> list[Wanted]:
    """What nvMatmulHeuristics would try for CUTLASS 3, the most promising first; nothing for types or GPUs that are
    not in the tables above.

    Raises InputError where its wheel is not installed.
    """
    try:
        import nvMatmulHeuristics as nv
    except ImportError:
        raise InputError("nvMatmulHeuristics is not installed: pip install nvidia-matmul-heuristics") from None

    problem, gpu = task.problem, _GPUS.get(task.gpu.name)
    if problem.op != "a16w16" or {problem.dtype_a, problem.dtype_b, problem.dtype_c} - set(_LETTERS) or gpu is None:
        return []
    precision = _LETTERS[problem.dtype_a] + "S" + _LETTERS[problem.dtype_c]
    asked = nv.NvMatmulHeuristicsInterfaceEx(
        backend=nv.NvMatmulHeuristicsTarget.CUTLASS3,
        flags=nv.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=getattr(nv.NvMatmulHeuristicsNvidiaGpu, gpu),
    )
    # In the words of BLAS a row-major A is transposed, and so is a B whose columns are not contiguous.
    layout = nv.boolsToNvMatmulHeuristicsLayout(problem.row_major_a, problem.row_major_b)
    of = asked.makeNvMatmulHeuristicsProblem(problem.M, problem.N, problem.K, layout)
    return [_of_nv(each["kernel"]) for each in asked.get(of, count, precision)]


def _of_nv(kernel: Any) -> Wanted:
    tile = int(kernel.cta_tile_m), int(kernel.cta_tile_n), int(kernel.cta_tile_k)
    cluster = f"{kernel.cluster_m}x{kernel.cluster_n}"
    return Wanted(_WGMMA, tile, int(kernel.stages), None, cluster, splits=int(kernel.split_k) > 1)
