"""Many measurements, or unfit configs, as one value of a journal, in columns without repeated values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from genkern.gemm.records import Measurement, Outcome, Unfit, require_types

# Fields that many measurements have in common, in the order of `_kind`.
_KIND = ("outcome", "time_source", "stage", "message", "discarded", "usual_mhz", "watts")
# Default values, which are omitted.
_UNSAID = {"message": "", "discarded": 0, "usual_mhz": None, "watts": None}
_WHOLE = "="
# Above every time in us or ms. Python's integers may exceed every float.
_MOST = 1e15


def columns(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return the measurements as JSON values, from which `measurements_of` restores them to the bit.

    kinds: the distinct combinations of the fields in _KIND
    kind: the index in `kinds` of each measurement (missing if all have the first)
    config: their names (`shortened`)
    us: their times: a number is the only sample, a list the samples whose median is the time, null means no time;
        anything else is {"both": [time, samples]}
    took_ms: wall time of each (missing if none is known)
    """
    kinds: dict[tuple[Any, ...], int] = {}
    numbers = [kinds.setdefault(_kind(measurement), len(kinds)) for measurement in measurements]
    return {
        "kinds": [dict(_said(kind)) for kind in kinds],
        **({"kind": numbers} if len(kinds) > 1 else {}),
        "config": shortened(measurement.config for measurement in measurements),
        "us": [_times(measurement.duration_us, measurement.samples_us) for measurement in measurements],
        **({"took_ms": took} if any(took := [measurement.took_ms for measurement in measurements]) else {}),
    }


def measurements_of(value: Mapping[str, Any]) -> list[Measurement]:
    """Return the measurements of `columns`.

    Raises ValueError, LookupError, TypeError or AttributeError for other values.
    """
    kinds = [{**kind, "outcome": Outcome(kind["outcome"])} for kind in value["kinds"]]
    for kind in kinds:
        require_types(Measurement("", **kind))
    names = restored(value["config"])
    numbers = value.get("kind") or [0] * len(names)
    found = []
    took = value.get("took_ms") or [None] * len(names)
    for name, number, times, took_ms in zip(names, numbers, value["us"], took, strict=True):
        duration_us, samples_us = _times_of(times)
        for time in (duration_us, took_ms, *samples_us):
            if time is not None and not (_is_number(time) and 0 <= time < _MOST):
                raise ValueError(f"{str(time)[:40]!r} is not a time")
        if kinds[number]["outcome"] is Outcome.MEASURED and not duration_us:
            raise ValueError(f"{str(name)[:40]!r} was measured but has no time")
        of_it = {**kinds[number], "duration_us": duration_us, "samples_us": samples_us, "took_ms": took_ms}
        found.append(Measurement(name, **of_it))
    return found


def unfit_columns(unfit: Sequence[tuple[Sequence[str], Unfit]]) -> list[dict[str, Any]]:
    """Return groups of unfit configs with the reason of each group, as JSON values. Equal reasons form one group."""
    groups: dict[Unfit, list[str]] = {}
    for names, why in unfit:
        groups.setdefault(why, []).extend(names)
    return [
        {"outcome": why.outcome.value, "message": why.message, "config": shortened(names)}
        for why, names in groups.items()
    ]


def unfit_of(value: Sequence[Mapping[str, Any]]) -> dict[str, Unfit]:
    """Return the reason by config name. Raises as `measurements_of`."""
    return {
        name: unfit
        for group in value
        for unfit in [require_types(Unfit(Outcome(group["outcome"]), group["message"]))]
        for name in restored(group["config"])
    }


def codes_columns(codes: Mapping[str, str]) -> dict[str, Any]:
    """Return the code digests of configs as JSON values; "" repeats the digest of the config before."""
    names, said, before = sorted(codes), [], ""
    for name in names:
        said.append("" if codes[name] == before else codes[name])
        before = codes[name]
    return {"config": shortened(names), "code": said}


def codes_of(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the code digest by the config's name. Raises as `measurements_of`."""
    codes, code = {}, ""
    for name, said in zip(restored(value["config"]), value["code"], strict=True):
        code = said or code
        codes[name] = str(code)
    return codes


def shortened(names: Iterable[str]) -> list[str]:
    """Shorten each name by removing the words, between "_", that the name before has in the same place.

    A name is complete, and begins with "=", if the name before has another number of words.
    `["=tiled_BM16_GM1", "__GM4"]` stands for tiled_BM16_GM1 and tiled_BM16_GM4.
    """
    short = []
    before: list[str] = []
    for name in names:
        words = name.split("_")
        text = _WHOLE + name
        if len(words) == len(before) and "" not in words:
            changed = "_".join("" if word == old else word for word, old in zip(words, before, strict=True)).rstrip("_")
            text = text if changed.startswith(_WHOLE) else changed
        short.append(text)
        before = words
    return short


def restored(short: Iterable[str]) -> list[str]:
    """Return the names that `shortened` shortened. Raises ValueError for invalid input."""
    names = []
    words: list[str] = []
    for text in short:
        if text.startswith(_WHOLE):
            words = text[1:].split("_")
        else:
            changed = text.split("_")
            if len(changed) > len(words):
                raise ValueError(text)
            words = [new or old for new, old in itertools.zip_longest(changed, words, fillvalue="")]
        names.append("_".join(words))
    return names


def _is_number(value: object) -> bool:
    return isinstance(value, float) or type(value) is int


def _kind(m: Measurement) -> tuple[Any, ...]:
    return m.outcome.value, m.time_source, m.stage, m.message, m.discarded, m.usual_mhz, m.watts


def _said(kind: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    named = zip(_KIND, kind, strict=True)
    return ((name, value) for name, value in named if name not in _UNSAID or value != _UNSAID[name])


def _times(duration_us: float | None, samples_us: tuple[float, ...]) -> Any:
    if samples_us == (duration_us,):
        return duration_us
    # Profilers report the median. Any other time is written beside its samples.
    if samples_us and duration_us == median(samples_us):
        return samples_us
    return None if duration_us is None and not samples_us else {"both": [duration_us, samples_us]}


def _times_of(times: Any) -> tuple[float | None, tuple[float, ...]]:
    if times is None:
        return None, ()
    if isinstance(times, list):
        return median(times), tuple(times)
    if isinstance(times, dict):
        duration_us, samples_us = times["both"]
        return duration_us, tuple(samples_us)
    return times, (times,)
