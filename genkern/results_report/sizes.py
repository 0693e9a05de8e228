"""From rows of results files to the sizes of a report: speed over the library, and distance from the roofline."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from genkern.cli.report import format_text
from genkern.errors import InputError
from genkern.files.results import gpu_of
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import NOT_PRESENT, Gpu
from genkern.gemm.records import CONFIG_WINS, TIE
from genkern.ops.op import bytes_moved, gb_per_s
from genkern.result.result import Result
from genkern.results_report.record import MEASURED, PREDICTED, UNKNOWN, Group, Roof, Size
from genkern.timing.libraries import library_of

_NOT_IN_FRAGMENTS = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class FileRow:
    """A row, and the index of its file in the report."""

    row: Result
    file: int


def gpu_or_none(row: Result) -> Gpu | None:
    """Return the GPU of a row; None if the row names no architecture, or one that genkern does not know."""
    try:
        return gpu_of(row, row.arch) if row.arch else None
    except InputError:
        return None


def groups_of(rows: Sequence[FileRow]) -> tuple[list[Group], list[int]]:
    """Return the groups of rows with equal device and versions, largest first, and the group of each row."""
    keys = [_group_key(each.row) for each in rows]
    order = [key for key, _ in Counter(keys).most_common()]
    groups = []
    for key in order:
        of = [each.row for each, other in zip(rows, keys, strict=True) if other == key]
        device, arch, units, versions = key
        timers = tuple(sorted({row.time_source or UNKNOWN for row in of}))
        groups.append(Group(device, arch, units, dict(versions), timers, len(of)))
    return groups, [order.index(key) for key in keys]


def _group_key(row: Result) -> tuple[str, str, int | None, tuple[tuple[str, str], ...]]:
    return row.device, row.arch, row.compute_units, tuple(sorted(row.versions))


def roofs_of(rows: Sequence[FileRow]) -> list[Roof]:
    """Return the limits of each device for each type of operands among the rows."""
    found: dict[tuple[str, str], Roof] = {}
    for each in rows:
        gpu, dtype = gpu_or_none(each.row), DTYPES[each.row.problem.dtype_a].peak
        if gpu is not None and (peak := gpu.peak_tflops.get(dtype)) is not None:
            found[device_text(each.row), dtype] = Roof(device_text(each.row), dtype, peak, gpu.memory_tb_per_s)
    return list(found.values())


def device_text(row: Result) -> str:
    """Return the device of a row in words; "not named" if the row does not say."""
    return (row.device or row.arch or "not named").removesuffix(NOT_PRESENT)


def sizes_of(rows: Sequence[FileRow], groups: Sequence[int]) -> list[Size]:
    """Return the size of each row."""
    formats = {format_text(each.row.problem) for each in rows}
    devices = {device_text(each.row) for each in rows}
    taken: Counter[str] = Counter()
    found = []
    for each, group in zip(rows, groups, strict=True):
        problem = each.row.problem
        words = [problem.size, *([format_text(problem)] * (len(formats) > 1))]
        fragment = _NOT_IN_FRAGMENTS.sub("-", " ".join([*words, *([device_text(each.row)] * (len(devices) > 1))]))
        taken[fragment] += 1
        # A folder may have a size in several files.
        fragment += f"--{taken[fragment]}" if taken[fragment] > 1 else ""
        found.append(_size(each, group, fragment, " ".join(words)))
    return found


def _size(each: FileRow, group: int, fragment: str, label: str) -> Size:
    row, problem, us = each.row, each.row.problem, each.row.duration_us
    gpu, moved = gpu_or_none(row), bytes_moved(problem)
    roof_us, bound = least_time(row, gpu)
    interval = row.predicted_interval_us if row.predicted else row.interval_us
    low, high = interval or (None, None)
    library_low, library_high = row.vendor_interval_us or (None, None)
    # A prediction is not comparable with a measured time of the library.
    is_compared = us is not None and not row.predicted
    speedup = row.vendor_us / us if is_compared and us and row.vendor_us else None
    around = ratio_interval(row.vendor_us, row.vendor_interval_us, us, row.interval_us) if speedup else None
    return Size(
        id=fragment,
        label=label,
        size=problem.size,
        M=problem.M,
        N=problem.N,
        K=problem.K,
        format=format_text(problem),
        group=group,
        file=each.file,
        device=device_text(row),
        timed=PREDICTED if row.predicted else UNKNOWN if not row.time_source else MEASURED,
        us=us,
        low_us=low,
        high_us=high,
        spread_us=row.spread_us,
        samples=row.samples,
        discarded=row.discarded,
        tflops=problem.tflops(us) if us else None,
        gb_per_s=gb_per_s(problem, us) if us else None,
        library=library_of(row.vendor) if row.vendor else ("torch" if row.vendor_us else ""),
        library_us=row.vendor_us,
        library_low_us=library_low,
        library_high_us=library_high,
        torch_us=row.torch_us,
        speedup=speedup,
        speedup_low=around[0] if around else None,
        speedup_high=around[1] if around else None,
        speedup_torch=row.torch_us / us if is_compared and us and row.torch_us else None,
        called="kernel" if row.choice == CONFIG_WINS else "tie" if row.choice == TIE else "library",
        gflop=problem.flops * 1e-9,
        intensity=problem.flops / moved,
        roof_us=roof_us,
        roof_share=roof_us / us if roof_us and us else None,
        bound=bound,
        kernel=row.config.family if row.config else row.library,
        config=row.config_name,
        parameters=row.config.values if row.config else {},
        runner_up=row.runner_up,
        runner_up_us=row.runner_up_us,
        margin=row.margin,
        check=row.proved_by,
        error_ratio=row.check.error_ratio if row.check else None,
        searched_share=row.searched_share,
        expected_loss=row.expected_loss,
        batch_invariant=row.batch_invariant,
        invariant_loss=row.invariant_loss,
    )


def least_time(row: Result, gpu: Gpu | None) -> tuple[float | None, str]:
    """Return the least time in microseconds by the GPU's data sheet, and the limit: "memory" or "peak".

    Every matrix moves once, every product and sum is computed once. (None, "") if the GPU or its peak is unknown.
    """
    peak = gpu.peak_tflops.get(DTYPES[row.problem.dtype_a].peak) if gpu is not None else None
    if gpu is None or peak is None:
        return None, ""
    memory_us = bytes_moved(row.problem) / gpu.memory_tb_per_s * 1e-6
    peak_us = row.problem.flops / peak * 1e-6
    return max(memory_us, peak_us), "memory" if memory_us > peak_us else "peak"


def ratio_interval(
    over_us: float | None, over: tuple[float, float] | None, us: float | None, around: tuple[float, float] | None
) -> tuple[float, float] | None:
    """Return the 95 % interval of `over_us` / `us` from the 95 % intervals of both; None if one is missing.

    The errors of both medians are independent, so that their relative widths add up in squares.
    """
    if not over_us or not us or over is None or around is None:
        return None
    ratio = over_us / us
    below = math.hypot(math.log(over_us / over[0]), math.log(around[1] / us))
    above = math.hypot(math.log(over[1] / over_us), math.log(us / around[0]))
    return ratio * math.exp(-below), ratio * math.exp(above)
