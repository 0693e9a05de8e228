"""genkern.explain: the space of a size, what rules drop, and predicted times."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here
from tiny_space import CONFIGS, tiny_command

import genkern
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.predicted_times import predicted_times


@pytest.fixture
def space(tmp_path: Path) -> Path:
    tiny_command(tmp_path, tmp_path, "")
    return tmp_path / "tiny.yaml"


def test_every_config_is_counted_once(space: Path) -> None:
    found = genkern.explain(M=16, N=128, K=256, arch="sm_90")
    assert found.total == found.kept + sum(found.dropped.values()) + sum(found.illegal.values())
    assert found.kept == len(found.candidates) == len(found.to_pandas())
    assert all(found.reasons[rule] for rule in found.dropped)
    assert (found.device, found.arch, found.problem) == ("NVIDIA H200", "sm_90", GemmProblem(16, 128, 256))


def test_candidates_have_predicted_times(space: Path) -> None:
    """Those of the command, the fastest first; the table has the parameters."""
    found = genkern.explain((16, 128, 256), device="h200", space=space)
    assert {each.config for each in found.candidates} == set(CONFIGS)
    (time,) = predicted_times(found.problem, [CONFIGS[0]], gpu_for_arch("sm_90"))
    assert found.forecast(CONFIGS[0]).time_us == pytest.approx(time.us)
    assert found.forecast(CONFIGS[0].name) == found.forecast(CONFIGS[0])
    times_us = [each.time_us for each in found.candidates]
    assert times_us == sorted(times_us)
    for each in found.candidates:
        assert each.interval_us is not None
        assert each.interval_us[0] <= each.time_us <= each.interval_us[1]
    table = found.to_pandas()
    assert table.time_us.tolist() == times_us
    assert set(table.BLOCK_SIZE_M) == {16, 32}


def test_the_text_is_that_of_the_command(space: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = "-m", 16, "-n", 128, "-k", 256
    ran = run_here(capsys, *size, "--device", "h200", "--space", space, "--explain")
    said = str(genkern.explain(M=16, N=128, K=256, device="h200", space=space))
    assert ran.out.split("parameters other than the tile")[0].strip() in said
    assert "predicted" in said
    assert "8 of 8" in repr(genkern.explain(M=16, N=128, K=256, device="h200", space=space))


def test_a_config_that_cannot_compute_it_says_why(space: Path) -> None:
    found = genkern.explain(M=16, N=128, K=256, device="h200", space=space)
    with pytest.raises(InputError, match="gemv"):
        found.forecast(Config("gemv", 1, 16, 128, 1, 1, 4, 1))
    with pytest.raises(InputError, match="nothing"):
        found.forecast("nothing")


def test_one_size_at_a_time(space: Path) -> None:
    with pytest.raises(InputError, match="2"):
        genkern.explain([(1, 2, 64), (2, 2, 64)], device="h200")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="M = 0"):
        genkern.explain(M=0, N=1, K=1, device="h200")
