"""AITER's Triton configs in one folder, aiter/ops/triton/configs/gemm, which AITER read until 2026-08-25."""

from __future__ import annotations

from collections.abc import Collection

from genkern.files.exchange.aiter_triton import bound_of, config_obstacle, files_of, flat, obstacle, read
from genkern.files.timed_size import TimedSize

__all__ = ["IS_FOLDER", "NAME", "config_obstacle", "is_named", "obstacle", "read", "render"]

NAME = "aiter_triton_flat"
IS_FOLDER = True


def is_named(name: str) -> bool:
    """Return False: aiter_triton reads files of both layouts."""
    return False


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Return the files by name, and losses.csv. Raises InputError."""
    return files_of(sizes, bound_of, flat)
