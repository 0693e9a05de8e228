"""Rules for an M that nobody tuned that genkern does not follow: untuned_m.py judges them beside its own."""

from __future__ import annotations

from collections.abc import Sequence

from genkern.runtime.bundles.untuned_m import Option


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


def next_larger(m: int, options: Sequence[Option]) -> Option | None:
    """The next larger M, whose tiles cover this one; above all of them the largest, up to twice its M."""
    if (found := next((option for option in options if option.m >= m), None)) is not None:
        return found
    return options[-1] if options and m <= 2 * options[-1].m else None
