"""PredictProfiler: predicted times of candidates, for runs without a GPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from genkern.compile.occupancy import fits
from genkern.gemm.gpus import Gpu, gpu_for_device
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Candidate, Measurement, Outcome, Resources
from genkern.kernels.specs import main_binary
from genkern.search.guided.predicted_times import predicted_times
from genkern.timing.profiler import ExclusiveDevice
from genkern.timing.session import Session


class PredictProfiler(ExclusiveDevice):
    """A profiler that runs nothing: every record it yields has `time_source: predicted`.

    `device_name` selects a device of the session's arch (gpus.yaml); "" is the default of the arch. `screen` and
    `retime` raise InputError for an unknown arch.
    """

    time_source = "predicted"

    def __init__(self, device_name: str = "") -> None:
        self.device_name = device_name

    def start(self) -> None:
        """Do nothing, since nothing runs."""

    def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
        """Yield one prediction per candidate, in the order given; OVER_RESOURCES for one that cannot launch."""
        gpu = gpu_for_device(self.device_name, session.arch)
        for candidate in itertools.chain.from_iterable(units):
            yield self._predict(session.problem, candidate, gpu, "screen")

    def retime(self, session: Session, finalists: Sequence[Candidate]) -> list[Measurement]:
        """Return the same predictions, fastest first; equal ones keep the order of `finalists`."""
        gpu = gpu_for_device(self.device_name, session.arch)
        found = [self._predict(session.problem, candidate, gpu, "final") for candidate in finalists]
        return sorted(found, key=lambda one: math.inf if one.duration_us is None else one.duration_us)

    def confirm(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        """Return the same predictions again, since they have no noise."""
        return self.retime(session, finalists)

    def semifinal(self, session: Session, candidates: Sequence[Candidate], most: int) -> list[str]:
        """Return the first `most` names, since a prediction is the same under load."""
        return [candidate.config.name for candidate in candidates[:most]]

    def close(self) -> None:
        """Do nothing, since nothing runs."""

    def _predict(self, problem: GemmProblem, candidate: Candidate, gpu: Gpu, stage: str) -> Measurement:
        config = candidate.config
        resources = main_binary(candidate.config, candidate.binaries).resources if candidate.binaries else Resources()
        reason = fits(resources, config.num_warps, gpu)
        if reason:
            return Measurement(config.name, Outcome.OVER_RESOURCES, self.time_source, stage, message=reason)
        time_us = predicted_times(problem, [config], gpu)[0].us
        return Measurement(config.name, Outcome.MEASURED, self.time_source, stage, time_us, (time_us,))
