"""Tests of genkern/cli/target.py: which device a run is for, on machines of every kind."""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.metadata
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from genkern.cli.options import parse
from genkern.cli.target import choose_target, installed, make_device_checker, make_profiler, versions
from genkern.errors import InputError, ProfilerError
from genkern.gemm.gpus import DetectedDevice
from genkern.profiling.predict_profiler import PredictProfiler
from genkern.profiling.supervised_profiler import SupervisedProfiler

H200 = [DetectedDevice(index, "NVIDIA H200", "sm_90") for index in range(2)]
MIXED = [H200[0], DetectedDevice(1, "NVIDIA H100 PCIe", "sm_90")]
PARTLY = [DetectedDevice(index, "AMD Instinct MI300X", "gfx942", units) for index, units in enumerate((304, 38))]
MI300X = [DetectedDevice(0, "AMD Instinct MI300X", "gfx942")]


def options(*argv: str) -> argparse.Namespace:
    return parse(["-m", "1", "-n", "1", "-k", "1", *argv])


@pytest.fixture(autouse=True)
def _with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genkern.cli.target.installed", lambda package: True)


@pytest.mark.parametrize(
    ("argv", "devices", "arch", "gpu_ids"),
    [
        ([], [], "gfx942", ()),
        ([], H200, "sm_90", (0,)),
        ([], MI300X, "gfx942", (0,)),
        ([], H200 + MI300X, "sm_90", (0,)),
        (["--arch", "gfx942"], H200 + MI300X, "gfx942", (0,)),
        (["--arch", "gfx950"], H200, "gfx950", ()),
        (["--profiler", "predict"], H200, "sm_90", ()),
        (["--profiler", "predict", "--gpu_ids", "0"], [], "gfx942", ()),
        (["--ngpus", "2"], H200, "sm_90", (0, 1)),
        (["--gpu_ids", "1"], H200, "sm_90", (1,)),
        (["--gpu_ids", "1"], MIXED, "sm_90", (1,)),
        (["--gpu_ids", "1,0", "--profiler", "cupti"], H200, "sm_90", (1, 0)),
        (["--arch", "gfx942:sramecc+:xnack-"], [], "gfx942", ()),
        (["--device", "h200"], H200, "sm_90", (0,)),
        (["--device", "H100 PCIe"], MIXED, "sm_90", (1,)),
        (["--device", "NVIDIA H100"], H200, "sm_90", ()),
        (["--device", "mi300x"], H200, "gfx942", ()),
    ],
)
def test_what_is_asked_for_and_found_decides(
    argv: list[str], devices: list[DetectedDevice], arch: str, gpu_ids: tuple[int, ...]
) -> None:
    """The GPU that is here, else that of GENKERN_ARCH; measured when there is one that fits, else predicted."""
    target = choose_target(options(*argv), devices)
    assert (target.arch, target.gpu_ids, target.measured) == (arch, gpu_ids, bool(gpu_ids))
    assert target.device_name.endswith("(not present)") != target.measured


def test_predictions_are_for_the_gpu_that_is_named_else_the_one_found() -> None:
    h100 = [DetectedDevice(0, "NVIDIA H100 80GB HBM3", "sm_90")]
    for argv, devices in ((["--device", "h100"], []), (["--device", "h100"], H200), (["--profiler", "predict"], h100)):
        target = choose_target(options(*argv), devices)
        assert (target.gpu.name, target.device_name) == ("NVIDIA H100", "NVIDIA H100 (not present)")


def test_measuring_needs_the_gpu_that_is_named() -> None:
    with pytest.raises(ProfilerError, match="NVIDIA H100"):
        choose_target(options("--device", "h100", "--profiler", "cudagraph"), H200)


def test_driver_and_clocks_of_the_gpus_of_the_run() -> None:
    """Of those alone, by their numbers; what the driver does not tell is left out, and without a GPU all of it."""
    told = [replace(gpu, driver="570.86.15", sm_clock_max_mhz=1980 - gpu.index) for gpu in H200]
    target = choose_target(options("--gpu_ids", "1"), told)
    assert (target.driver, target.clocks) == ("570.86.15", {"1": {"sm_clock_max_mhz": 1979}})
    target = choose_target(options("--ngpus", "2"), H200)
    assert (target.driver, target.clocks) == ("", {"0": {}, "1": {}})
    target = choose_target(options("--profiler", "predict"), told)
    assert (target.driver, target.clocks) == ("", {})


def test_amd_smi_tells_driver_and_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program is asked about each GPU of the run."""
    clocks = '[{"clock": {"gfx_0": {"max_clk": {"value": 2100}}, "mem_0": {"max_clk": {"value": 1300}}}}]'
    driver = '[{"driver": {"version": "6.10.5"}}]'
    program = tmp_path / "amd-smi"
    program.write_text(f"""#!/bin/sh
