"""Which tuned M serves one that nobody tuned: rules, AITER's padding and the nearest among them as baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from genkern.runtime.packed import PackedCall, PackedWinner


@dataclass(frozen=True)
class Option:
    """A winner of another M whose kernels serve this one, by `call`; the library where it won there (None)."""

    winner: PackedWinner
    call: PackedCall | None

    @property
    def m(self) -> int:
        return self.winner.problem.M


# Of the options, in the order of their M, the one to take for M; None: the library.
Rule = Callable[[int, Sequence[Option]], "Option | None"]


def padded_m(m: int, n: int, coarse: bool) -> int:
    """M as AITER pads it before it looks it up (getPaddedM, csrc/py_itfs_cu/gemm_common.cu), finely or coarsely."""
    if coarse:
        return 8192 if m > 8192 and n > 4096 else 1 << (m - 1).bit_length()
    step = 16 if m <= 256 else 32 if m <= 1024 else 64 if m <= 4096 else 128
    return -(-m // step) * step


def by_padding(m: int, options: Sequence[Option]) -> Option | None:
    """AITER's rule: the M that is padded finely, then coarsely; else the library."""
    by_m = {option.m: option for option in options}
    for coarse in (False, True):
        for option in options[:1]:
            if (found := by_m.get(padded_m(m, option.winner.problem.N, coarse))) is not None:
                return found
    return None


def nearest(m: int, options: Sequence[Option]) -> Option | None:
    """The M with the least distance; of two, the larger one."""
    return min(options, key=lambda option: (abs(option.m - m), -option.m), default=None)


def next_larger(m: int, options: Sequence[Option]) -> Option | None:
    """The next larger M, whose tiles cover this one; above all of them the largest."""
    return next((option for option in options if option.m >= m), options[-1] if options else None)


def library_us(m: int, rows: Sequence[PackedWinner]) -> float | None:
    """The library's time for M in microseconds, on a line through the neighbours; None where nobody measured it.

    Beyond the largest M it grows as M does.
    """
    known = sorted((row.problem.M, row.library_us) for row in rows if row.library_us is not None)
    if not known:
        return None
    below = [point for point in known if point[0] <= m]
    above = [point for point in known if point[0] >= m]
    if not below:
        return known[0][1]
    if not above:
        return known[-1][1] * m / known[-1][0]
    (low, low_us), (high, high_us) = below[-1], above[0]
    return low_us if high == low else low_us + (high_us - low_us) * (m - low) / (high - low)
