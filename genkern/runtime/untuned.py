"""Which tuned M serves one that nobody tuned: rules, AITER's padding and the nearest among them as baselines."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    """The next larger M, whose tiles cover this one; above all of them the largest, up to twice its M.

    Beyond that the library: tiles for a few rows are many times too slow for a prompt.
    """
    if (found := next((option for option in options if option.m >= m), None)) is not None:
        return found
    return options[-1] if options and m <= 2 * options[-1].m else None


def by_model(m: int, options: Sequence[Option]) -> Option | None:
    """The option with the least modelled time (`modelled_us`), the library among them; a tie is the library's.

    Where none has a time, the next larger M.
    """
    times = [(us, option) for option in options if (us := modelled_us(m, option)) is not None]
    of_library = library_us(m, [option.winner for option in options])
    if not times and of_library is None:
        return next_larger(m, options)
    best_us, best = min(times, key=lambda known: known[0], default=(math.inf, None))
    return None if of_library is not None and of_library <= best_us else best


def modelled_us(m: int, option: Option) -> float | None:
    """Microseconds that an option takes for M: what it took for its own, times how much longer the predictor says.

    None where no kernel of it serves M, where nobody measured it, or where the predictor says nothing.
    """
    winner = option.winner
    if option.call is None or winner.time_us is None:
        return None
    own_us, us = _predicted_us(winner, winner.problem.M), _predicted_us(winner, m)
    return winner.time_us * us / own_us if math.isfinite(own_us) and math.isfinite(us) else None


@functools.lru_cache(maxsize=4096)
def _predicted_us(winner: PackedWinner, m: int) -> float:
    # Its model and the table of GPUs are needed for an M that nobody tuned, and by this rule alone.
    from genkern.gemm.config import Config
    from genkern.gemm.gpus import gpu_for_device, partition_of
    from genkern.gemm.records import Resources
    from genkern.search.predict import predict_us

    gpu = partition_of(gpu_for_device(winner.device, winner.arch), winner.compute_units)
    return predict_us(replace(winner.problem, M=m), Config.parse(winner.config), Resources(), gpu)


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
