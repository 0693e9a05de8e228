"""Train the model that corrects the predictor, from recorded spaces: trees by LightGBM, and networks."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.installation import pip_install
from genkern.recorded.problem import RecordedProblem
from genkern.recorded.training_network import fitted, nearness
from genkern.search.guided.features import Numbers, features_of
from genkern.search.guided.learned import Learned
from genkern.search.guided.trees import Trees, matrix_of

# Two forests that each see a part of the features and rows at a time have a smaller joint error on unseen sizes than
# one that sees all. `_WITHIN`: the first forest minimises the whole error, the second the error relative to the mean
# error of the size. Only the ranking of configs matters, but the level helps if nothing else is known. In folds of 168
# sizes, the first choices reach 0.930 of the best speed with the forests, 0.956 with two networks, 0.961 with both;
# other seeds change each by about 0.005. Properties of binaries (registers, spills, instructions of the main loop) did
# not improve the choice of the first 4 to 32.
_WITHIN = (0.0, 1.0)
_ROUNDS = 250
_LEAST_IN_LEAF = 60
_SETTING = {
    "learning_rate": 0.1,
    "num_leaves": 64,
    "max_bin": 127,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.5,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "boost_from_average": False,
    "seed": 0,
    "verbose": -1,
    "deterministic": True,
    "force_col_wise": True,
    # Several models are trained concurrently.
    "num_threads": 1,
}
# Rows per size: the configs nearly as fast as the best, up to half of the rows, and a sample of the others.
_ROWS = 2500
_NEAR_OCTAVES, _FAR_OCTAVES = 0.4, 3.0

Sample = tuple[Mapping[str, Numbers], Numbers]


def sampled(recorded: RecordedProblem) -> Sample:
    """Return the features of a sample of at most `_ROWS` timed configs, and by how many octaves each is slower than the
    size's best, at most `_FAR_OCTAVES`.

    The sample's random seed depends only on M, N and K. Raises InputError for a problem without times.
    """
    us = recorded.us
    if not us:
        raise InputError(f"{recorded.problem.name}: nothing was measured, so there is nothing to learn from it")
    configs, octaves = list(us), np.log2(np.array(list(us.values())))
    octaves -= octaves.min()
    random = np.random.default_rng([recorded.problem.M, recorded.problem.N, recorded.problem.K])
    near, far = np.flatnonzero(octaves < _NEAR_OCTAVES), np.flatnonzero(octaves >= _NEAR_OCTAVES)
    near = random.permutation(near)[: _ROWS // 2]
    rows = np.concatenate([near, random.permutation(far)[: _ROWS - len(near)]])
    columns = features_of(recorded.problem, [configs[row] for row in rows], recorded.gpu)
    return columns, np.minimum(octaves[rows], _FAR_OCTAVES)


def trained(samples: Sequence[Sample], arch: str, networks: bool = True) -> Learned:
    """Return a model that predicts octaves of time, from samples of one architecture; without `networks` trees alone.

    Raises InputError as `fitted` does.
    """
    trees = _trees(samples, arch)
    return _with_network(samples, trees) if networks else Learned(trees)


def _with_network(samples: Sequence[Sample], trees: Trees) -> Learned:
    names = trees.names.tolist()
    return Learned(
        trees, fitted([matrix_of(columns, names).T for columns, _ in samples], [of for _, of in samples], names)
    )


def require_libraries() -> None:
    """Raise InputError if a library for training is missing, before minutes of other work."""
    if missing := [name for name in ("lightgbm", "torch") if importlib.util.find_spec(name) is None]:
        raise InputError(f"training needs {' and '.join(missing)}: {pip_install('torch,train')}")


def _trees(samples: Sequence[Sample], arch: str) -> Trees:
    import lightgbm

    names = sorted({name for columns, _ in samples for name in columns})
    x = np.concatenate([matrix_of(columns, names).T for columns, _ in samples])
    setting = {**_SETTING, "min_data_in_leaf": min(_LEAST_IN_LEAF, len(x) // 8)}
    data = lightgbm.Dataset(x, params=setting, feature_name=[f"f{place}" for place in range(len(names))])
    data.set_label(np.zeros(len(x)))
    octaves = [each for _, each in samples]
    settings = [{**setting, "objective": _costs(octaves, within)} for within in _WITHIN]
    forests = [lightgbm.train(each, data, _ROUNDS).dump_model()["tree_info"] for each in settings]
    return arrays_of([tree["tree_structure"] for forest in forests for tree in forest], names, arch, len(_WITHIN))


def _costs(octaves: Sequence[Numbers], within: float) -> Callable[[Numbers, object], tuple[Numbers, Numbers]]:
    """Return the objective function of a forest: gradient and curvature of squared errors.

    The share `within` of the size's mean error is subtracted from each error.

    An error common to all configs of a size does not change their ranking. Every size has the same weight.
    """
    weights = list(map(nearness, octaves))
    share = np.concatenate([each / each.sum() for each in weights])
    size = np.repeat(np.arange(len(octaves)), [len(each) for each in octaves])
    weight, known = share * len(share) / len(octaves), np.concatenate(octaves)
    # Trees start from a prediction of 0.
    known = known - np.average(known, weights=weight)

    def costs(predicted: Numbers, data: object) -> tuple[Numbers, Numbers]:
        errors = predicted - known
        return weight * (errors - within * np.bincount(size, share * errors)[size]), weight

    return costs


def folds_of(problems: Sequence[GemmProblem], count: int) -> list[int]:
    """Return the fold of each problem. Problems with the same M, N and K are in one fold, whatever their format."""
    sizes = sorted({(problem.M, problem.N, problem.K) for problem in problems})
    np.random.default_rng(0).shuffle(sizes)
    fold = {tuple(size): place % count for place, size in enumerate(sizes)}
    return [fold[problem.M, problem.N, problem.K] for problem in problems]


def fold_models(
    judged: Sequence[RecordedProblem], others: Sequence[RecordedProblem], samples: Sequence[Sample], count: int
) -> Iterator[tuple[Learned, list[RecordedProblem]]]:
    """Yield for each of `count` folds of the judged problems a model that has seen none of its sizes, and its problems.

    A model learns from the judged problems of the other folds and from `others` whose M, N and K are not in its fold.
    All are of one architecture and have times; `samples` are theirs, in this order. Raises InputError if a model would
    have nothing to learn from.
    """
    arch = judged[0].gpu.arch
    folds = folds_of([recorded.problem for recorded in judged], count)
    sizes = [size_of(recorded) for recorded in (*judged, *others)]
    parts = [[recorded for recorded, of in zip(judged, folds, strict=True) if of == fold] for fold in sorted({*folds})]

    def known(its: Sequence[RecordedProblem]) -> list[Sample]:
        unknown = {size_of(recorded) for recorded in its}
        return [sample for size, sample in zip(sizes, samples, strict=True) if size not in unknown]

    if not all(map(known, parts)):
        raise InputError(
            "all sizes have the same M, N and K, so a fold has nothing to learn from: record others, or use --also"
        )
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        trees = list(threads.map(lambda its: _trees(known(its), arch), parts))
    # After the trees: PyTorch needs Python's lock for each operation and would wait for the threads.
    for its, of in zip(parts, trees, strict=True):
        yield _with_network(known(its), of), its


def size_of(recorded: RecordedProblem) -> tuple[int, int, int]:
    """Return M, N and K, by which folds are grouped."""
    problem = recorded.problem
    return problem.M, problem.N, problem.K


def arrays_of(structures: Sequence[Mapping[str, Any]], names: Sequence[str], arch: str, forests: int = 1) -> Trees:
    """Return LightGBM's trees as arrays, scaled such that their sum is the mean of the `forests`."""
    walked = [_walked(structure) for structure in structures]
    nodes, leaves = (max(len(each[part]) for each in walked) for part in (0, 1))
    feature, left, right = (np.full((len(walked), nodes), fill, dtype=np.int16) for fill in (0, ~0, ~0))
    threshold = np.zeros((len(walked), nodes), dtype=np.float32)
    value = np.zeros((len(walked), leaves), dtype=np.float32)
    for tree, (splits, values) in enumerate(walked):
        for node, (of, at, low, high) in enumerate(splits):
            feature[tree, node], threshold[tree, node], left[tree, node], right[tree, node] = of, at, low, high
        value[tree, : len(values)] = np.array(values) / forests
    return Trees(np.array(arch), np.array(names), feature, threshold, left, right, value)


def _walked(structure: Mapping[str, Any]) -> tuple[list[tuple[int, float, int, int]], list[float]]:
    """Return the splits of a tree, parents before children, and the values of its leaves."""
    splits: list[tuple[int, float, int, int]] = []
    values: list[float] = []

    def walk(node: Mapping[str, Any]) -> int:
        if "split_feature" not in node:
            values.append(float(node["leaf_value"]))
            return ~(len(values) - 1)
        place = len(splits)
        splits.append((0, 0.0, ~0, ~0))
        # A threshold rounded up to float32 could move float32 features to the other side; rounded down, none moves.
        at = np.nextafter(np.float32(node["threshold"]), np.float32(-np.inf))
        at = np.float32(node["threshold"]) if np.float32(node["threshold"]) <= node["threshold"] else at
        splits[place] = int(node["split_feature"]), float(at), walk(node["left_child"]), walk(node["right_child"])
        return place

    if walk(structure) < 0:
        splits.append((0, 0.0, ~0, ~0))
    return splits, values
