"""Tests of search/cost_model/calibration_file.py: what was fitted on a device is used there, and is data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from genkern.errors import ResultsError
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, gpu_for_arch, partition_of
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.search.cost_model.calibration_file import (
    Calibration,
    calibration_path,
    read_calibration,
    write_calibration,
)
from genkern.search.cost_model.constants import (
    constants_for,
    forget_calibrations,
    shipped_constants,
)
from genkern.search.cost_model.predict import predict_us

MI300X, H200 = gpu_for_arch("gfx942"), gpu_for_arch("sm_90")
SLOW = replace(shipped_constants(MI300X), latency_us=3.0, kernel_us=8.0)
KEPT = Calibration("gfx942", MI300X.name, MI300X.compute_units, SLOW, {"kernels": 144})


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GENKERN_CACHE_DIR", str(tmp_path))
    forget_calibrations()
    yield
    forget_calibrations()


def test_what_was_fitted_is_used_on_its_device_alone() -> None:
    """From the next look on; a part of the device, another device, and a variable that says `off` have the shipped."""
    problem, config = GemmProblem(16, 4096, 4096), Config("tiled", 16, 64, 128)
    before = predict_us(problem, config, Resources(), MI300X)
    write_calibration(KEPT, calibration_path(MI300X))
    forget_calibrations()
    assert read_calibration(MI300X) == KEPT
    assert constants_for(MI300X) == SLOW
    assert predict_us(problem, config, Resources(), MI300X) > before
    for other in (H200, partition_of(MI300X, 38)):
        assert constants_for(other) == shipped_constants(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GENKERN_CALIBRATION", "off")
        assert read_calibration(MI300X) is None


def test_a_file_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it came from another machine; one of another GPU changes nothing, one that is not there is refused."""
    write_calibration(KEPT, tmp_path / "sent" / "c.json")
    monkeypatch.setenv("GENKERN_CALIBRATION", str(tmp_path / "sent" / "c.json"))
    assert (constants_for(MI300X), constants_for(H200)) == (SLOW, shipped_constants(H200))
    monkeypatch.setenv("GENKERN_CALIBRATION", str(tmp_path / "none.json"))
    with pytest.raises(ResultsError, match=r"none\.json"):
        read_calibration(MI300X)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"latency_us": 1e9}, "latency_us is 1000000000.0, not from 0.05 to 5"),
        ({"latency_us": float("nan")}, "latency_us is nan"),
        ({"latency_us": "1"}, "latency_us is '1'"),
        ({"latency_us": True}, "latency_us is True"),
        ({"speed": 1.0}, "the model of AMD Instinct MI300X has no constant 'speed'"),
        ({"packed_matrix_ratio": 2.0}, "has no constant 'packed_matrix_ratio'"),
    ],
)
def test_a_constant_out_of_its_range_is_refused(change: dict[str, object], said: str) -> None:
    """In one line that names file and constant: a wrong one would order every search wrongly."""
    path = calibration_path(MI300X)
    write_calibration(KEPT, path)
    text = json.loads(path.read_text())
    text["constants"].update(change)
    path.write_text(json.dumps(text))
    with pytest.raises(ResultsError, match=said) as error:
        read_calibration(MI300X)
    assert path.name in str(error.value)


@pytest.mark.parametrize(("gpu", "other"), [(MI300X, H200), (H200, MI300X)])
def test_constants_of_another_model_are_refused(gpu: Gpu, other: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that names file, GPU and constant, also where a file is named; `off` passes them over."""
    kept = Calibration(gpu.arch, gpu.name, gpu.compute_units, shipped_constants(other))
    write_calibration(kept, calibration_path(gpu))
    named = calibration_path(gpu).rename(calibration_path(gpu).with_name("sent.json"))
    assert constants_for(gpu) == shipped_constants(gpu)
    forget_calibrations()
    monkeypatch.setenv("GENKERN_CALIBRATION", str(named))
    with pytest.raises(
        ResultsError, match=rf"sent\.json does not hold .* \(the model of {gpu.name} has no constant 'm"
    ) as error:
        constants_for(gpu)
    assert "\n" not in str(error.value)
    monkeypatch.setenv("GENKERN_CALIBRATION", "off")
    assert constants_for(gpu) == shipped_constants(gpu)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 2}', '{"schema": 1, "constants": {}}', "null"])
def test_what_holds_no_constants_is_refused(text: str) -> None:
    """However a file is damaged."""
    path = calibration_path(MI300X)
    write_calibration(KEPT, path)
    path.write_text(text)
    with pytest.raises(ResultsError, match="constants"):
        read_calibration(MI300X)
