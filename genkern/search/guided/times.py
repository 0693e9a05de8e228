"""Absolute times: the microseconds that a config is expected to take on GPUs on which times were recorded.

The time of a config is the time of the best kernel of its size, times the factor by which the config is slower:

    us = best_us(problem, gpu) * 2 ** loss(octaves of the config)

`best_us` is a sum of regression trees over the size alone: M, N, K, a smooth roofline, format, layout and alignment.
The trees may only rise with M, N and K, so a larger size is never predicted faster than a smaller one of the same
format, layout and alignment. `loss` maps the model's ranking (`genkern.search.guided.learned`) to octaves (log2) behind
the best kernel, so configs have the order of the model. `genkern train` fits both, and keeps them in the model's file.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from genkern.errors import ResultsError
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import bytes_moved
from genkern.search.cost_model.predict import peak_tflops
from genkern.search.guided.features import features_of_problem, operations
from genkern.search.guided.judged import kind_of
from genkern.search.guided.learned import UNREADABLE
from genkern.search.guided.model import path_of
from genkern.search.guided.trees import Numbers, Trees

# Prefix of the names of these arrays in a model's file.
_PREFIX = "times_"
# The share of measured times that an interval should contain.
INTERVAL_SHARE = 0.8
# Features with which the predicted time of a size never falls.
RISING = ("log_m", "log_n", "log_k", "log_smooth")
# Features that the trees do not get: they may rise or fall with M, N and K, or repeat the features above.
_MIXED = ("bound", "log_roofline")
# The smooth roofline is the time of a launch plus the p-norm of both bounds. The trees learn log2 of time minus this
# share of the smooth roofline's log2: with a share of 1 they would have to fall where efficiency rises with size, with
# a share of 0 their steps would be coarse.
# In cross-validation, P90 of the error of a size's best time is 19.6 % with 0.6, 18.1 % with 0.8 and 17.8 % with 0.9
# for whole spaces on H100s, and 7.9 %, 7.6 % and 5.9 % for the winners of results/nvidia_h200 (2026-11-28). Bytes and
# operations as features of their own do not lower it.
_LAUNCH_US, _NORM, _SMOOTH_SHARE = 2.5, 2.5, 0.8


def size_features(problem: GemmProblem, gpu: Gpu) -> dict[str, Numbers]:
    """Return the features [1] of a size on a GPU, by name."""
    bytes_us = bytes_moved(problem) / gpu.memory_tb_per_s * 1e-6
    operations_us = operations(problem) / peak_tflops(problem, gpu) * 1e-6
    found = {
        **{name: value for name, value in features_of_problem(problem, gpu).items() if name not in _MIXED},
        "log_smooth": float(np.log2(_LAUNCH_US + (bytes_us**_NORM + operations_us**_NORM) ** (1 / _NORM))),
        "log_bandwidth": float(np.log2(gpu.memory_tb_per_s)),
    }
    return {name: np.array([value]) for name, value in found.items()}


def known_part(features: Mapping[str, Numbers]) -> Numbers:
    """Return the part [rows] of log2 of microseconds that the trees need not learn."""
    return _SMOOTH_SHARE * features["log_smooth"]


@dataclass(frozen=True, eq=False)
class Times:
    """Absolute times of an architecture.

    trees: give log2 of the best kernel's time, minus `known_part`
    best_octaves, slope: a config that the model of times predicts at o octaves is max(0, slope * (o - best_octaves))
        octaves slower than the best kernel
    kinds: number formats with layouts; "" stands for all other kinds
    low, high: [kinds] octaves from a prediction to the ends of its interval, measured on sizes that the trees were not
        trained on
    widening: octaves by which both ends move outwards for each octave that the config is slower than the best
    devices: GPUs on which times were recorded; for other GPUs no interval is known
    """

    trees: Trees
    best_octaves: float
    slope: float
    kinds: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    widening: float
    devices: tuple[str, ...]

    def best_octaves_of(self, problem: GemmProblem, gpu: Gpu) -> float:
        """Return log2 of the microseconds of the size's best kernel."""
        features = size_features(problem, gpu)
        return float(self.trees.octaves(self.trees.leaves(features))[0] + known_part(features)[0])

    def loss_of(self, octaves: Numbers) -> Numbers:
        """Return the octaves [configs] behind the size's best kernel; `octaves` [configs] are predictions."""
        loss: Numbers = np.maximum(0.0, self.slope * (octaves - self.best_octaves))
        return loss

    def predicted(
        self, problem: GemmProblem, octaves: Numbers, gpu: Gpu
    ) -> tuple[Numbers, tuple[Numbers, Numbers] | None]:
        """Return the microseconds [configs], and both ends [configs] of their intervals.

        `octaves` [configs] are the predictions of the model of times. The intervals are None on a GPU on which no times
        were recorded.
        """
        loss = self.loss_of(octaves)
        us = 2.0 ** (self.best_octaves_of(problem, gpu) + loss)
        if gpu.name not in self.devices:
            return us, None
        kind = kind_of(problem)
        place = self.kinds.index(kind if kind in self.kinds else "")
        wider = self.widening * loss
        return us, (us * 2.0 ** (self.low[place] - wider), us * 2.0 ** (self.high[place] + wider))

    def put_into(self, model: bytes) -> bytes:
        """Return a model's file with these absolute times, which replace any in it."""
        scalars = {name: np.array(getattr(self, name)) for name in _OWN}
        arrays = {**{f"tree_{name}": array for name, array in self.trees.arrays().items()}, **scalars}
        file = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(model)) as before, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as after:
            for info in before.infolist():
                if not info.filename.startswith(_PREFIX):
                    after.writestr(info, before.read(info))
            for name, array in arrays.items():
                with after.open(zipfile.ZipInfo(f"{_PREFIX}{name}.npy"), "w") as part:
                    np.lib.format.write_array(part, array, allow_pickle=False)
        return file.getvalue()

    @classmethod
    def read(cls, path: str) -> Times | None:
        """Read the absolute times of a model's file; None if it has none. Raises ResultsError for a damaged file."""
        try:
            with np.load(path, allow_pickle=False) as file:
                if f"{_PREFIX}slope" not in file:
                    return None
                trees = Trees.of({each.name: file[f"{_PREFIX}tree_{each.name}"] for each in fields(Trees)})
                found = cls(trees, **{name: _plain(file[f"{_PREFIX}{name}"]) for name in _OWN})
            found._check()
        except UNREADABLE as error:
            raise ResultsError(f"{path}: no model of times ({error}); make one with genkern train") from None
        return found

    def _check(self) -> None:
        """Raise ValueError for values that give no valid time."""
        ends = (*self.low, *self.high)
        numbers = np.array([self.best_octaves, self.slope, self.widening, *ends], dtype=np.float64)
        if not len(self.kinds) == len(self.low) == len(self.high) or "" not in self.kinds:
            raise ValueError("intervals and their formats do not belong together")
        if not np.isfinite(numbers).all() or np.abs(numbers).max() > _MOST or self.slope <= 0 or self.widening < 0:
            raise ValueError("a value of its absolute times is no number of octaves")


# Fields besides the trees, and the largest valid number of octaves.
_OWN = tuple(each.name for each in fields(Times) if each.name != "trees")
_MOST = 64.0


def _plain(array: npt.NDArray[Any]) -> Any:
    return tuple(array.tolist()) if array.ndim else array.item()


def times_of(arch: str) -> Times | None:
    """Return the absolute times in an architecture's model (`model.path_of`); None if there are none.

    Raises ResultsError for a damaged file.
    """
    path = path_of(arch)
    return None if path is None else _read(path)


@lru_cache(maxsize=8)
def _read(path: str) -> Times | None:
    return Times.read(path)
