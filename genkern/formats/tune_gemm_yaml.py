"""Results in tune_gemm's YAML: one flow mapping a line, with its keys first and genkern's after them.

Source: ROCm/triton, python/perf-kernels/tools/tune_gemm (README and perf_regression_ci/*.yaml). Any reader
of tune_gemm's files finds the keys it knows; a reader of genkern's finds device, versions, time and check.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import yaml

from genkern.errors import InputError, ResultsError
from genkern.files import read_text, shown_path, write_whole
from genkern.formats.flat_yaml import Entry, read_entries
from genkern.formats.gemm_entry import SIZE_KEYS, GemmDefaults, refuse_unknown, resolve
from genkern.formats.tuned_row import (
    AMD_KEYS,
    RESULT_KEYS,
    TunedRow,
    choice_of,
    config_of,
    interval,
    positive,
    ratio,
    text_of,
)
from genkern.gemm.records import Winner
from genkern.kernels.determinism import is_deterministic
from genkern.ops.op import gb_per_s

__all__ = ["TunedRow", "read_winners", "winners_text", "write_winners"]

SCHEMA = 1
# A comment, not a key: tune_gemm's readers expect a plain list.
_SCHEMA_LINE = re.compile(r"# genkern results, schema ([0-9]{1,9})\b")
_TIME_COMMENT = re.compile(r"# TFLOPS: \S+ time\(us\): ([0-9.]{1,30})\s*$")


def write_winners(path: str, winners: Sequence[Winner]) -> None:
    """Write `winners` to `path`, whole or not at all. Raises OutputError when that fails."""
    write_whole(path, winners_text(winners))


def winners_text(winners: Sequence[Winner]) -> str:
    """The file's text. Times are in microseconds, rounded to 0.1 ns."""
    header = f"# genkern results, schema {SCHEMA}: a list that readers of tune_gemm's results can load\n"
    return header + ("".join(_line(winner) for winner in winners) or "[]\n")


def read_winners(path: str, defaults: GemmDefaults | None = None) -> list[TunedRow]:
    """Read results that genkern or tune_gemm wrote, in file order.

    tune_gemm records neither types nor bias: those then come from `defaults`, or are genkern's own
    (bf16), the family is "tiled", and the time is that of the line's trailing comment, if any. An entry
    without `activation` is a result without one, whatever `defaults` says.
    Raises ResultsError (one line: file, line, what) for anything that is not such a file.
    """
    where = shown_path(path)
    text = read_text(path, ResultsError)
    schema = _SCHEMA_LINE.match(text)
    if schema and int(schema[1]) > SCHEMA:
        raise ResultsError(f"{where}: has schema {schema[1]}, this genkern reads up to {SCHEMA}; update genkern")
    lines = text.splitlines()
    rows = []
    for entry in read_entries(text, where, ResultsError):
        try:
            rows.append(_row(entry, defaults or GemmDefaults(), lines))
        except InputError as exc:
            raise ResultsError(f"{where}, line {entry.line}: {exc}") from None
    return rows


def _row(entry: Entry, defaults: GemmDefaults, lines: Sequence[str]) -> TunedRow:
    values = entry.values
    refuse_unknown(values.keys(), RESULT_KEYS, "key")
    # Written only when there is one: a result that does not say it is of a product without.
    size = {"activation": "none"} | {key: values[key] for key in SIZE_KEYS if key in values}
    duration_us = positive("time_us", values)
    if duration_us is None and entry.line <= len(lines) and (comment := _TIME_COMMENT.search(lines[entry.line - 1])):
        duration_us = _positive_or_none(comment[1])
    # Nothing here uses these; a value that makes no sense still means that the file is damaged.
    for key in ("TFLOPS", "GBps", "runner_up_us", "margin", "worst_row_error", "samples", "discarded"):
        positive(key, values, or_zero=True)
    for key in ("check", "runner_up"):
        text_of(key, values)
    return TunedRow(
        problem=resolve(size, defaults, arch=None).problem,
        config=config_of(values),
        duration_us=duration_us,
        arch=text_of("arch", values),
        device=text_of("device", values),
        time_source=text_of("time_source", values),
        versions=_versions(values.get("versions")),
        error_ratio=ratio("error_ratio", values),
        spread_us=positive("spread_us", values, or_zero=True),
        vendor_us=positive("vendor_us", values),
        choice=choice_of(values),
        interval_us=interval("interval", values),
        vendor_interval_us=interval("vendor_interval", values),
    )


