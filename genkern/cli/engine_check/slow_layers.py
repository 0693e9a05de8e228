"""Finds the layers whose winners make an engine slower, by switching layers off in halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Returns True if the engine, with winners for the layers of these sizes only, is slower than without genkern.
IsSlow = Callable[[Sequence[str]], bool]


def culprits(sizes: Sequence[str], is_slow: IsSlow) -> list[str]:
    """Return the sizes whose winners make the engine slower. The caller has found that all `sizes` together do.

    Starts the engine about 2 log2(n) times for one culprit among n sizes. If neither half is slower by itself, both are
    returned: each single loss is below the noise, and only their sum is seen.
    """
    if len(sizes) <= 1:
        return list(sizes)
    middle = len(sizes) // 2
    halves = sizes[:middle], sizes[middle:]
    slow = [half for half in halves if is_slow(half)]
    return [size for half in slow for size in culprits(half, is_slow)] or list(sizes)
