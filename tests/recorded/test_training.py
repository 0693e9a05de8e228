"""Training: what is learned of recorded times says which configs are fast, of sizes that it knows and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from kept_configs import kept_configs

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.recorded import training, training_network
from genkern.recorded.training import _costs, fold_models, folds_of, sampled, size_of, trained
from genkern.search.guided.features import features_of

GPU = gpu_for_arch("sm_90")


@dataclass(frozen=True)
class Known:
    """As a RecordedProblem, of a machine that likes many warps."""

    problem: GemmProblem
    gpu: Gpu = GPU

    @cached_property
    def us(self) -> Mapping[Config, float]:
        configs = kept_configs(GemmProblem(256, 1024, 2048), "sm_90")[::5]
        return {config: 100.0 / config.num_warps + config.BLOCK_SIZE_K / 64 for config in configs}


SIZES = [Known(GemmProblem(m, 1024, 2048)) for m in (64, 128, 192, 256)]


def test_a_trained_model_orders_configs_by_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After few rounds, since there is little to learn here."""
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(training, "_ROUNDS", 60)
    monkeypatch.setattr(training_network, "_HIDDEN", (32, 32))
    model = trained([sampled(each) for each in SIZES[:3]], "sm_90")  # type: ignore[arg-type]
    unknown = SIZES[3]
    columns = features_of(unknown.problem, list(unknown.us), GPU)
    of_trees = model.trees.octaves(model.trees.leaves(columns))
    assert model.network is not None
    times = np.log2(list(unknown.us.values()))
    for octaves in (of_trees, model.network.octaves(columns), model.octaves(columns, of_trees)):
        assert np.corrcoef(octaves, times)[0, 1] > 0.95
        assert times[octaves.argmin()] < times.min() + 0.1


def test_octaves_are_above_the_best() -> None:
    columns, octaves = sampled(SIZES[0])  # type: ignore[arg-type]
    assert octaves.min() == 0
    assert {len(column) for column in columns.values()} == {len(octaves)}


def test_samples_hang_on_the_size_alone() -> None:
    one, other = (sampled(Known(SIZES[0].problem))[1] for _ in range(2))  # type: ignore[arg-type]
    assert one.tolist() == other.tolist()


def test_nothing_measured_teaches_nothing() -> None:
    nothing = Known(SIZES[0].problem)
    nothing.__dict__["us"] = {}
    with pytest.raises(InputError, match="64x1024x2048"):
        sampled(nothing)  # type: ignore[arg-type]


def test_a_model_of_a_fold_knows_no_size_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of what is judged nor of what is only learned from."""
    monkeypatch.setattr(training, "_trees", lambda samples, arch: list(samples))
    monkeypatch.setattr(training, "_with_network", lambda samples, trees: [*samples, *trees])
    others = [Known(SIZES[0].problem), Known(GemmProblem(8, 8, 8))]
    seen = []
    for sizes, its in fold_models(SIZES, others, [*map(size_of, (*SIZES, *others))], 2):  # type: ignore[arg-type]
        assert isinstance(sizes, list)
        assert not {*map(size_of, its)} & {*sizes}
        assert (8, 8, 8) in sizes
        assert len(sizes) == 2 * (2 + 2 - (SIZES[0] in its))
        seen += its
    assert sorted(map(size_of, seen)) == sorted(map(size_of, SIZES))  # type: ignore[arg-type]


def test_one_size_alone_leaves_nothing_to_learn_from() -> None:
    with pytest.raises(InputError, match="the same M, N and K"):
        list(fold_models(SIZES[:1], [], [sampled(SIZES[0])], 2))  # type: ignore[list-item, arg-type]


def test_a_size_is_in_one_fold_whatever_its_format() -> None:
    problems = [GemmProblem(m, 512, 512, dtype_c=dtype_c) for m in range(1, 21) for dtype_c in ("bf16", "fp32")]
    folds = folds_of(problems, 4)
    assert folds[::2] == folds[1::2]
    assert {folds.count(fold) for fold in range(4)} == {10}


def test_what_all_of_a_size_err_alike_costs_nothing_within_sizes() -> None:
    """And pulls down what is predicted to be slower than it is, beside the others of its size."""
    octaves = [np.array([0.0, 1.0, 2.0]), np.array([0.0, 3.0])]
    costs = _costs(octaves, 1.0)
    known, shift = np.concatenate(octaves), np.array([5.0, 5.0, 5.0, -2.0, -2.0])
    assert np.allclose(costs(known + shift, None)[0], 0)
    gradient, curvature = costs(known + shift + [1.0, 0, 0, 0, 0], None)
    assert gradient[0] > 0
    assert (gradient[1:3] < 0).all()
    assert (curvature > 0).all()
    assert curvature[:3].sum() == pytest.approx(curvature[3:].sum())


def test_where_levels_count_what_is_alike_costs_too() -> None:
    octaves = [np.array([0.0, 1.0, 2.0]), np.array([0.0, 3.0])]
    known = np.concatenate(octaves)
    gradient, _ = _costs(octaves, 0.0)(known + np.array([5.0, 5.0, 5.0, -2.0, -2.0]), None)
    assert (gradient[:3] > gradient[3:].max()).all()
