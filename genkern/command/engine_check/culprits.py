"""Culprits: which layers' winners make an engine slower, found by switching layers off in halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Whether the engine is slower than without genkern if winners serve the layers of these sizes alone.
IsSlow = Callable[[Sequence[str]], bool]


def culprits(sizes: Sequence[str], is_slow: IsSlow) -> list[str]:
    """Returns the sizes whose winners make the engine slower; `sizes` together are known to.

    Starts the engine about 2 log2(n) times for one culprit among n sizes. If neither half is slower by itself, all of
    both are returned: their losses add up, and none can be told from noise.
    """
    if len(sizes) <= 1:
        return list(sizes)
    middle = len(sizes) // 2
    halves = sizes[:middle], sizes[middle:]
    slow = [half for half in halves if is_slow(half)]
    return [size for half in slow for size in culprits(half, is_slow)] or list(sizes)
