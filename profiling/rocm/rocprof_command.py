"""Command lines and environment of AMD's profilers, as pure functions.

Differences between versions of rocprofv3 (rocprofv3.py and CHANGELOG of rocprofiler-sdk):

- ROCm 6.2 to 6.4 write CSV by default, 7.0 and later rocpd (sqlite), so the format is always given. The long
  `--output-format` works everywhere, the short `-f` only from 7.0 on; the format rocpd needs 7.0.
- `-d DIR -o NAME` gives `DIR/NAME_kernel_trace.csv` on every version; without `-o`, 6.2 writes
  `DIR/PID_kernel_trace.csv` and 6.3 and later `DIR/HOST/PID_kernel_trace.csv`.
- `--kernel-include-regex` affects counters only, never a kernel trace, so the reader filters names.
- `--log-level fatal` suppresses "Opened result file" and, from 7.14 on, the notice that direct CSV is deprecated.
- `%`, `{` and `$` in `-d` and `-o` start a key that rocprofv3 expands (`%pid%`, `%env{X}%`).

Legacy rocprof (rpl_run.sh) is a shell script that expands paths without quotes and exits with 0 whatever the program's
exit code was.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence

from genkern.errors import ProfilerError

FORMATS = ("csv", "rocpd")
_EXPANDED_BY_ROCPROFV3 = re.compile(r"[%{}$]")
_SAFE_IN_RPL_RUN = re.compile(r"[A-Za-z0-9_./+,:=@-]+")
# Prefixes of variables from which the tools read defaults. ROCPROF_OUTPUT_FORMAT is even added to the option.
_TOOL_PREFIXES = ("ROCPROF_", "ROCPROFILER_", "ROCP_")


def find_executable(name: str, option: str | None, env: Mapping[str, str]) -> str:
    """Return the path of `rocprofv3` or `rocprof`.

    Searches `option`, then the variable named like the tool in capitals (ROCPROFV3, ROCPROF), then PATH, $ROCM_PATH/bin
    and /opt/rocm/bin. If `option` or the variable is set but is not an executable, that is an error.

    Raises ProfilerError, which says what to try.
    """
    variable = name.upper()
    path = env.get("PATH", os.defpath)
    for given, origin in ((option, "the option"), (env.get(variable), f"${variable}")):
        if given:
            found = shutil.which(os.path.expanduser(given), path=path)
            if found is None:
                raise ProfilerError(f"{given!r} (from {origin}) is not an executable: give the full path of {name}")
            return os.path.abspath(found)
    rocm = [os.path.join(env["ROCM_PATH"], "bin")] if env.get("ROCM_PATH") else []
    found = shutil.which(name, path=os.pathsep.join([path, *rocm, "/opt/rocm/bin"]))
    if found is None:
        raise ProfilerError(
            f"{name} was not found on PATH, in $ROCM_PATH/bin or in /opt/rocm/bin: install rocprofiler-sdk of the ROCm "
            f"that PyTorch was built with, or set {variable} to its full path"
        )
    return os.path.abspath(found)


def rocprofv3_argv(
    executable: str, program: Sequence[str], directory: str, name: str, output_format: str = "csv"
) -> list[str]:
    """Return the command that traces every kernel of `program` into `directory/name_kernel_trace.csv`.

    With `output_format` "rocpd" the file is `directory/name_results.db`. Raises ProfilerError for another format and
    for a path that rocprofv3 would expand.
    """
    if output_format not in FORMATS:
        raise ProfilerError(f"{output_format!r} is not a trace format that genkern reads: use {' or '.join(FORMATS)}")
    for path in (directory, name):
        if (match := _EXPANDED_BY_ROCPROFV3.search(path)) is not None:
            raise ProfilerError(
                f"{path!r} holds {match[0]!r}, which rocprofv3 takes for a key to expand: choose another work folder"
            )
    options = ["--kernel-trace", "--output-format", output_format, "--log-level", "fatal", "-d", directory, "-o", name]
    return [executable, *options, "--", *program]


def rocprof_argv(executable: str, program: Sequence[str], output_csv: str) -> list[str]:
    """Return the legacy command that writes one row per kernel of `program` to `output_csv`.

    Raises ProfilerError for an argument with a space or a shell character, since rpl_run.sh evaluates them.
    """
    if not output_csv.endswith(".csv"):
        raise ProfilerError(f"{output_csv!r} does not end in .csv, as the output of rocprof must")
    for argument in (output_csv, *program):
        if not _SAFE_IN_RPL_RUN.fullmatch(argument):
            raise ProfilerError(
                f"rocprof cannot handle {argument!r} (it is a shell script that does not quote): "
                "choose a work folder of plain letters, or use rocprofv3"
            )
    return [executable, "--stats", "--basenames", "on", "--timestamp", "on", "-o", output_csv, *program]


def profiled_environment(env: Mapping[str, str], device_index: int) -> dict[str, str]:
    """Return a copy of `env` in which only one device is visible, as device 0, and no profiler option is set.

    `device_index` counts the devices that are visible now. ROCR_VISIBLE_DEVICES stays unchanged, because HIP counts
    within the devices that ROCr shows: naming device 3 in both would show none. Raises ProfilerError if
    HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES, which HIP reads too) has no such entry.
    """
    clean = {key: value for key, value in env.items() if not key.startswith(_TOOL_PREFIXES)}
    cuda = clean.pop("CUDA_VISIBLE_DEVICES", None)
    listed = clean.get("HIP_VISIBLE_DEVICES", cuda)
    chosen = str(device_index)
    if listed is not None:
        devices = [device.strip() for device in listed.split(",") if device.strip()]
        if device_index >= len(devices):
            raise ProfilerError(f"device {device_index} is not visible: HIP_VISIBLE_DEVICES is {listed!r}")
        chosen = devices[device_index]
    clean["HIP_VISIBLE_DEVICES"] = chosen
    return clean
