"""AITER's Triton JSON in one folder, aiter/ops/triton/configs/gemm, as releases of AITER before 2026-08-25 read it."""

from __future__ import annotations

from collections.abc import Collection

from genkern.formats.exchange.aiter_triton import bound_of, config_obstacle, files_of, flat, obstacle, read
from genkern.formats.exchange.timed_size import TimedSize

__all__ = ["IS_FOLDER", "NAME", "config_obstacle", "is_named", "obstacle", "read", "render"]

NAME = "aiter_triton_flat"
IS_FOLDER = True


def is_named(name: str) -> bool:
    """False: aiter_triton reads files of both layouts."""
    return False


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Files by name, and losses.csv about them. Raises InputError."""
    return files_of(sizes, bound_of, flat)
