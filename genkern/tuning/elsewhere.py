"""What a size's result keeps for other programs: times of configs that their kernels can run, vLLM's for example.

A winner is often of a family that is genkern's own. So that `genkern export` has something to write for every size, a
few of the configs that such a program can run are measured when the search has ended, unless it has tried some anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from genkern.formats.exchange.peers import run_elsewhere
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome

# So many are measured at least, each with another tile: the model's first often differ in num_stages alone.
AT_LEAST = 6
# So many are kept, of as many as were measured. Experts' two products need one that both have.
_KEPT = 12


def besides(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu, measured: Collection[str]) -> list[Config]:
    """What is to be measured of `configs` for the sake of other programs, where these `measured` are, by name.

    The best of each of the tiles that the model prefers; none where enough of them were measured, or nobody wants any.
    """
    able = run_elsewhere(problem, configs, gpu.vendor)
    missing = AT_LEAST - sum(config.name in measured for config in able)
    if not able or missing <= 0:
        return []
    of_tile: dict[tuple[int, ...], Config] = {}
    # NumPy, which a run that has nothing to tune does without.
    from genkern.search.guided.model import ranked

    for config in ranked(problem, [config for config in able if config.name not in measured], gpu):
        of_tile.setdefault((config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K), config)
    return list(of_tile.values())[:missing]


def times_kept(
    problem: GemmProblem, screened: Iterable[Measurement], ends: Mapping[str, Measurement], gpu: Gpu
) -> tuple[tuple[str, float], ...]:
    """The fastest of the measured configs that other programs can run, with the times of their screening in
    microseconds; without those that were found wrong since (`ends`).
    """
    times = {
        Config.parse(m.config): m.duration_us
        for m in screened
        if m.outcome is Outcome.MEASURED
        and m.duration_us is not None
        and ends.get(m.config, m).outcome is Outcome.MEASURED
    }
    able = run_elsewhere(problem, times, gpu.vendor)
    fastest = sorted(able, key=lambda config: (times[config], config.name))[:_KEPT]
    return tuple((config.name, times[config]) for config in fastest)