case "$*" in
  "metric --clock --gpu 0 --json") echo '{clocks}' ;;
  "static --driver --gpu 0 --json") echo '{driver}' ;;
  *) exit 1 ;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    target = choose_target(options(), MI300X)
    assert target.driver == "6.10.5"
    assert target.clocks == {"0": {"sm_clock_max_mhz": 2100, "memory_clock_max_mhz": 1300}}
    program.unlink()
    assert choose_target(options(), MI300X).clocks == {"0": {}}


def test_a_partitioned_gpu_is_what_it_shows() -> None:
    """In CPX mode an MI300X is a device of 38 compute units and one XCD: pruning goes by that."""
    target = choose_target(options(), [DetectedDevice(0, "AMD Instinct MI300X", "gfx942", 38)])
    assert (target.gpu.compute_units, target.gpu.xcds) == (38, 1)


@pytest.mark.parametrize(
    ("argv", "devices", "said"),
    [
        (["--profiler", "cupti"], [], "--profiler cupti needs an NVIDIA GPU, this machine has none"),
        (["--profiler", "cupti", "--arch", "sm_90"], [], "needs a sm_90 GPU, this machine has none"),
        (["--profiler", "rocprofv3"], H200, "--profiler rocprofv3 is for AMD GPUs, sm_90 is not one"),
        (["--profiler", "hipgraph"], H200, "--profiler hipgraph is for AMD GPUs, sm_90 is not one"),
        (["--profiler", "cupti", "--arch", "gfx942"], H200, "--profiler cupti is for NVIDIA GPUs, gfx942 is not one"),
        (["--ngpus", "1", "--arch", "gfx950"], MI300X, "--ngpus 1 needs a gfx950 GPU, this machine has gfx942"),
        (["--ngpus", "3"], H200, "this machine has 2 sm_90"),
        (
            ["--ngpus", "2"],
            MIXED,
            "GPU 0 is NVIDIA H200, GPU 1 is NVIDIA H100 PCIe: the GPUs of one run must be of one",
        ),
        (["--gpu_ids", "0,1"], PARTLY, "GPU 0 is AMD Instinct MI300X with 304 compute units, GPU 1 is AMD Instinct MI"),
        (["--gpu_ids", "0,2"], H200, "--gpu_ids 2: there is no such sm_90 GPU; there is 0, 1"),
        (["--arch", "gfx94"], [], "did you mean gfx942?"),
        ([], [DetectedDevice(0, "old", "gfx803")], "unknown arch 'gfx803'"),
    ],
)
def test_what_cannot_be_is_refused(argv: list[str], devices: list[DetectedDevice], said: str) -> None:
    """A measurement is never silently replaced by a prediction."""
    with pytest.raises((InputError, ProfilerError), match=said.replace("(", r"\(").replace("?", r"\?")):
        choose_target(options(*argv), devices)


def test_profilers_follow_the_target(tmp_path: object) -> None:
    """The predictor without a GPU, a served process on NVIDIA, with the timer that was chosen; it checks as well."""
    places = str(tmp_path), str(tmp_path)
    assert isinstance(make_profiler(choose_target(options(), []), "auto", 0, *places), PredictProfiler)
    target = choose_target(options(), H200)
    chosen = [(target, choice) for choice in ("cudagraph", "cudaevents", "cupti")]
    chosen += [(choose_target(options(), MI300X), choice) for choice in ("hipgraph", "hipevents")]
    for of, choice, source in [(target, "auto", "cudagraph"), *((*each, each[1]) for each in chosen)]:
        profiler = make_profiler(of, choice, 1, *places)
        assert isinstance(profiler, SupervisedProfiler)
        assert profiler.time_source == source
        assert make_device_checker(of, profiler, 1, *places) is profiler


def test_a_missing_rocprof_is_refused_at_once(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the profiler is made, not when the first size is measured."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("ROCM_PATH", "ROCM_HOME", "HIP_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    for choice in ("auto", "rocprof"):
        with pytest.raises(ProfilerError, match="rocprof"):
            make_profiler(choose_target(options(), MI300X), choice, 0, str(tmp_path), str(tmp_path))


def test_installed_asks_without_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that refuses to be found counts as missing, and nothing is imported."""
    monkeypatch.undo()

    class Blocker:
        def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
            if name == "blocked":
                raise ModuleNotFoundError(name)
            return None

    monkeypatch.setattr(sys, "meta_path", [Blocker(), *sys.meta_path])
    assert not installed("blocked")
    assert not installed("no_such_package_at_all")
    before = set(sys.modules)
    assert installed("wave")
    assert set(sys.modules) == before


def test_versions_name_what_results_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton is needed, under whichever name its distribution has; PyTorch is not."""
    found = versions()
    assert {"genkern", "python", "torch"} <= found.keys()
    assert found["triton"] == importlib.metadata.version("triton")

    def unknown(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr("importlib.metadata.version", unknown)
    assert versions() == {name: version for name, version in found.items() if name != "torch"}
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ProfilerError, match="pip install 'triton"):
        versions()
