"""What the benchmarks say of numbers: means, percentiles, Markdown tables, the order of sizes, files of full data."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import median
from typing import TypeVar

__all__ = ["DataFile", "figure", "geomean", "median", "percentile", "spread_order", "summary", "table"]

Item = TypeVar("Item")


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value at `share` (0 to 1) of the sorted values, interpolated linearly between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values: Sequence[float], form: str = ".3f") -> str:
    """Median, 90th percentile and most, as three cells of a Markdown row; dashes for no values."""
    if not values:
        return "- | - | -"
    return f"{median(values):{form}} | {percentile(values, 0.9):{form}} | {max(values):{form}}"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def figure(key: str, ratios: Sequence[float], least: str = "") -> list[str]:
    """A headline figure as lines: by its key the mean of the ratios, by `least` the least of them. None of none."""
    if not ratios:
        return []
    lines = [f"{key}: {geomean(ratios):.3f} (least {min(ratios):.3f}, {len(ratios)} of them)"]
    return [*lines, f"{least}: {min(ratios):.3f}"] if least else lines


def spread_order(items: Sequence[Item], limit: int | None = None) -> list[Item]:
    """The items in an order of which every beginning is spread over the whole list; `limit` of them at most."""
    bits = max(1, (len(items) - 1).bit_length())
    order = sorted(range(len(items)), key=lambda i: format(i, f"0{bits}b")[::-1])
    return [items[i] for i in order][:limit]


class DataFile:
    """Full data as JSON lines, one written after every size: a later one may fail. Without a path, nowhere."""

    def __init__(self, path: str | None) -> None:
        self._file = open(path, "w", encoding="utf-8") if path else None  # noqa: SIM115  open for the whole run

    def add(self, entry: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
