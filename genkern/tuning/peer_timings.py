"""Times of configs that kernels of other programs, such as vLLM's, can use; results keep them for `genkern export`.

A winner often belongs to a family that only genkern has. So that `genkern export` has a config for every size, a few
configs that other programs can run are measured at the end of a search, unless the search has measured enough of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from genkern.files.exchange.peers import runnable_by_peers
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome

# Smallest number of configs for other programs that are measured. Configs that are added have different tiles, since
# the configs that the model ranks first often differ only in num_stages.
AT_LEAST = 6
# Number of times that a result keeps. More than one is kept because both products of experts need the same config.
_KEPT = 12


def extra_configs(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu, measured: Collection[str]) -> list[Config]:
    """Return the configs that should also be measured, given the names of the configs that were `measured`.

    These are the best config of each tile, in the model's order. The list is empty if enough configs were measured, or
    if no other program has a kernel for the problem.
    """
    able = runnable_by_peers(problem, configs, gpu.vendor)
    missing = AT_LEAST - sum(config.name in measured for config in able)
    if not able or missing <= 0:
        return []
    of_tile: dict[tuple[int, ...], Config] = {}
    # Imported here because it imports NumPy, which a run that has nothing to tune does not need.
    from genkern.search.guided.model import ranked

    for config in ranked(problem, [config for config in able if config.name not in measured], gpu):
        of_tile.setdefault((config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K), config)
    return list(of_tile.values())[:missing]


def kept_times(
    problem: GemmProblem, screened: Iterable[Measurement], ends: Mapping[str, Measurement], gpu: Gpu
) -> tuple[tuple[str, float], ...]:
    """Return the fastest measured configs that other programs can run: pairs of name and microseconds.

    The times are those of the screening. Configs that a later step found wrong (`ends`) are left out.
    """
    times = {
        Config.parse(m.config): m.duration_us
        for m in screened
        if m.outcome is Outcome.MEASURED
        and m.duration_us is not None
        and ends.get(m.config, m).outcome is Outcome.MEASURED
    }
    able = runnable_by_peers(problem, times, gpu.vendor)
    fastest = sorted(able, key=lambda config: (times[config], config.name))[:_KEPT]
    return tuple((config.name, times[config]) for config in fastest)
