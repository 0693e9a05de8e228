"""Compares the figures of an engine without genkern and with it, and finds what is slower or different beyond noise."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A lower ratio (time without genkern over time with it) counts as slower, unless the repetitions overlap.
LEAST_RATIO = 0.995
# Log-probabilities may differ by this multiple of the engine's own difference between two batch sizes.
_TIMES_OWN = 2.0
_NOTHING: Mapping[str, Any] = {"step_ms": []}


@dataclass(frozen=True)
class Times:
    """Repeated times of one batch or one prefill, in milliseconds, without genkern and with it.

    what: the batch size, or the prefill's name (prefill_name)
    """

    what: str
    stock_ms: tuple[float, ...]
    genkern_ms: tuple[float, ...]

    @property
    def stock(self) -> float:
        return statistics.median(self.stock_ms)

    @property
    def genkern(self) -> float:
        return statistics.median(self.genkern_ms)

    @property
    def ratio(self) -> float:
        """The engine's time without genkern over its time with genkern: above 1, genkern is faster."""
        return self.stock / self.genkern

    @property
    def is_slower(self) -> bool:
        """True if `ratio` is below LEAST_RATIO, and the repetitions do not overlap.

        Repetitions overlap unless the lower quartile with genkern is above the upper quartile without it.
        """
        return self.ratio < LEAST_RATIO and _quartiles(self.genkern_ms)[0] > _quartiles(self.stock_ms)[1]


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def times_of(stock: Mapping[str, Any], genkern: Mapping[str, Any]) -> list[Times]:
    """Return the times of each batch in both results, then of each prefill."""
    found = [
        Times(batch, tuple(each["step_ms"]), tuple(genkern["batches"][batch]["step_ms"]))
        for batch, each in stock["batches"].items()
        if batch in genkern["batches"]
    ]
    found += [
        Times(name, tuple(times), tuple(genkern["prefill_ms"][name]))
        for name, times in stock["prefill_ms"].items()
        if name in genkern["prefill_ms"]
    ]
    return found


def pooled(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first result with the repetitions of the second one added. The second may have fewer batches."""
    batches = {
        batch: {**each, "step_ms": [*each["step_ms"], *other["batches"].get(batch, _NOTHING)["step_ms"]]}
        for batch, each in one["batches"].items()
    }
    prefills = {name: [*times, *other["prefill_ms"].get(name, ())] for name, times in one["prefill_ms"].items()}
    return {**one, "batches": batches, "prefill_ms": prefills}


@dataclass(frozen=True)
class Tokens:
    """Greedy tokens and log-probabilities of one batch.

    batch: the batch size
    same: number of equal tokens before the first difference, summed over the sequences
    of: number of all tokens
    apart: largest difference of a log-probability between the engine without and with genkern; None if unknown
    own: the same between the engine's own batch sizes for equal prompts; None if unknown
    of_genkern: the same between the batch sizes of the engine with genkern; None if unknown
    invariant: True if both engines ran in vLLM's batch-invariant mode
    """

    batch: str
    same: int
    of: int
    apart: float | None
    own: float | None
    of_genkern: float | None = None
    invariant: bool = False

    @property
    def is_different(self) -> bool:
        """True if tokens differ and the log-probabilities are too far apart, or their difference is unknown.

        Too far: more than `_TIMES_OWN` times the engine's own difference between batch sizes. In the batch-invariant
        mode, other bits than the engine's own are allowed, but no difference between batch sizes with genkern.
        """
        if self.invariant:
            return self.of_genkern != 0
        if self.same == self.of:
            return False
        return self.apart is None or self.own is None or self.apart > _TIMES_OWN * self.own


def tokens_of(stock: Mapping[str, Any], genkern: Mapping[str, Any], *, invariant: bool = False) -> list[Tokens]:
    """Return the comparison of each batch in both results. `invariant`: both ran in the batch-invariant mode."""
    own, of_genkern = _own_difference(stock["batches"]), _own_difference(genkern["batches"])
    found = []
    for batch, each in stock["batches"].items():
        other = genkern["batches"].get(batch)
        if other is None:
            continue
        pairs = list(zip(each["tokens"], other["tokens"], strict=False))
        same = sum(_same_start(one, two) for one, two in pairs)
        apart = _difference(each["logprobs"], other["logprobs"])
        found.append(Tokens(batch, same, sum(len(one) for one, _ in pairs), apart, own, of_genkern, invariant))
    return found


def _same_start(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of equal tokens before the first difference; after it, the contexts differ."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def _own_difference(batches: Mapping[str, Any]) -> float | None:
    """Return the largest difference of a log-probability for equal prompts between two batches of one engine.

    None if fewer than two batches have log-probabilities.
    """
    kept = [each["logprobs"] for each in batches.values() if each["logprobs"]]
    found = [_difference(one, other) for one, other in itertools.combinations(kept, 2)]
    return max((each for each in found if each is not None), default=None)


def _difference(one: Sequence[Any], other: Sequence[Any]) -> float | None:
    """Return the largest difference of a log-probability over prompts, positions and tokens that both have.

    A position counts while the tokens before it are equal: the most probable token is the one that was taken.
    """
    found = []
    for places, others in zip(one, other, strict=False):
        for a, b in zip(places, others, strict=False):
            found += [abs(a[token] - b[token]) for token in set(a) & set(b)]
            if max(a, key=a.__getitem__) != max(b, key=b.__getitem__):
                break
    return max(found, default=None)


def rows_of(times: Sequence[Times], tokens: Sequence[Tokens]) -> list[tuple[str, ...]]:
    """Return the table's rows, the header first."""
    by_batch = {each.batch: each for each in tokens}
    rows: list[tuple[str, ...]] = [
        ("batch", "vLLM ms", "genkern ms", "ratio", "", "same tokens", "logprobs apart", "vLLM's own", "genkern's own")
    ]
    for each in times:
        said = by_batch.get(each.what)
        same = f"{said.same} of {said.of}" if said else ""
        apart = [_number(value) for value in (said.apart, said.own, said.of_genkern)] if said else ["", "", ""]
        verdict = " ".join(["slower"] * each.is_slower + ["different"] * (said is not None and said.is_different))
        rows.append((each.what, f"{each.stock:.3f}", f"{each.genkern:.3f}", f"{each.ratio:.3f}", verdict, same, *apart))
    return rows


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
