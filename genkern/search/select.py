"""Chooses the finalists and the winner: pure functions of measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from genkern.gemm.config import Config, in_text, name_of
from genkern.gemm.records import CONFIG_WINS, TIE, VENDOR_WINS, Measurement, Outcome
from genkern.kernels.catalogue import traits_of
from genkern.timing.libraries import OURS, TORCH, library_of
from genkern.timing.session import Budget
from genkern.timing.statistics import Estimate, compare, estimate

_NEVER_RAN = (Outcome.COMPILE_FAILED, Outcome.COMPILE_TIMED_OUT, Outcome.LAUNCH_FAILED, Outcome.CRASHED)
_ALL_MAY_WIN = Budget()
# A config that is statistically tied with the fastest, and within this factor of its time, may win by other criteria.
_NO_MATTER = 1.0025
# A call is long from _LONG_US on, and a candidate is near the fastest within the factor _NEAR. If calls are long, up to
# _MOST_NEAR near candidates are semifinalists, as far as one launch of each takes about _ROUND_US in total.
_LONG_US, _NEAR = 40.0, 1.05
_MOST_NEAR, _ROUND_US = 160, 100_000.0
_NEITHER = (Outcome.OVER_RESOURCES, Outcome.IDENTICAL, Outcome.PREDICTED_OUT)


def finalists(screened: Iterable[Measurement], most: int) -> list[str]:
    """Return the names of the `most` fastest measured configs, fastest first; equal times are ordered by name."""
    measured = [m for m in screened if m.outcome is Outcome.MEASURED and m.duration_us is not None]
    measured.sort(key=lambda m: (m.duration_us, m.config))
    return [m.config for m in measured[:most]]


def semifinalists(screened: Iterable[Measurement], most: int) -> list[str]:
    """Return the candidates among which the finalists are chosen: the `most` fastest, and for long calls further ones
    near the fastest, up to a limit.

    Long calls draw so much power that the clock falls, in the finals more than in screening, and other configs may then
    be the fastest: at 4096x6144x4096 the best of the finals was the 107th of the screening, 3.9 % behind (H200).
    """
    measured = [m for m in screened if m.outcome is Outcome.MEASURED and m.duration_us is not None]
    best_us = min((m.duration_us for m in measured if m.duration_us is not None), default=0.0)
    names = finalists(measured, most)
    if best_us < _LONG_US:
        return names
    near = [m for m in measured if m.duration_us is not None and m.duration_us <= _NEAR * best_us]
    return finalists(near, max(most, min(_MOST_NEAR, int(_ROUND_US / best_us)))) if len(near) > most else names


def families_without_times(measured: Iterable[Measurement]) -> list[str]:
    """Return a line for each family without any config that compiled and ran: the outcomes, and the first message.

    If other configs of the family ran or ended differently, the line is for the configs that share the parameters that
    change the kernel's text. Families with the same reason share a line. Configs that exceed the device's resources,
    are copies, or are skipped as hopeless count neither way.
    """
    of: dict[tuple[str, str], list[Measurement]] = {}
    for m in measured:
        if m.outcome not in _NEITHER:
            of.setdefault(_form_said(m.config), []).append(m)
    alike: dict[str, list[tuple[str, str]]] = {}
    for form, ended in sorted(of.items()):
        if all(m.outcome in _NEVER_RAN for m in ended):
            first = next((m.message for m in ended if m.message), "")
            alike.setdefault(" ".join(first.split()), []).append(form)
    lines = []
    for said, forms in alike.items():
        counts = Counter(m.outcome.value for form in forms for m in of[form])
        how = ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
        whole = {family for family, _ in forms if {form for form in of if form[0] == family} <= {*forms}}
        names = dict.fromkeys(family if family in whole else family + said_of for family, said_of in forms)
        lines.append(f"no {', '.join(names)} config ran ({how}): {said}")
    return lines


def _form_said(name: str) -> tuple[str, str]:
    """Return the family of a config, and the part of its name with the parameters that change the kernel's text."""
    family, _, rest = name.partition("_BM")
    return _form_of_rest(family, rest.partition("_nS")[2].lstrip("0123456789"))


# Cached: parsing thousands of names would dominate the time.
@lru_cache(maxsize=1024)
def _form_of_rest(family: str, rest: str) -> tuple[str, str]:
    config = Config.parse(f"{family}_BM16_BN16_BK16_GM1_SK1_nW1_nS1{rest}")
    return config.family, name_of(in_text(config))


