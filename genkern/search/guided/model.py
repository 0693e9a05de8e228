"""Model: what is expected of a size's configs before any is measured, and which of them err alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.features import Numbers, features_of
from genkern.search.guided.learned import Learned
from genkern.search.guided.model_rows import Rows
from genkern.search.guided.passed import passed
from genkern.search.guided.trees import Places
from genkern.search.rates.variants import variants_octaves

# Names a file of `genkern train`, which stands for what is shipped.
MODEL_VARIABLE = "GENKERN_MODEL"
# One file an architecture on which spaces were recorded, named by it.
_LEARNED = Path(__file__).parent
# So many of the first rows are launched with the GROUP_SIZE_M that the model prefers, others with the usual one: on 168
# recorded sizes first choices gain 0.1 % (2026-11-27).
_GROUPED = 8
# How alike configs are is told by one tree of so many: all say the same, in as many times the time.
_OF_TREES = 4
# Where nothing was learned, configs err less alike by one standard deviation for each of these steps between them.
_STEPS = {
    "log_bm": 1.0,
    "log_bn": 1.0,
    "log_bk": 1.0,
    "log_sk": 1.0,
    "num_stages": 2.0,
    "accumulators": 1.0,
    "waves": 1.0,
    "wave_fill": 0.3,
}


class Prior:
    """The model of one size: `octaves` [rows] is its prediction of the configs, log2 of time up to a constant.

    What was learned of the predictor's errors on the GPU's architecture, or the predictor alone where nothing was; that
    of GPUs with rates, which no time has judged, with variants of one tile apart.
    """

    def __init__(
        self, problem: GemmProblem, configs: Sequence[Config], gpu: Gpu, learned: Callable[[str], Learned | None]
    ) -> None:
        model = learned(gpu.arch)
        columns = features_of(problem, configs, gpu, shipped=model is not None)
        self._leaves: Places | None = None
        if model is not None:
            leaves = passed(model.trees, columns).leaves(columns)
            self.octaves: Numbers = model.octaves(columns, model.trees.octaves(leaves))
            self._leaves = leaves[::_OF_TREES].copy()
        else:
            self._places = np.array([columns[name] / step for name, step in _STEPS.items()])
            self.octaves = columns["log_physics"]
            if gpu.rates is not None:
                self.octaves = self.octaves + variants_octaves(configs, self.octaves)

    @property
    def is_learned(self) -> bool:
        """Whether it is more than the predictor."""
        return self._leaves is not None

    def alike(self, row: int) -> Numbers:
        """[rows] how alike errors are: by the share of trees in which both end in one leaf, or by distance."""
        if self._leaves is not None:
            shared: Numbers = np.count_nonzero(self._leaves == self._leaves[:, row, None], axis=0) / len(self._leaves)
            return shared
        near: Numbers = np.exp(-0.5 * ((self._places - self._places[:, row, None]) ** 2).sum(axis=0))
        return near


def ranked(
    problem: GemmProblem, configs: Iterable[Config], gpu: Gpu, learned: Callable[[str], Learned | None] | None = None
) -> list[Config]:
    """All `configs` without any measurement, the most promising first.

    Those that differ in GROUP_SIZE_M alone stand together.
    """
    rows = Rows(configs)
    if not rows.configs:
        return []
    prior = Prior(problem, rows.configs, gpu, learned or learned_of)
    order = np.argsort(prior.octaves, kind="stable").tolist()
    together = [[rows.configs[row], *rows.others[row]] for row in order]
    if prior.is_learned:
        first = [config for each in together[:_GROUPED] for config in each]
        octaves = dict(zip(first, Prior(problem, first, gpu, learned or learned_of).octaves.tolist(), strict=True))
        together[:_GROUPED] = [sorted(each, key=octaves.__getitem__) for each in together[:_GROUPED]]
    return [config for each in together for config in each]


def learned_of(arch: str) -> Learned | None:
    """What was learned on an architecture, of the file in GENKERN_MODEL if it is of that, else what is shipped; None
    where nothing was. Raises ResultsError for a damaged file."""
    path = path_of(arch)
    return None if path is None else _read(path)


def path_of(arch: str) -> str | None:
    """The file of `learned_of`. Raises ResultsError for a damaged one."""
    if (own := os.environ.get(MODEL_VARIABLE)) and _read(own).arch == arch:
        return own
    path = _LEARNED / f"{arch}.npz"
    return str(path) if path.exists() else None


@lru_cache(maxsize=8)
def _read(path: str) -> Learned:
    return Learned.read(path)
