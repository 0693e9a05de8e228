"""Whether genkern still generates what a row of results was measured of: told without a GPU, and without compiling."""

from __future__ import annotations

from genkern.errors import InputError
from genkern.formats.tuned_row import TunedRow
from genkern.gemm.gpus import NOT_PRESENT, Gpu, gpu_for_device, partition_of
from genkern.kernels.source_digest import source_digest


def gpu_of(row: TunedRow, arch: str) -> Gpu:
    """The device of a row, or the partition of one. Raises InputError for an architecture that nobody knows."""
    gpu = gpu_for_device((row.device or "").removesuffix(NOT_PRESENT), arch)
    return partition_of(gpu, row.compute_units) if row.compute_units else gpu


def source_today(row: TunedRow) -> str:
    """What `row.source` would be if its config were measured now; takes some 30 ms.

    A row of the same digest is of kernels that genkern generates to the letter, comments aside. "" where genkern has no
    such kernel: of another library's row, one without an architecture, or a config that is not legal any more.
    """
    if row.config is None or not row.is_genkerns or row.arch is None:
        return ""
    try:
        return source_digest(row.problem, row.config, row.arch, gpu_of(row, row.arch))
    except InputError:
        return ""
