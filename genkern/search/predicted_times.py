"""The predicted time of a config: one number for one problem, config and GPU, wherever it is printed, and its interval.

If times were recorded on the GPU's architecture, it is the absolute time of the model (`genkern.search.guided.times`),
with the order of the model. Otherwise it is the cost model's (`genkern.search.predict`), of which no interval is known:
nothing was measured there. What is known of a compiled binary changes neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.search.predict import predicted_us


@dataclass(frozen=True)
class PredictedTime:
    """Microseconds of one call, and both ends of the interval that holds the measured time of 80 % of configs; None if
    no time of the GPU tells how far predictions are off.
    """

    us: float
    interval_us: tuple[float, float] | None = None


def predicted_times(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu) -> list[PredictedTime]:
    """The predicted time of each config. Raises ResultsError for a damaged file of a model."""
    if not configs:
        return []
    # NumPy, which nothing else at the start of a run needs.
    from genkern.search.guided.model import learned_of, predicted_octaves
    from genkern.search.guided.times import times_of

    learned, times = learned_of(gpu.arch), times_of(gpu.arch)
    if learned is None or times is None:
        return [PredictedTime(us) for us in predicted_us(problem, configs, gpu)]
    us, ends = times.predicted(problem, predicted_octaves(problem, configs, gpu, learned), gpu)
    if ends is None:
        return [PredictedTime(each) for each in us.tolist()]
    of_each = zip(us.tolist(), *(end.tolist() for end in ends), strict=True)
    return [PredictedTime(each, (low, high)) for each, low, high in of_each]