def _positive_or_none(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _versions(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError("versions is not a mapping such as {'triton': '3.7.0'}")
    return {name: text_of(name, value) or "" for name in value}


def _line(winner: Winner) -> str:
    problem, us = winner.problem, winner.duration_us
    fields = ", ".join(f"'{key}': {_flow(value)}" for key, value in _fields(winner).items() if value is not None)
    return f"- {{{fields}}} # TFLOPS: {problem.tflops(us):.2f} time(us): {us:.2f}\n"


def _fields(winner: Winner) -> dict[str, object]:
    problem, config, check = winner.problem, winner.config, winner.check
    amd = config.matrix_instr_nonkdim != 0 or winner.arch.startswith("gfx")
    low_us, high_us = winner.interval_us or (None, None)
    vendor_low_us, vendor_high_us = winner.vendor_interval_us or (None, None)
    values: dict[str, object] = {
        "M": problem.M,
        "N": problem.N,
        "K": problem.K,
        "rowMajorA": "T" if problem.row_major_a else "N",
        "rowMajorB": "T" if problem.row_major_b else "N",
    }
    for key in RESULT_KEYS[5:12]:
        values[key] = getattr(config, key)
    if amd:
        values |= {key: getattr(config, key, config.schedule_hint) for key in AMD_KEYS}
    if config.xcd_remap:
        values["xcd_remap"] = config.xcd_remap
    if config.cache_modifier != "none":
        values["cache_modifier"] = config.cache_modifier
    return values | {
        "op": problem.op,
        "family": config.family,
        "config": config.name,
        "dtype_a": problem.dtype_a,
        "dtype_b": problem.dtype_b,
        "dtype_c": problem.dtype_c,
        "bias": problem.bias,
        "activation": None if problem.activation == "none" else problem.activation,
        "time_us": round(winner.duration_us, 4),
        "spread_us": round(winner.spread_us, 4),
        "interval_low_us": _rounded(low_us),
        "interval_high_us": _rounded(high_us),
        "samples": winner.samples,
        "discarded": winner.discarded,
        "time_source": winner.time_source,
        "TFLOPS": round(problem.tflops(winner.duration_us), 3),
        "GBps": round(gb_per_s(problem, winner.duration_us), 3),
        "error_ratio": check and check.error_ratio,
        "worst_row_error": check and check.worst_row_error,
        "check": check and check.method,
        "arch": winner.arch,
        "device": winner.device,
        "vendor_us": _rounded(winner.vendor_us),
        "vendor_interval_low_us": _rounded(vendor_low_us),
        "vendor_interval_high_us": _rounded(vendor_high_us),
        "runner_up": winner.runner_up or None,
        "runner_up_us": _rounded(winner.runner_up_us),
        "margin": _rounded(winner.margin),
        "choice": winner.choice,
        # Said only where it is not so.
        "deterministic": None if is_deterministic(problem, config) else False,
        "versions": dict(winner.versions),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _flow(value: object) -> str:
    """`value` in YAML's flow style, on one line, quoted as tune_gemm's own dicts are."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # YAML 1.1 reads 1e-05 as text: a float needs a point. A value that is not finite says nothing.
        text = repr(value) if math.isfinite(value) else "null"
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    if not isinstance(value, str):
        return str(value)
    if value.isascii() and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return str(yaml.safe_dump(value, default_style='"', width=math.inf)).strip()
