"""Training of absolute times: what is fitted predicts sizes that it has not seen, and says how far it is off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_factory import of_wide_tiles

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_of_product
from genkern.gemm.problem import GemmProblem
from genkern.recorded.training_times import FOLDS, KnownTimes, Ranking, fitted_times, fold_times, winners_of
from genkern.search.guided.features import roofline_us

H100 = gpu_of_product("h100")
# The model puts tiles of up to 64 columns four octaves behind wider ones.
WIDE, NARROW = Config("tiled", 64, 128, 64), Config("tiled", 64, 64, 64)
ROOT = Path(__file__).parents[2]


def known(count: int) -> list[KnownTimes]:
    """Times of a GPU that takes 3 us and 1.2 times the roofline, twice as long with narrow tiles."""
    random = np.random.default_rng(1)
    found = []
    for _ in range(count):
        m, n, k = (64 * int(2 ** random.uniform(0, 6)) for _ in "mnk")
        problem = GemmProblem(m, n, k)
        us = 3.0 + 1.2 * roofline_us(problem, H100)
        found.append(KnownTimes(problem, H100, {WIDE: us, NARROW: 2 * us}, {}))
    return found


@pytest.fixture(autouse=True)
def _needs_lightgbm() -> None:
    pytest.importorskip("lightgbm")


def test_sizes_that_were_not_seen_are_predicted_with_their_intervals() -> None:
    ranking, errors, inside = Ranking(of_wide_tiles()), [], []
    for times, its in fold_times(known(150), ranking):
        for each in its:
            octaves = ranking.octaves(each.problem, [WIDE], each.gpu)
            us, ends = times.predicted(each.problem, octaves, each.gpu)
            assert ends is not None
            errors.append(abs(us[0] / each.us[WIDE] - 1))
            inside.append(ends[0][0] <= each.us[WIDE] <= ends[1][0])
    assert len(errors) == 150
    assert np.quantile(errors, 0.9) < 0.2
    assert 0.5 < np.mean(inside) <= 1.0


def test_times_rise_with_size_between_and_beyond_known_sizes() -> None:
    times = fitted_times(known(60), Ranking(of_wide_tiles()))
    octaves = [times.best_octaves_of(GemmProblem(m, 512, 512), H100) for m in range(16, 20_000, 128)]
    assert octaves == sorted(octaves)


def test_too_few_sizes_are_refused() -> None:
    with pytest.raises(InputError, match=str(FOLDS)):
        fitted_times(known(FOLDS - 1), Ranking(of_wide_tiles()))


def test_measured_winners_are_read_from_results() -> None:
    found = winners_of(str(ROOT / "results" / "nvidia_h200" / "llama-3.1-8b_tp1_bf16.yaml"))
    assert len(found) == 28
    assert {each.gpu.name for each in found} == {"NVIDIA H200"}
    assert all(each.best_us > 1.0 for each in found)
