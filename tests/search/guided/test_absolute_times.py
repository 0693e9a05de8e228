"""Absolute times: larger sizes take no less time, configs have the model's order, and files of them are checked."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_configs import kept_configs

from genkern.errors import ResultsError
from genkern.gemm.gpus import gpu_of_product
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.model import learned_of, path_of, predicted_octaves
from genkern.search.guided.predicted_times import predicted_times
from genkern.search.guided.times import Times, times_of

H200, H100 = gpu_of_product("h200"), gpu_of_product("h100")
SHIPPED = Path(path_of("sm_90") or "")
aligned = st.integers(1, 256).map(lambda count: 64 * count)


def shipped() -> Times:
    found = times_of("sm_90")
    assert found is not None
    return found


@given(st.integers(1, 8192), aligned, aligned, st.integers(0, 8192), st.integers(0, 128), st.integers(0, 128))
def test_a_larger_size_is_never_predicted_faster(m: int, n: int, k: int, more_m: int, more_n: int, more_k: int) -> None:
    """If it is of the same format, layout and alignment."""
    one, other = GemmProblem(m, n, k), GemmProblem(m + more_m, n + 64 * more_n, k + 64 * more_k)
    for gpu in (H200, H100):
        assert shipped().best_octaves_of(one, gpu) <= shipped().best_octaves_of(other, gpu) + 1e-9


def test_predicted_times_have_the_order_of_the_model_and_lie_in_their_intervals() -> None:
    problem = GemmProblem(64, 6144, 4096)
    configs = kept_configs(problem, "sm_90")[::97]
    learned = learned_of("sm_90")
    assert learned is not None
    order = np.argsort(predicted_octaves(problem, configs, H200, learned), kind="stable")
    times = [predicted_times(problem, configs, H200)[place] for place in order]
    assert [time.us for time in times] == sorted(time.us for time in times)
    assert len({time.us for time in times}) > 10
    assert all(ends[0] < time.us < ends[1] for time in times if (ends := time.interval_us))
    assert all(time.interval_us for time in times)


def test_a_gpu_with_less_bandwidth_takes_longer_where_memory_is_the_limit() -> None:
    """And of a GPU of the architecture on which nothing was recorded no interval is known."""
    problem = GemmProblem(1, 16384, 4096)
    config = kept_configs(problem, "sm_90")[0]
    of_h200, of_h100 = (predicted_times(problem, [config], gpu)[0] for gpu in (H200, H100))
    assert 1.2 < of_h100.us / of_h200.us < 1.7
    unknown = predicted_times(problem, [config], gpu_of_product("gh200"))[0]
    assert unknown.us > 0
    assert unknown.interval_us is None


def test_what_is_written_is_read_in_the_place_of_what_was_there(tmp_path: Path) -> None:
    changed = replace(shipped(), slope=2.0, devices=("NVIDIA H100",))
    path = tmp_path / "model.npz"
    path.write_bytes(changed.put_into(SHIPPED.read_bytes()))
    found = Times.read(str(path))
    assert found is not None
    assert (found.slope, found.devices, found.kinds) == (2.0, ("NVIDIA H100",), shipped().kinds)
    with zipfile.ZipFile(path) as after, zipfile.ZipFile(SHIPPED) as before:
        assert sorted(after.namelist()) == sorted(before.namelist())


@pytest.mark.parametrize(
    ("name", "value"),
    [("slope", np.array(-1.0)), ("low", np.array([0.0])), ("widening", np.array(np.nan)), ("tree_left", np.zeros(3))],
)
def test_damaged_absolute_times_are_refused_by_name(tmp_path: Path, name: str, value: np.ndarray) -> None:
    path, file = tmp_path / "damaged.npz", io.BytesIO()
    with np.load(SHIPPED) as arrays:
        np.savez(file, **{**arrays, f"times_{name}": value})
    path.write_bytes(file.getvalue())
    with pytest.raises(ResultsError, match=r"damaged\.npz"):
        Times.read(str(path))
