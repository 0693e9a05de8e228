"""One line of a journal: a fact as compact JSON that ends with its own checksum, and the records that facts hold."""

from __future__ import annotations

import dataclasses
import json
import zlib
from typing import Any

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check, Measurement, Outcome, Winner

_CRC = b',"crc":'


def journal_line(fact: str, value: Any, problem: int | None = None) -> bytes:
    """One fact as it stands in a journal; `problem` is the problem's number.

    The last key, `crc`, is the CRC-32 (zlib) of the line as it would be without it: no single bit, and no run of up
    to 32, can change unnoticed.
    """
    of = {} if problem is None else {"problem": problem}
    return _sealed(json.dumps({"fact": fact, **of, "value": value}, separators=(",", ":")).encode()) + b"\n"


def entry_of(line: bytes) -> dict[str, Any]:
    """What a line without its end says. Raises ValueError when that is not what was written."""
    text, _, _ = line.rpartition(_CRC)
    if line != _sealed(text + b"}"):
        raise ValueError("the checksum is another")
    entry: dict[str, Any] = json.loads(line)
    return entry


def unsealed_header(line: bytes) -> dict[str, Any]:
    """The header that a line holds, whatever its checksum; empty when it holds none."""
    try:
        entry = json.loads(line)
        return dict(entry["value"]) if entry["fact"] == "header" else {}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}


def _sealed(text: bytes) -> bytes:
    return b"%b%b%d}" % (text[:-1], _CRC, zlib.crc32(text))


def lean(measurement: Measurement) -> dict[str, Any]:
    """The values of a measurement, without those that are empty."""
    # Not asdict, whose copies take ten times as long: there is a line for each of 15,000 candidates.
    return {k: v for k, v in vars(measurement).items() if v not in ("", None, (), 0)}


def measurement_of(values: dict[str, Any]) -> Measurement:
    """The measurement whose `lean` these are, which are used up."""
    samples = tuple(values.pop("samples_us", ()))
    return Measurement(**{**values, "outcome": Outcome(values["outcome"])}, samples_us=samples)


def values_of(winner: Winner) -> dict[str, Any]:
    """The values of a winner, without its problem."""
    values = {k: v for k, v in dataclasses.asdict(winner).items() if k != "problem"}
    return {**values, "config": winner.config.name}


def winner_of(values: dict[str, Any], problem: GemmProblem) -> Winner:
    """The winner of `problem` with these values."""
    check = check_of(values["check"]) if values["check"] else None
    versions = tuple((str(k), str(v)) for k, v in values["versions"])
    config = Config.parse(values["config"])
    intervals = {name: _pair(values.get(name)) for name in ("interval_us", "vendor_interval_us")}
    return Winner(**{**values, **intervals, "problem": problem, "config": config, "check": check, "versions": versions})


def check_of(values: dict[str, Any]) -> Check:
    """The check with these values."""
    lost = values.get("lost")
    return Check(**{**values, "lost": Outcome(lost) if lost else None})


def _pair(values: Any) -> tuple[float, float] | None:
    if values is None:
        return None
    low, high = values
    return float(low), float(high)
