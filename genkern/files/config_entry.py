"""Makes a Config from one entry of a results file, or from its name, and lists the keys of entries."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from genkern.decoding import shown
from genkern.errors import InputError
from genkern.files.gemm_entry import SIZE_KEYS, own_keys
from genkern.gemm.config import Config
from genkern.gemm.parameter import AMD_OPTIONS, CORE, PARAMETERS, Value
from genkern.kernels.catalogue import FAMILIES, values_problem
from genkern.result.row import NAMES

# tune_gemm's names; genkern also reads the last one by its own name, schedule_hint.
AMD_KEYS = (*(parameter.name for parameter in AMD_OPTIONS[:3]), "instruction_sched_variant")
# All keys that tune_gemm or genkern writes for one size.
RESULT_KEYS = (
    *SIZE_KEYS[:5],
    *(parameter.name for parameter in CORE),
    *AMD_KEYS,
    "schedule_hint",
    *("op", "family", "config", "dtype_a", "dtype_b", "dtype_c", "bias", "activation"),
    *NAMES,
)
_REQUIRED = tuple(parameter.name for parameter in CORE if parameter.name.startswith("BLOCK_SIZE"))


def row_keys() -> tuple[str, ...]:
    """Return all keys that a row may have, except for parameters that RESULT_KEYS leaves out."""
    return tuple(dict.fromkeys((*SIZE_KEYS, *RESULT_KEYS, *own_keys())))


def config_of(values: Mapping[str, object]) -> Config:
    """Build the config of one entry; without `family` it is tune_gemm's kernel, "tiled".

    Raises InputError (without the place) if a value is missing or out of range, or if the entry's `config` name
    disagrees with its values.
    """
    family = _word("family", values.get("family", "tiled"))
    if family not in FAMILIES:
        raise InputError(
            f"family {shown(family)} is unknown; use one of {', '.join(FAMILIES)}, or, if genkern 0.1.0 wrote this "
            "line, remove it and tune its size again"
        )
    given = {**values, "schedule_hint": values.get("schedule_hint", values.get("instruction_sched_variant"))}
    parts: dict[str, Value] = {}
    for name, parameter in PARAMETERS.by_name.items():
        value = given.get(name)
        if name not in given or (value in (None, "") and parameter.neutral is not None):
            if name in _REQUIRED:
                raise InputError(f"{name} is missing; a result needs {', '.join(_REQUIRED)}")
        elif parameter.problem(value):
            raise InputError(f"{name} = {shown(value)} is not usable; write {parameter.said}")
        else:
            parts[name] = value  # type: ignore[assignment]
    config = Config(family, **parts)  # type: ignore[arg-type]
    if problem := values_problem(config):
        raise InputError(problem.replace(": ", " = ", 1))
    said = values.get("config")
    if said is not None and said != config.name:
        raise InputError(f"config is {shown(said)} but its values make {config.name}; correct one or drop config")
    return config


# Cached, since the rows of a file name few different configs.
@functools.lru_cache(maxsize=4096)
def parse_config(name: str) -> Config:
    """Return the config of this name, checked like `config_of`. Raises InputError if the name is invalid."""
    if len(name) > 200:
        raise InputError(f"{shown(name)} is too long for the name of a config")
    config = Config.parse(name)
    return config_of({"family": config.family, **config.values})


def _word(key: str, value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,39}", value):
        raise InputError(f"{key} = {shown(value)} is not a name of letters, digits and underscores")
    return value
