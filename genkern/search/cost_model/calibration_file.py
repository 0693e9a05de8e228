"""Stores fitted constants: a JSON file per device, in genkern's own folder; read as data and validated.

GENKERN_CALIBRATION names another file instead, such as one from another machine with the same GPU, or is `off`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from genkern.errors import ResultsError
from genkern.file_io import cache_folder, read_text, shown_path, write_whole
from genkern.gemm.gpus import Gpu
from genkern.search.cost_model.constants import Counted, free_of, ranges, shipped_constants

VARIABLE = "GENKERN_CALIBRATION"
_OFF = "off"
_SCHEMA = 1
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Calibration:
    """Constants that were fitted on a device.

    `fitted_on` describes the fit (JSON values, for people). A file has the constants that a fit may change.
    """

    arch: str
    gpu: str
    compute_units: int
    constants: Counted
    fitted_on: Mapping[str, Any] = field(default_factory=dict)


def calibration_path(gpu: Gpu) -> Path:
    """Return the path of the device's file. Raises InputError if there is no folder for it."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", f"{gpu.arch} {gpu.name} {gpu.compute_units}")
    return cache_folder(None) / "calibration" / f"{name}.json"


def read_calibration(gpu: Gpu) -> Calibration | None:
    """Return the calibration of a device like this; None if there is none, or GENKERN_CALIBRATION is `off`.

    Raises ResultsError if the file is damaged or has constants of another model than the GPU's, or if the file that
    GENKERN_CALIBRATION names is missing. A file for another device is ignored.
    """
    named = os.environ.get(VARIABLE, "")
    if named == _OFF:
        return None
    path = Path(named) if named else calibration_path(gpu)
    if not named and not path.exists():
        return None
    return _parsed(read_text(str(path), ResultsError, _MOST_BYTES), str(path), gpu)


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write the calibration. Raises OutputError if that is not possible."""
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {"schema": _SCHEMA, **asdict(calibration), "constants": free_of(calibration.constants)}
    write_whole(str(path), json.dumps(said, indent=2) + "\n")


def _parsed(text: str, path: str, gpu: Gpu) -> Calibration | None:
    try:
        said = json.loads(text)
        if said.pop("schema") != _SCHEMA:
            raise ValueError("it is of another version of genkern")
        device = said["arch"], said["gpu"], said["compute_units"]
        if not all(map(isinstance, device, (str, str, int))):
            raise TypeError("it does not name its GPU")
        if device != (gpu.arch, gpu.name, gpu.compute_units):
            return None
        fitted = replace(shipped_constants(gpu), **_numbers(said["constants"], gpu))  # type: ignore[arg-type]
        return Calibration(**{**said, "constants": fitted})
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ResultsError(
            f"{shown_path(path)} does not hold constants of a GPU ({reason}): move it away, then run genkern calibrate"
        ) from None


def _numbers(said: Mapping[str, Any], gpu: Gpu) -> dict[str, float]:
    """Return the validated constants.

    Raises ValueError if one is unknown, missing, not a number, or out of its range.
    """
    allowed = ranges(gpu)
    for name, value in said.items():
        if name not in allowed:
            raise ValueError(f"the model of {gpu.name} has no constant {name!r:.40}")
        least, most = allowed[name]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not least <= value <= most:
            raise ValueError(f"{name} is {value!r:.40}, not from {least:g} to {most:g}")
    if missing := allowed.keys() - said.keys():
        raise ValueError(f"there is no {min(missing)}")
    return {name: float(value) for name, value in said.items()}
