"""Launches the algorithms of cuBLASLt or hipBLASLt on an open session's operands, and chooses those that race.

The screening is short, since there are few algorithms and only the best of them matter. Each algorithm is launched
once, the fastest are sampled in a few rounds, and the best of these become finalists. Long calls are sampled until the
power management has reacted, and more of them become finalists, because their ranking changes at the power limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

from genkern.errors import one_line
from genkern.kernels.refusal import refused_by_device
from genkern.profiling.checking.verdict import Subject
from genkern.profiling.finals import SampleFailed
from genkern.profiling.loaded_gemm import Call, LoadedGemm
from genkern.profiling.timers import Sampler, Timer
from genkern.runtime.backends.lt import backend_of
from genkern.runtime.backends.lt_api import LtError
from genkern.runtime.backends.lt_matmul import WORKSPACE_BYTES, Algorithm, Pointers
from genkern.timing.libraries import VENDOR, stored_algorithm

# Maximum number of algorithms that are sampled, and the largest ratio of an algorithm's one launch to the shortest
# launch.
_SAMPLED = 6
_SAMPLED_RATIO = 1.15
# Rounds of samples; each round samples every call once. If all calls take at least `_LONG_US` microseconds, the rounds
# last at least `_LONG_S` seconds; the power management reacts within a window of 0.1 s (finals.py).
_ROUNDS = 3
_LONG_US = 100.0
_LONG_S = 0.25
# Maximum number of library calls in the finals, and the largest ratio of a call's sample to the shortest sample, that
# of PyTorch's own call included. The finals are nearly all of the time that a library takes, and grow with each call.
BEST = 2
_BEST_RATIO = 1.01
LONG_BEST = 4
_LONG_BEST_RATIO = 1.03


class Algorithms:
    """The library's algorithms on the operands of `gemm`, by their names in results.

    Raises NotCovered or LtError if the library is missing or does not compute the problem.
    """

    def __init__(self, gemm: LoadedGemm, device: str = "cuda") -> None:
        import torch

        self._gemm = gemm
        self._backend = backend_of("nvidia" if torch.version.hip is None else "amd")
        self._matmul = self._backend.prepare(gemm.session.problem, torch.cuda.current_device())
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._algorithms: dict[str, Algorithm] = {}

    def names(self) -> list[str]:
        """Return the names of the algorithms to launch once, in the library's order; [] if there are none."""
        found = self._backend.candidates(self._matmul, pointers_of(self._gemm.operands), self._backend.most)
        self._algorithms |= {self._backend.kept(self._matmul, algorithm).name: algorithm for algorithm in found}
        return list(self._algorithms)

    def source(self, name: str) -> str:
        """Return where one of `names` comes from: "heuristic" or "enumerated"."""
        return self._algorithms[name].source

    def call(self, name: str) -> Call:
        """Return a function that launches one call of the algorithm with a copy of the weights."""
        import torch

        algorithm = self._algorithm(name)
        bound: dict[int, Any] = {}

        def call(copy: int) -> None:
            copy %= self._gemm.copies
            if copy not in bound:
                bound[copy] = self._bound(algorithm, self._gemm.operands_of(copy))
            bound[copy](torch.cuda.current_stream().cuda_stream)

        return call

    def subject(self, name: str) -> Subject:
        """Return the algorithm as the subject of a check, on contiguous operands only."""
        import torch

        algorithm = self._algorithm(name)

        def launch(operands: dict[str, Any]) -> None:
            self._bound(algorithm, operands)(torch.cuda.current_stream().cuda_stream)

        return Subject(launch, refuses=lambda operands: "libraries are checked on contiguous operands")

    def _bound(self, algorithm: Algorithm, operands: Mapping[str, Any]) -> Any:
        size = WORKSPACE_BYTES
        return self._matmul.bind(algorithm, pointers_of(operands), self._workspace.data_ptr(), size)

    def _algorithm(self, name: str) -> Algorithm:
        """Return the algorithm of this name, which another process may have found."""
        if (known := self._algorithms.get(name)) is not None:
            return known
        found = self._backend.found(self._matmul, pointers_of(self._gemm.operands), stored_algorithm(name))
        if found is None:
            raise LtError(f"{name[:40]!r} is not an algorithm of this library for this product")
        return found


def pointers_of(operands: Mapping[str, Any]) -> Pointers:
    """Return the addresses of the operands that the library takes."""
    names = (field.name for field in fields(Pointers))
    return Pointers(**{name: operands[name].data_ptr() for name in names if name in operands})


