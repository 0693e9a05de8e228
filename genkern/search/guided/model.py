"""Model: predicts the times of a size's configs before any is measured, and how similar their errors are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.search.cost_model.predict import BUT_GROUP_SIZE_M, from_usual
from genkern.search.cost_model.variants import variants_octaves
from genkern.search.guided.features import Numbers, features_of
from genkern.search.guided.learned import Learned
from genkern.search.guided.model_rows import Rows
from genkern.search.guided.specialized_trees import specialized
from genkern.search.guided.trees import FEW_ROWS, Places

# Environment variable: a file of `genkern train` to use instead of the shipped model of the same architecture.
MODEL_VARIABLE = "GENKERN_MODEL"
# Folder of the shipped models: ARCH.npz for each architecture on which spaces were recorded.
_LEARNED = Path(__file__).parent
# Number of first rows whose values of GROUP_SIZE_M are ordered by the model, instead of by their distance from the
# usual one: on 168 recorded sizes this makes first choices 0.1 % faster (2026-11-27).
_GROUPED = 8
# `first_ranked` evaluates the networks only for configs that the trees predict at most this many octaves behind the
# last of their own first choices. On 56 recorded sizes the first choice of the whole model is at most 0.09 octaves
# behind the first choice of the trees (2026-11-28).
_PREFERRED_OCTAVES = 0.2
# The similarity of configs uses every fourth tree: all trees give the same result, in four times the time.
_OF_TREES = 4
# Length scales of the features by which the similarity of errors falls with distance (`Prior.alike`), without a learned
# model.
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
    """The predictions for one size: `octaves` [rows] are log2 of the configs' times, up to a constant.

    They come from the learned model of the GPU's architecture, or from the cost model if there is none. On GPUs with
    rates, octaves are added for all but the best variants of a tile, so that different tiles alternate in the order
    (`genkern.search.cost_model.variants`).
    """

    def __init__(
        self, problem: GemmProblem, configs: Sequence[Config], gpu: Gpu, learned: Callable[[str], Learned | None]
    ) -> None:
        model = learned(gpu.arch)
        # True if the predictions come from a learned model, not from the cost model alone.
        self.is_learned = model is not None
        # [trees, rows] the leaves of some trees; without a learned model [features, rows], scaled by `_STEPS`.
        self._ends: Numbers | Places
        self.octaves: Numbers
        if model is None:
            columns = features_of(problem, configs, gpu, shipped=False)
            self._ends = np.array([columns[name] / step for name, step in _STEPS.items()])
            self.octaves = columns["log_physics"]
            if gpu.rates is not None:
                self.octaves = self.octaves + variants_octaves(configs, self.octaves)
            return
        columns = features_of(problem, configs, gpu)
        leaves = specialized(model.trees, columns).leaves(columns)
        self.octaves = model.octaves(columns, model.trees.octaves(leaves))
        self._ends = leaves[::_OF_TREES].copy()

    def alike(self, row: int) -> Numbers:
        """Return the similarity [rows] of each row's error to the error of `row`, from 0 to 1.

        It is the share of trees in which both rows end in one leaf; without a learned model, exp(-distance**2 / 2).
        """
        ends = self._ends
        if self.is_learned:
            shared: Numbers = np.count_nonzero(ends == ends[:, row, None], axis=0) / len(ends)
            return shared
        near: Numbers = np.exp(-0.5 * ((ends - ends[:, row, None]) ** 2).sum(axis=0))
        return near


def predicted_octaves(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu, learned: Learned) -> Numbers:
    """Return log2 of the times [configs] by a learned model, up to a constant, for at least one config."""
    columns = features_of(problem, configs, gpu)
    trees = learned.trees if len(configs) < FEW_ROWS else specialized(learned.trees, columns)
    return learned.octaves(columns, trees.octaves(trees.leaves(columns)))


def learned_of(arch: str) -> Learned | None:
    """Return the learned model of an architecture; None if there is none.

    It is the file that GENKERN_MODEL names, if that is for this architecture, else the shipped one. Raises ResultsError
    for a damaged file.
    """
    path = path_of(arch)
    return None if path is None else _read(path)


def path_of(arch: str) -> str | None:
    """Return the path of the model that `learned_of` reads; None if there is none.

    Raises ResultsError if the file that GENKERN_MODEL names is damaged.
    """
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
    """Return all `configs` by predicted time, fastest first.

    Configs that differ only in GROUP_SIZE_M stand together, at the place of the usual one. The usual one comes first,
    or, for the first `_GROUPED` places with a learned model, the one that the model predicts to be the fastest.
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
    """Return up to `most` first configs of `ranked`, one of each set that differs only in GROUP_SIZE_M.

    With a learned model this takes a third of the time of `ranked`, because the networks are evaluated only for configs
    that the trees prefer. The result can differ from `ranked` if the networks prefer other configs.
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
    of_trees = model.trees.octaves(specialized(model.trees, columns).leaves(columns))
    preferred = np.flatnonzero(of_trees <= np.sort(of_trees)[:most].max() + _PREFERRED_OCTAVES)
    octaves = model.octaves({name: values[preferred] for name, values in columns.items()}, of_trees[preferred])
    chosen = [together[row] for row in preferred[np.argsort(octaves, kind="stable")[:most]].tolist()]
    flat = [config for each in chosen for config in each]
    said = dict(zip(flat, predicted_octaves(problem, flat, gpu, model).tolist(), strict=True))
    return [min(each, key=said.__getitem__) for each in chosen]