def ranking(
    finals: Iterable[Measurement], vendor: Measurement | None = None, wins: Mapping[str, int] | None = None
) -> list[Measurement]:
    """Return the measured finalists, best first.

    The fastest finalist in the common rounds, and those that are tied with it and within `_NO_MATTER`, are ordered by
    further criteria; the others follow by median. The criteria are, in this order: beating the vendor library beyond
    doubt (if any of them does), winning more of the neighbouring sizes (`wins`, by name), being the simpler config.
    """
    measured = [m for m in finals if m.outcome is Outcome.MEASURED and m.duration_us is not None]
    measured.sort(key=lambda m: (m.duration_us, m.config))
    if not measured:
        return []
    wins = wins or {}
    leader = measured[0]
    for m in measured:
        # A finalist that dropped out early was timed in rounds with another clock, so only common rounds are compared.
        if _compared(m, leader) < 0:
            leader = m
    most_us = (leader.duration_us or 0.0) * _NO_MATTER
    group = [m for m in measured if m is leader or ((m.duration_us or 0.0) <= most_us and not _compared(m, leader))]

    def merit(m: Measurement) -> tuple[bool, int, tuple[int, ...], float, str]:
        complexity = _complexity(Config.parse(m.config))
        return not _beats(m, vendor), -wins.get(m.config, 0), complexity, m.duration_us or 0.0, m.config

    group.sort(key=merit)
    chosen = {m.config for m in group}
    return group + [m for m in measured if m.config not in chosen]


def faster_choice(winner: Measurement, vendor: Measurement | None, budget: Budget = _ALL_MAY_WIN) -> str:
    """Return which of both is faster: "config", "vendor", or "tie" if the difference is not significant (`compared`).

    Their samples should come from the confirmation, since the finals decided which of genkern's configs won. Return
    "config" if the library was not measured, else "vendor" if the winner's library may not win.
    """
    if vendor is None or not _is_measured(vendor):
        return CONFIG_WINS
    if not budget.may_win(library_of(winner.config)):
        return VENDOR_WINS
    return {-1: CONFIG_WINS, 0: TIE, 1: VENDOR_WINS}[_compared(winner, vendor)]


def library_calls(finals: Iterable[Measurement], budget: Budget) -> list[Measurement]:
    """Return the calls of libraries that may win, fastest first; calls without a time come last.

    Of calls with equal times PyTorch's own call comes first.
    """
    calls = [m for m in finals if library_of(m.config) not in OURS and budget.may_win(library_of(m.config))]
    measured = [m for m in calls if _is_measured(m)]
    measured.sort(key=lambda m: (m.duration_us, library_of(m.config) != TORCH, m.config))
    return measured + [m for m in calls if m not in measured]


def estimate_of(measurement: Measurement) -> Estimate:
    """Return median and interval of a measurement's samples; without samples, its time with an interval of zero
    width."""
    samples_us: Sequence[float] = measurement.samples_us or (measurement.duration_us or 0.0,)
    return estimate(samples_us)


def interval_us(measurement: Measurement) -> tuple[float, float] | None:
    """Return the interval of the median in microseconds; None for a single sample."""
    if len(measurement.samples_us) < 2:
        return None
    known = estimate_of(measurement)
    return known.low_us, known.high_us


def spread_us(samples_us: Sequence[float]) -> float:
    """Return the interquartile range of the samples in microseconds; 0 for fewer than four."""
    if len(samples_us) < 4:
        return 0.0
    ordered = sorted(samples_us)
    quarter = len(ordered) // 4
    return ordered[-1 - quarter] - ordered[quarter]


def _is_measured(vendor: Measurement | None) -> bool:
    return vendor is not None and vendor.outcome is Outcome.MEASURED


def _beats(config: Measurement, vendor: Measurement | None) -> bool:
    if vendor is None or not _is_measured(vendor):
        return True
    return _compared(config, vendor) < 0


def _compared(one: Measurement, other: Measurement) -> int:
    """Return -1 if `one` is faster, 1 if `other` is, 0 if the difference is not significant."""
    return compare(one.samples_us or (one.duration_us or 0.0,), other.samples_us or (other.duration_us or 0.0,))


def _complexity(config: Config) -> tuple[int, ...]:
    """Return a sort key of complexity.

    Simpler is, in this order: the same result in every run, a smaller SPLIT_K, fewer stages, fewer warps, a smaller
        GROUP_SIZE_M, no remapping to XCDs, loads without a cache modifier.
    """
    varies = not traits_of(config).deterministic
    order = config.GROUP_SIZE_M, config.xcd_remap, int(config.cache_modifier != "none")
    return (varies, config.SPLIT_K, config.num_stages, config.num_warps, *order)


def no_winner_reason(candidates: Mapping[str, Measurement]) -> str:
    """Return why finalists that were timed gave no winner, with the first message: wrong results, or no memory to
    check."""
    if unchecked := [m for m in candidates.values() if m.outcome is Outcome.UNCHECKED]:
        return f"no finalist was proved right, {len(unchecked)} of them for lack of memory: {unchecked[0].message}"
    failed = "no finalist ran and was correct"
    if wrong := [m for m in candidates.values() if m.outcome is Outcome.WRONG and m.message]:
        return f"{failed}: {len(wrong)} gave wrong results, {wrong[0].config} at {wrong[0].message} (--profile_file)"
    return f"{failed} (--profile_file says why)"
