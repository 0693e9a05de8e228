"""Model: what was learned of an architecture orders its configs, physics does where nothing was."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from kept_configs import kept_configs
from model_factory import of_wide_tiles

from genkern.errors import ResultsError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.features import physics_us
from genkern.search.guided.model import MODEL_VARIABLE, Prior, learned_of, ranked
from genkern.search.guided.model_rows import Rows

PROBLEM, GPU = GemmProblem(256, 1024, 2048), gpu_for_arch("sm_90")


def configs() -> list[Config]:
    return list(kept_configs(PROBLEM, "sm_90")[::41])


def test_all_are_ranked_once_with_their_group_sizes_together() -> None:
    order = ranked(PROBLEM, configs(), GPU)
    assert sorted(order) == sorted(configs())
    rows = Rows(configs())
    for row, config in enumerate(rows.configs):
        alike = {config, *rows.others[row]}
        place = min(map(order.index, alike))
        assert {*order[place : place + len(alike)]} == alike


def test_the_first_have_the_group_size_that_the_model_prefers_and_the_others_the_usual_one() -> None:
    many = list(kept_configs(PROBLEM, "sm_90")[:600])
    order, rows = ranked(PROBLEM, many, GPU), Rows(many)
    first = next(config for config in order if rows.others[_row_of(rows, config)])
    alike = [rows.configs[_row_of(rows, first)], *rows.others[_row_of(rows, first)]]
    assert first == alike[int(Prior(PROBLEM, alike, GPU, learned_of).octaves.argmin())]
    last = _row_of(rows, order[-1])
    assert order[-1 - len(rows.others[last])] == rows.configs[last]


def _row_of(rows: Rows, config: Config) -> int:
    return next(row for row, usual in enumerate(rows.configs) if config in (usual, *rows.others[row]))


def test_what_was_learned_decides() -> None:
    order = ranked(PROBLEM, configs(), GPU, lambda arch: of_wide_tiles())
    wide = [config.BLOCK_SIZE_N > 90 for config in order]
    assert wide == sorted(wide, reverse=True)
    assert {*wide} == {True, False}


def test_physics_decides_where_nothing_was_learned() -> None:
    order = [config for config in ranked(PROBLEM, configs(), GPU, lambda arch: None) if config in Rows(configs()).place]
    times = physics_us(PROBLEM, order, GPU)
    assert (np.diff(times) >= -1e-9).all()


@pytest.mark.parametrize("learned", [lambda arch: None, lambda arch: learned_of("sm_90")])
def test_errors_are_most_alike_of_one_and_the_same(learned: object) -> None:
    prior = Prior(PROBLEM, Rows(configs()).configs, GPU, learned)  # type: ignore[arg-type]
    for row in (0, 5):
        alike = prior.alike(row)
        assert alike[row] == 1.0
        assert ((alike >= 0) & (alike <= 1)).all()
        assert alike.min() < 0.9


def test_a_file_of_ones_own_stands_for_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    of_wide_tiles().write(data)
    (tmp_path / "own.npz").write_bytes(data.getvalue())
    monkeypatch.setenv(MODEL_VARIABLE, str(tmp_path / "own.npz"))
    own = learned_of("sm_90")
    assert own is not None
    assert own.trees.names.tolist() == ["log_bn"]
    assert learned_of("gfx942") is None
    (tmp_path / "bad.npz").write_text("no model")
    monkeypatch.setenv(MODEL_VARIABLE, str(tmp_path / "bad.npz"))
    with pytest.raises(ResultsError, match=r"bad\.npz"):
        learned_of("sm_90")
