"""The older keys of AITER's Triton configs: small (M below 32), medium_M32, medium_M64, medium_M128, large, xlarge,
any.

AITER reads them only from the folder aiter/ops/triton/configs/gemm.

Source: the loaders of ROCm/aiter before gemm_config_utils.py, and its tuning guide (aiter/ops/triton/tune).
"""

from __future__ import annotations

from collections.abc import Collection

from genkern.files.exchange.aiter_triton import NAMED, config_obstacle, files_of, flat, obstacle, read
from genkern.files.timed_size import TimedSize

__all__ = ["IS_FOLDER", "NAME", "config_obstacle", "is_named", "obstacle", "read", "render"]

NAME = "aiter_triton_named"
IS_FOLDER = True


def is_named(name: str) -> bool:
    """Return False: aiter_triton reads files with all keys."""
    return False


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Return the files by name, and losses.csv. Raises InputError."""
    return files_of(sizes, _key_of, flat)


def _key_of(M: int) -> str:
    return next(key for key, most in NAMED.items() if most is None or most >= M)
