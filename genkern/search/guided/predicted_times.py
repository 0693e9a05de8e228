"""The predicted time of a config, with its interval: the only source of predicted times that are printed.

If the learned model of the GPU's architecture has absolute times, the time is theirs (`genkern.search.guided.times`),
with an interval only for GPUs on which times were recorded. Otherwise it is the cost model's time
(`genkern.search.cost_model.predict`), without an interval. It does not depend on the compiled binary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.search.cost_model.predict import predicted_us


@dataclass(frozen=True)
class PredictedTime:
    """A predicted time of one call, in microseconds.

    `interval_us` has both ends of the interval that holds the measured time for 80 % of configs; None if no time of the
    GPU was measured, so that the error is unknown.
    """

    us: float
    interval_us: tuple[float, float] | None = None


def predicted_times(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu) -> list[PredictedTime]:
    """Return the predicted time of each config. Raises ResultsError for a damaged file of a model."""
    if not configs:
        return []
    # Imports NumPy, which nothing else at the start of a run needs.
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
