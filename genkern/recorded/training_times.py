"""Train absolute times: trees over sizes that are monotone in M, N and K, and intervals estimated by folds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from genkern.errors import InputError
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_device
from genkern.gemm.problem import GemmProblem
from genkern.recorded.problem import RecordedProblem
from genkern.recorded.training import arrays_of, folds_of
from genkern.search.guided.features import Numbers
from genkern.search.guided.judged import kind_of
from genkern.search.guided.learned import Learned
from genkern.search.guided.model import predicted_octaves
from genkern.search.guided.times import INTERVAL_SHARE, RISING, Times, known_part, size_features
from genkern.search.guided.trees import Trees, matrix_of

FOLDS = 5
_ROUNDS, _LEAST_IN_LEAF = 400, 15
_SETTING = {
    "objective": "huber",
    "alpha": 0.3,
    "learning_rate": 0.05,
    "num_leaves": 31,
    "lambda_l2": 1.0,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "monotone_constraints_method": "intermediate",
    "seed": 0,
    "verbose": -1,
    "deterministic": True,
    "force_col_wise": True,
    "num_threads": 1,
}
# A size has the weight (n / m) to this power for a GPU with m sizes, if no GPU has more than n sizes. So a GPU with
# many sizes does not dominate.
_BALANCE = 0.5
# About this many sizes, and all whole spaces, calibrate the model's octaves; each takes some milliseconds.
_SIZES_OF_CONFIGS = 1500
# Number of first measurements of slow configs taken from each whole space.
_SLOW_CONFIGS = 40
# A config this many octaves behind the best is slow. A kind of problem with this number of configs has its own
# interval.
_SLOW_OCTAVES, _LEAST_OF_KIND = 0.3, 40


@dataclass(frozen=True, eq=False)
class KnownTimes:
    """Times of one size on one GPU.

    problem, gpu: the size and the GPU
    us: microseconds of configs that were timed to be compared, at least one
    first_us: first measurements of all configs of a recorded space, in microseconds; {} for a winner
    whole: the whole space was measured
    is_winner: a row of a results file, whose config had won
    """

    problem: GemmProblem
    gpu: Gpu
    us: Mapping[Config, float]
    first_us: Mapping[Config, float]
    whole: bool = False
    is_winner: bool = False

    @property
    def best_us(self) -> float:
        """Microseconds of the fastest config."""
        return min(self.us.values())


class Ranking:
    """Cached predictions of a model for configs."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        self._known: dict[object, Numbers] = {}

    def octaves(self, problem: GemmProblem, configs: Sequence[Config], gpu: Gpu) -> Numbers:
        """Return log2 of the time of each config, up to a constant."""
        key = problem, gpu.name, tuple(configs)
        if key not in self._known:
            self._known[key] = predicted_octaves(problem, configs, gpu, self._learned)
        return self._known[key]


def known_times_of(recorded: Iterable[RecordedProblem]) -> list[KnownTimes]:
    """Return the times of recorded problems that have finals."""
    found = []
    for each in recorded:
        us = {config: us for config, us in each.final_us.items() if config not in each.wrong}
        if us:
            found.append(KnownTimes(each.problem, each.gpu, us, each.us, each.whole))
    return found


def winners_of(path: str) -> list[KnownTimes]:
    """Return the measured winners of a results file. Raises ResultsError."""
    found = []
    for row in read_results(path):
        if row.config is not None and row.duration_us and row.measured and row.arch and row.device:
            gpu = gpu_for_device(row.device, row.arch)
            found.append(KnownTimes(row.problem, gpu, {row.config: row.duration_us}, {}, is_winner=True))
    return found


def result_files(path: str) -> list[str]:
    """Return the results file itself, or the sorted YAML files of a folder."""
    if not os.path.isdir(path):
        return [path]
    return sorted(str(file) for file in Path(path).glob("*.yaml"))


def fitted_times(known: Sequence[KnownTimes], ranking: Ranking) -> Times:
    """Return absolute times for these sizes, whose configs `ranking` orders. Raises InputError for too few sizes."""
    if len(set(map(_size_of, known))) < FOLDS:
        raise InputError(f"absolute times need {FOLDS} sizes with finals: record more")
    told = list(_told(known, ranking))
    errors = np.concatenate([each.errors for each in told])
    octaves = np.concatenate([each.octaves for each in told])
    fastest = np.array([(each.octaves[place], each.errors[place]) for each in told for place in [each.fastest]]).T

    def is_too_slow(best: float) -> bool:
        """Return True if predicted losses exceed the measured errors.

        The median excess of all configs, plus the median excess of the fastest config of each size, is then positive.
        """
        left = [np.median(np.maximum(0.0, its - best) - off) for its, off in ((octaves, errors), fastest)]
        return float(sum(left)) > 0

    # Bisection: as best_octaves rises, the predicted loss falls, and the predicted times with it.
    low, high = float(octaves.min()) - 1.0, float(octaves.max())
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if is_too_slow(middle) else (low, middle)
    best = (low + high) / 2
    slow_octaves, slow_errors = _slow(known, ranking)
    is_slow = slow_octaves - best > _SLOW_OCTAVES
    slope, widening = 1.0, 0.0
    if is_slow.any():
        slope = float(np.median(slow_errors[is_slow] / (slow_octaves[is_slow] - best)))
    left = errors - np.maximum(0.0, slope * (octaves - best))
    kinds, lows, highs = _intervals([each.kind for each in told for _ in each.octaves], left)
    if is_slow.any():
        loss = slope * (slow_octaves[is_slow] - best)
        half = float(np.quantile(np.abs(slow_errors[is_slow] - loss), INTERVAL_SHARE))
        widening = max(0.0, half - (highs[-1] - lows[-1]) / 2) / float(np.median(loss))
    devices = tuple(sorted({each.gpu.name for each in known}))
    return Times(_trees(known, known[0].gpu.arch), best, slope, kinds, lows, highs, widening, devices)