@dataclass(frozen=True)
class Screening:
    """Finds the best of many library calls quickly.

    timer: timer of the measured process
    copies: returns the numbers of the next `n` copies of the weights
    repeats: returns how often a sample repeats a call of a given number of microseconds
    tell: sends {"running": NAME} before a call
    failed: raises an error that is not a refusal
    """

    timer: Timer
    copies: Callable[[int], list[int]]
    repeats: Callable[[float], int]
    tell: Callable[[dict[str, Any]], None]
    failed: Callable[[str, Exception], object]

    def best(self, binds: Mapping[str, Callable[[], Call]], torch_call: Call | None) -> dict[str, Call]:
        """Return the calls that are to race, by name, the fastest first. A refused call is left out.

        PyTorch's own call is sampled for comparison but not returned.
        """
        import torch

        calls: dict[str, Call] = {}
        launch_us: dict[str, float] = {}
        samplers: dict[str, Callable[[], float]] = {}
        for name, bind in binds.items():
            self.tell({"running": name})
            try:
                calls[name] = call = bind()
                call(self.copies(1)[0])
                torch.cuda.synchronize()
                launch_us[name] = self.timer.launch_us(call, *self.copies(1))
            except Exception as error:
                self.failed(name, error)
        timed = {name: calls[name] for name in to_sample(launch_us)}
        for name, call in [*timed.items(), *([] if torch_call is None else [(VENDOR, torch_call)])]:
            self.tell({"running": name})
            try:
                repeats = self.repeats(launch_us.get(name) or min(launch_us.values(), default=math.inf))
                samplers[name] = announced(name, self.timer.prepare(call, self.copies(repeats)), self.tell)
            except Exception as error:
                self.failed(name, error)
        sample_us = sampled_us(samplers)
        torch_us = sample_us.pop(VENDOR, None)
        return {name: calls[name] for name in to_race(sample_us, torch_us)}


def announced(name: str, sampler: Sampler, tell: Callable[[dict[str, Any]], None]) -> Sampler:
    """Wrap a sampler: send {"running": NAME} before each sample, and raise SampleFailed for a refusal."""

    def sample() -> float:
        import torch

        tell({"running": name})
        try:
            return sampler()
        except Exception as error:
            torch.cuda.synchronize()
            if not refused_by_device(error):
                raise
            raise SampleFailed(one_line(error)) from None

    return sample


def to_sample(launch_us: Mapping[str, float]) -> list[str]:
    """Return the names of the calls to sample, shortest first.

    These are at most `_SAMPLED` calls whose one launch took no more than `_SAMPLED_RATIO` times the shortest one.
    """
    return _nearest(launch_us, _SAMPLED, _SAMPLED_RATIO)


def sampled_us(
    samplers: Mapping[str, Callable[[], float]], *, now: Callable[[], float] = time.monotonic
) -> dict[str, float]:
    """Return the median sample of each sampler in microseconds, by name.

    The samplers take turns for `_ROUNDS` rounds, and for at least `_LONG_S` seconds if all calls are long. A sampler
    that raises SampleFailed is left out.
    """
    started_s = now()
    samples_us: dict[str, list[float]] = {name: [] for name in samplers}
    rounds = 0
    while rounds < _ROUNDS or (_are_long(samples_us) and now() - started_s < _LONG_S):
        for name in list(samples_us):
            try:
                samples_us[name].append(samplers[name]())
            except SampleFailed:
                del samples_us[name]
        rounds += 1
    return {name: median(samples) for name, samples in samples_us.items()}


def _are_long(samples_us: Mapping[str, list[float]]) -> bool:
    return min((samples[-1] for samples in samples_us.values()), default=0.0) >= _LONG_US


def to_race(sample_us: Mapping[str, float], torch_us: float | None) -> list[str]:
    """Return the names of the finalists, shortest first: the calls near the shortest sample, PyTorch's own included."""
    least_us = min([*sample_us.values(), *([] if torch_us is None else [torch_us])], default=0.0)
    if least_us >= _LONG_US:
        return _nearest(sample_us, LONG_BEST, _LONG_BEST_RATIO, least_us)
    return _nearest(sample_us, BEST, _BEST_RATIO, least_us)


def _nearest(times_us: Mapping[str, float], most: int, ratio: float, least_us: float | None = None) -> list[str]:
    shortest_us = min(times_us.values(), default=0.0) if least_us is None else least_us
    near = sorted((us, name) for name, us in times_us.items() if us <= shortest_us * ratio)
    return [name for _, name in near[:most]]
