"""Tests of profiling/rocm/rocprof_command.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkern.errors import ProfilerError
from genkern.profiling.rocm.rocprof_command import (
    find_executable,
    profiled_environment,
    rocprof_argv,
    rocprofv3_argv,
)

_PROGRAM = ["python", "-m", "harness", "job file.json"]


def _executable(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_rocprofv3_command_names_its_format_and_place() -> None:
    """The format is explicit and long, and the program follows the double dash unchanged."""
    argv = rocprofv3_argv("/opt/rocm/bin/rocprofv3", _PROGRAM, '/tmp/it\'s a "dir"', "trace")
    assert argv == [
        *("/opt/rocm/bin/rocprofv3", "--kernel-trace", "--output-format", "csv", "--log-level", "fatal"),
        *("-d", '/tmp/it\'s a "dir"', "-o", "trace", "--"),
        *_PROGRAM,
    ]


def test_rocpd_is_the_other_format_and_there_is_no_third() -> None:
    """csv and rocpd can be asked for, json cannot."""
    assert "rocpd" in rocprofv3_argv("r", _PROGRAM, "/d", "n", "rocpd")
    with pytest.raises(ProfilerError, match="csv or rocpd"):
        rocprofv3_argv("r", _PROGRAM, "/d", "n", "json")


@pytest.mark.parametrize("place", ["/d/%pid%", "/d/{pid}", "/d/$HOME"])
def test_a_path_that_rocprofv3_would_expand_is_refused(place: str) -> None:
    """A work folder with a key character is an error, not another folder."""
    with pytest.raises(ProfilerError, match="work folder"):
        rocprofv3_argv("r", _PROGRAM, place, "n")


def test_rocprof_command_writes_rows_with_times() -> None:
    """Legacy rocprof gets --stats and --timestamp on, base names, and no double dash."""
    argv = rocprof_argv("rocprof", ["python", "job.json"], "/d/trace.csv")
    options = ["--stats", "--basenames", "on", "--timestamp", "on", "-o", "/d/trace.csv"]
    assert argv == ["rocprof", *options, "python", "job.json"]


@pytest.mark.parametrize(
    "place", ["/a dir/trace.csv", "/$(reboot)/trace.csv", "/it's/trace.csv", "/d/trace.txt", "/*.csv"]
)
def test_rocprof_never_gets_what_its_shell_script_would_evaluate(place: str) -> None:
    """A space, quote or shell character in a path, or another suffix, is refused."""
    with pytest.raises(ProfilerError, match="rocprof"):
        rocprof_argv("rocprof", ["python"], place)


def test_the_option_goes_before_the_variable_before_path(tmp_path: Path) -> None:
    """Each place is looked at only when the one before it says nothing."""
    by_option, by_variable, on_path = (_executable(tmp_path / d / "rocprofv3") for d in ("a b", "c", "d"))
    env = {"ROCPROFV3": by_variable, "PATH": str(tmp_path / "d")}
    assert find_executable("rocprofv3", by_option, env) == by_option
    assert find_executable("rocprofv3", None, env) == by_variable
    assert find_executable("rocprofv3", None, {"PATH": env["PATH"]}) == on_path


def test_rocm_path_is_searched_after_path(tmp_path: Path) -> None:
    """$ROCM_PATH/bin serves when PATH has none."""
    in_rocm = _executable(tmp_path / "rocm" / "bin" / "rocprofv3")
    assert find_executable("rocprofv3", None, {"PATH": "/none", "ROCM_PATH": str(tmp_path / "rocm")}) == in_rocm


def test_a_wrong_option_or_variable_is_an_error_though_path_has_one(tmp_path: Path) -> None:
    """What the user named is used or refused, never silently replaced."""
    path = str(Path(_executable(tmp_path / "rocprofv3")).parent)
    with pytest.raises(ProfilerError, match="the option"):
        find_executable("rocprofv3", "/no/such/rocprofv3", {"PATH": path})
    with pytest.raises(ProfilerError, match="ROCPROFV3"):
        find_executable("rocprofv3", None, {"PATH": path, "ROCPROFV3": "/no/such"})


def test_a_missing_profiler_says_what_to_try() -> None:
    """One line that names the places searched and the variable to set."""
    with pytest.raises(ProfilerError, match=r"PATH.*set ROCPROF_NONE") as caught:
        find_executable("rocprof_none", None, {"PATH": "/none"})
    assert "\n" not in str(caught.value)


def test_profiler_settings_do_not_reach_the_child() -> None:
    """Variables that the tools read as defaults are gone, all others stay."""
    env = {"ROCPROF_OUTPUT_FORMAT": "json", "ROCP_TOOL_LIBRARIES": "x", "ROCPROFILER_LOG": "1", "ROCM_PATH": "/r"}
    assert profiled_environment(env, 0) == {"ROCM_PATH": "/r", "HIP_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    ("env", "index", "visible"),
    [
        ({}, 3, "3"),
        ({"HIP_VISIBLE_DEVICES": "4,5"}, 1, "5"),
        ({"CUDA_VISIBLE_DEVICES": "6, 7"}, 1, "7"),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, 1, "1"),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1,0"}, 1, "0"),
    ],
)
def test_the_device_is_counted_among_the_visible_ones(env: dict[str, str], index: int, visible: str) -> None:
    """HIP_VISIBLE_DEVICES narrows what was visible; ROCr's list is left alone, as HIP counts within it."""
    narrowed = profiled_environment(env, index)
    assert narrowed["HIP_VISIBLE_DEVICES"] == visible
    assert narrowed.get("ROCR_VISIBLE_DEVICES") == env.get("ROCR_VISIBLE_DEVICES")
    assert "CUDA_VISIBLE_DEVICES" not in narrowed


def test_a_device_that_is_not_visible_is_refused() -> None:
    """An index past the list raises ProfilerError that shows the list."""
    with pytest.raises(ProfilerError, match="4,5"):
        profiled_environment({"HIP_VISIBLE_DEVICES": "4,5"}, 2)
