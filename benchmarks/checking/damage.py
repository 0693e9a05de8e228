"""Damage that files take: bytes as disks, copies and people change them, lines, and values in JSON that is whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

# In place of what a file says.
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**40, 10**12, 10**400, 1e308, float("nan"), float("inf"), 0.5),
    *("", "\x1b[2J", "a" * 1000, "../../etc/passwd", "__import__('os')", [], {}, [[]], {"a": 1}, [1, 2, 3], ["+", 1]),
)
# Of one damage, in bytes.
_MOST = 4096


def changed_bytes(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """What happened to the bytes, and what they are then; never what they were."""
    while True:
        name = rng.choice(sorted(_BYTES))
        changed = _BYTES[name](data, rng)
        if changed != data:
            return name, changed


def changed_lines(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The same of whole lines, or of bytes: of each half."""
    lines = data.splitlines(keepends=True)
    if len(lines) < 3 or rng.random() < 0.5:
        return changed_bytes(data, rng)
    one, other = sorted(rng.sample(range(len(lines)), 2))
    name = rng.choice(["lines swapped", "line lost", "line doubled", "line moved"])
    if name == "lines swapped":
        lines[one], lines[other] = lines[other], lines[one]
    elif name == "line lost":
        del lines[one]
    elif name == "line doubled":
        lines.insert(other, lines[one])
    else:
        lines.insert(other, lines.pop(one))
    changed = b"".join(lines)
    return (name, changed) if changed != data else changed_bytes(data, rng)


def changed_value(value: Any, rng: random.Random) -> Any:
    """JSON's value with one inside it replaced, left out, or there twice."""
    *above, last = rng.choice([path for path in paths_in(value) if path])
    copy = _copied(value)
    place = copy
    for key in above:
        place = place[key]
    how = rng.random()
    if how < 0.7:
        place[last] = rng.choice(WRONG)
    elif how < 0.85:
        del place[last]
    elif isinstance(place, list):
        place.insert(last, place[last])
    else:
        place[f"{last}_"] = place[last]
    return copy


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a value, by the keys that lead to it; () for the whole."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths_in(inner, (*at, key))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _range(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data))
    return start, min(len(data), start + rng.randint(1, _MOST))


def _bit(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _zeroed(data: bytes, rng: random.Random) -> bytes:
    start, end = _range(data, rng)
    return data[:start] + bytes(end - start) + data[end:]


def _noise(data: bytes, rng: random.Random) -> bytes:
    start, end = _range(data, rng)
    return data[:start] + rng.randbytes(end - start) + data[end:]


def _lost(data: bytes, rng: random.Random) -> bytes:
    start, end = _range(data, rng)
    return data[:start] + data[end:]


def _doubled(data: bytes, rng: random.Random) -> bytes:
    start, end = _range(data, rng)
    return data[:end] + data[start:]


def _moved(data: bytes, rng: random.Random) -> bytes:
    start, end = _range(data, rng)
    rest = data[:start] + data[end:]
    place = rng.randint(0, len(rest))
    return rest[:place] + data[start:end] + rest[place:]


_BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a bit": _bit,
    "cut short": lambda data, rng: data[: rng.randrange(len(data))],
    "zeros": _zeroed,
    "noise": _noise,
    "bytes lost": _lost,
    "bytes doubled": _doubled,
    "bytes moved": _moved,
}
