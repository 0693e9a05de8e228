"""Model: what is expected of a size's configs before any is measured, and which of them err alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.features import Numbers, features_of
from genkern.search.guided.learned import Learned
from genkern.search.guided.model_rows import Rows
from genkern.search.guided.passed import passed
from genkern.search.guided.trees import FEW_ROWS, Places
from genkern.search.predict import BUT_GROUP_SIZE_M, from_usual
from genkern.search.rates.variants import variants_octaves
from genkern.space.shares import Shares

# Names a file of `genkern train`, which stands for what is shipped.
MODEL_VARIABLE = "GENKERN_MODEL"
# One file an architecture on which spaces were recorded, named by it.
_LEARNED = Path(__file__).parent
# So many of the first rows are launched with the GROUP_SIZE_M that the model prefers, others with the usual one: on 168
# recorded sizes first choices gain 0.1 % (2026-11-27).
_GROUPED = 8
# Networks see the configs that trees put so many octaves behind their own first ones at most. At 56 of the recorded
# sizes the first choice of both together is 0.09 octaves behind that of the trees at most (2026-11-28).
_PREFERRED_OCTAVES = 0.2
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
        self,
        problem: GemmProblem,
        configs: Sequence[Config],
        gpu: Gpu,
        learned: Callable[[str], Learned | None],
        shares: Shares | None = None,
    ) -> None:
        """Where others have `shares` in it, what they say is waited for when it is asked for.

        It differs from what one process says by the last digit, of few rows, as machines do (`Network`).
        """
        of_part = partial(_of_part, problem, gpu, learned)
        if shares is None:
            self._said = _joined([of_part(configs)], configs, gpu)
        else:
            each = -(-len(configs) // shares.count)
            parts = [configs[start : start + each] for start in range(0, len(configs), each)]
            self._pending = partial(_joined, shares.each(of_part, parts), configs, gpu)

    @cached_property
    def _said(self) -> _Said:
        return self._pending()

    @property
    def octaves(self) -> Numbers:
        return self._said.octaves

    @property
    def is_learned(self) -> bool:
        """Whether it is more than the predictor."""
        return self._said.is_learned

    def alike(self, row: int) -> Numbers:
        """[rows] how alike errors are: by the share of trees in which both end in one leaf, or by distance."""
        ends = self._said.ends
        if self.is_learned:
            shared: Numbers = np.count_nonzero(ends == ends[:, row, None], axis=0) / len(ends)
            return shared
        near: Numbers = np.exp(-0.5 * ((ends - ends[:, row, None]) ** 2).sum(axis=0))
        return near


@dataclass(frozen=True, eq=False)
class _Said:
    """Of rows: `octaves` [rows], and `ends` [trees, rows], the leaves of some trees, or [steps, rows] how far it is."""

    octaves: Numbers
    ends: Numbers | Places
    is_learned: bool


def _of_part(
    problem: GemmProblem, gpu: Gpu, learned: Callable[[str], Learned | None], configs: Sequence[Config]
) -> _Said:
    model = learned(gpu.arch)
    if model is None:
        columns = features_of(problem, configs, gpu, shipped=False)
        far = np.array([columns[name] / step for name, step in _STEPS.items()])
        return _Said(columns["log_physics"], far, is_learned=False)
    columns = features_of(problem, configs, gpu)
    leaves = passed(model.trees, columns).leaves(columns)
    octaves = model.octaves(columns, model.trees.octaves(leaves))
    return _Said(octaves, leaves[::_OF_TREES].copy(), is_learned=True)


def predicted_octaves(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu, learned: Learned) -> Numbers:
    """[configs] log2 of time by a model, up to a constant, for at least one config."""
    columns = features_of(problem, configs, gpu)
    trees = learned.trees if len(configs) < FEW_ROWS else passed(learned.trees, columns)
    return learned.octaves(columns, trees.octaves(trees.leaves(columns)))


def _joined(parts: Iterable[_Said], configs: Sequence[Config], gpu: Gpu) -> _Said:
    said = list(parts)
    octaves, ends = (
        np.concatenate([part.octaves for part in said]),
        np.concatenate([part.ends for part in said], axis=1),
    )
    if gpu.rates is not None and not said[0].is_learned:
        octaves = octaves + variants_octaves(configs, octaves)
    return _Said(octaves, ends, said[0].is_learned)


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


def ranked(
    problem: GemmProblem, configs: Iterable[Config], gpu: Gpu, learned: Callable[[str], Learned | None] = learned_of
) -> list[Config]:
    """All `configs` without any measurement, the most promising first.

    Those that differ in GROUP_SIZE_M alone stand together.
    """
    rows = Rows(configs)
    if not rows.configs:
        return []
    prior = Prior(problem, rows.configs, gpu, learned)
    order = np.argsort(prior.octaves, kind="stable").tolist()
    together = [[rows.configs[row], *rows.others[row]] for row in order]
    if prior.is_learned:
        first = [config for each in together[:_GROUPED] for config in each]
        octaves = dict(zip(first, Prior(problem, first, gpu, learned).octaves.tolist(), strict=True))
        together[:_GROUPED] = [sorted(each, key=octaves.__getitem__) for each in together[:_GROUPED]]
    return [config for each in together for config in each]


def first_ranked(
    problem: GemmProblem,
    configs: Iterable[Config],
    gpu: Gpu,
    most: int,
    learned: Callable[[str], Learned | None] = learned_of,
) -> list[Config]:
    """The first configs of `ranked`, one for all values of GROUP_SIZE_M, up to `most`.

    It takes a third of the time of `ranked`: networks see only the configs that trees prefer.
    """
    siblings: dict[object, list[Config]] = {}
    for config in configs:
        siblings.setdefault(BUT_GROUP_SIZE_M(config), []).append(config)
    together = [sorted(each, key=from_usual) for each in siblings.values()]
    usual = [each[0] for each in together]
    if not usual or most < 1:
        return []
    if (model := learned(gpu.arch)) is None:
        prior = Prior(problem, usual, gpu, learned)
        return [usual[row] for row in np.argsort(prior.octaves, kind="stable")[:most].tolist()]
    columns = features_of(problem, usual, gpu)
    of_trees = model.trees.octaves(passed(model.trees, columns).leaves(columns))
    preferred = np.flatnonzero(of_trees <= np.sort(of_trees)[:most].max() + _PREFERRED_OCTAVES)
    octaves = model.octaves({name: values[preferred] for name, values in columns.items()}, of_trees[preferred])
    chosen = [together[row] for row in preferred[np.argsort(octaves, kind="stable")[:most]].tolist()]
    flat = [config for each in chosen for config in each]
    said = dict(zip(flat, predicted_octaves(problem, flat, gpu, model).tolist(), strict=True))
    return [min(each, key=said.__getitem__) for each in chosen]