def fold_times(known: Sequence[KnownTimes], ranking: Ranking) -> Iterator[tuple[Times, list[KnownTimes]]]:
    """Yield for each fold of the sizes absolute times whose trees have not seen its sizes, and the fold's known times.

    Trees, calibration and intervals come from the other folds; the model behind `ranking` may have seen all sizes.
    """
    folds = np.array(folds_of([each.problem for each in known], FOLDS))
    for fold in range(FOLDS):
        others = [each for each, of in zip(known, folds, strict=True) if of != fold]
        its = [each for each, of in zip(known, folds, strict=True) if of == fold]
        yield fitted_times(others, ranking), its


@dataclass(frozen=True, eq=False)
class _Told:
    """Configs of one size, for calibration.

    kind: kind of problem
    octaves: the model's octaves [configs]
    errors: octaves by which the times exceed the size's best time, as predicted by trees that have not seen it
        [configs]
    """

    kind: str
    octaves: Numbers
    errors: Numbers

    @property
    def fastest(self) -> int:
        """The place of the fastest config."""
        return int(self.errors.argmin())


def _told(known: Sequence[KnownTimes], ranking: Ranking) -> Iterator[_Told]:
    folds = np.array(folds_of([each.problem for each in known], FOLDS))
    step = max(1, len(known) // _SIZES_OF_CONFIGS)
    for fold in range(FOLDS):
        trees = _trees([each for each, of in zip(known, folds, strict=True) if of != fold], "")
        for each in [each for each, of in zip(known, folds, strict=True) if of == fold]:
            # Whole spaces are always used, so that GPUs and kinds with few sizes are represented.
            if each.whole or (_number_of(each.problem) % step) == 0:
                predicted = _best_octaves(trees, each)
                octaves = ranking.octaves(each.problem, list(each.us), each.gpu)
                yield _Told(kind_of(each.problem), octaves, np.log2(list(each.us.values())) - predicted)


def _slow(known: Sequence[KnownTimes], ranking: Ranking) -> tuple[Numbers, Numbers]:
    """Return predicted octaves of a sample of whole spaces, and measured octaves behind the best, each [configs]."""
    octaves, behind = [np.zeros(0)], [np.zeros(0)]
    for each in known:
        if each.whole and len(each.first_us) > _SLOW_CONFIGS:
            random = np.random.default_rng(_number_of(each.problem))
            configs = list(each.first_us)
            chosen = [configs[place] for place in random.permutation(len(configs))[:_SLOW_CONFIGS]]
            octaves.append(ranking.octaves(each.problem, chosen, each.gpu))
            # First measurements are compared only with each other: they are shorter than finals and at another clock.
            best_us = min(each.first_us[config] for config in each.us if config in each.first_us)
            behind.append(np.log2([each.first_us[config] / best_us for config in chosen]))
    return np.concatenate(octaves), np.concatenate(behind)


def _best_octaves(trees: Trees, known: KnownTimes) -> float:
    features = size_features(known.problem, known.gpu)
    return float(trees.octaves(trees.leaves(features))[0] + known_part(features)[0])


def _trees(known: Sequence[KnownTimes], arch: str) -> Trees:
    import lightgbm

    features = [size_features(each.problem, each.gpu) for each in known]
    columns = {name: np.concatenate([each[name] for each in features]) for name in features[0]}
    names = sorted(columns)
    octaves = np.log2([each.best_us for each in known]) - known_part(columns)
    _, places, counts = np.unique([each.gpu.name for each in known], return_inverse=True, return_counts=True)
    weights = (counts.max() / counts) ** _BALANCE
    setting = {
        **_SETTING,
        "min_data_in_leaf": min(_LEAST_IN_LEAF, max(1, len(known) // 20)),
        "monotone_constraints": [int(name in RISING) for name in names],
    }
    x = matrix_of(columns, names).T
    data = lightgbm.Dataset(x, octaves, weight=weights[places], params=setting)
    structures = [tree["tree_structure"] for tree in lightgbm.train(setting, data, _ROUNDS).dump_model()["tree_info"]]
    return arrays_of(structures, names, arch)


def _intervals(kinds: Sequence[str], errors: Numbers) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Return the kinds with enough configs, and both ends of each kind's interval in octaves.

    The last kind is "", for all sizes.
    """
    of = np.array(kinds)
    ends = (1 - INTERVAL_SHARE) / 2, (1 + INTERVAL_SHARE) / 2
    found = [(kind, errors[of == kind]) for kind in np.unique(of).tolist()]
    found = [(kind, its) for kind, its in found if len(its) >= _LEAST_OF_KIND] + [("", errors)]
    low, high = (tuple(float(np.quantile(its, end)) for _, its in found) for end in ends)
    return tuple(kind for kind, _ in found), low, high


def _size_of(known: KnownTimes) -> tuple[int, int, int]:
    problem = known.problem
    return problem.M, problem.N, problem.K


def _number_of(problem: GemmProblem) -> int:
    return problem.M * 1_000_003 + problem.N * 10_007 + problem.K
