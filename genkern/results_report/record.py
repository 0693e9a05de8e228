"""`Record`: everything that a report shows, as plain values that JSON can express. Units are in the field names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Sources of a size's time.
MEASURED, PREDICTED, UNKNOWN = "measured", "predicted", "of unknown source"
# Verdicts of a comparison with an older result.
FASTER, SLOWER, SAME, NOT_COMPARED = "faster", "slower", "no clear change", "not compared"
# Version of the JSON format.
SCHEMA = 1


@dataclass(frozen=True)
class Group:
    """Rows with the same device and versions.

    device, arch, compute_units: the GPU; "" or None if the rows do not name it
    versions: versions of the software, by name
    timers: how the times were taken, such as cudagraph; or predicted
    sizes: number of rows
    """

    device: str
    arch: str
    compute_units: int | None
    versions: Mapping[str, str]
    timers: tuple[str, ...]
    sizes: int


@dataclass(frozen=True)
class Roof:
    """The limits of a device for one type of operands, from its data sheet (genkern/gemm/gpus.yaml)."""

    device: str
    dtype: str
    peak_tflops: float
    memory_tb_per_s: float


@dataclass(frozen=True)
class Needs:
    """What the main kernel of a config needs of the GPU; None for values that are unknown.

    blocks_per_unit: blocks that fit on one SM (compute unit) at a time
    warps_per_unit, warps_most: warps of these blocks, and the most that an SM holds
    loop: number of instructions in the main loop, by kind
    """

    registers: int | None
    spills: int | None
    shared_bytes: int | None
    scratch_bytes: int | None
    blocks_per_unit: int | None
    warps_per_unit: int | None
    warps_most: int | None
    loop: Mapping[str, int]


@dataclass(frozen=True)
class Source:
    """The generated program of a config.

    head: parameters, compile-time constants and compiler options of each kernel, one a line
    kernels: keys of `Record.texts`
    as_measured: True if this genkern generates the program that was measured, False if it generates another one, None
        if the results file does not identify the program
    """

    head: tuple[str, ...]
    kernels: tuple[str, ...]
    as_measured: bool | None


@dataclass(frozen=True)
class Tile:
    """The fastest candidate with one tile: rows, columns, its time, and the number of candidates with a time."""

    block_m: int
    block_n: int
    us: float
    candidates: int
    config: str


@dataclass(frozen=True)
class Candidates:
    """The candidates of one size.

    origin: the file that has them
    predicted: their times are predictions
    whole: every config of the space has an outcome
    outcomes: number of candidates by outcome
    timed: number of candidates with a time
    config, family, us, final_us, registers, shared_bytes, spills: the fastest of them, in columns; `us` is the first
        measurement, `final_us` the median of the finals; None if unknown
    parameters: values of the parameters in which these candidates differ, by name, in columns; None if a family does
        not have the parameter
    tiles: the best time of each tile, over all candidates
    best_by: for each of these parameters (value, best time, number of candidates), over all candidates
    """

    origin: str
    predicted: bool
    whole: bool
    outcomes: Mapping[str, int]
    timed: int
    config: tuple[str, ...]
    family: tuple[str, ...]
    us: tuple[float | None, ...]
    final_us: tuple[float | None, ...]
    registers: tuple[int | None, ...]
    shared_bytes: tuple[int | None, ...]
    spills: tuple[int | None, ...]
    parameters: Mapping[str, tuple[int | str | None, ...]]
    tiles: tuple[Tile, ...]
    best_by: Mapping[str, tuple[tuple[int | str, float, int], ...]]


@dataclass(frozen=True)
class Change:
    """A size beside its older result.

    ratio: new time over old time, with its 95 % interval
    p: two-sided p-value of the hypothesis that the medians are equal; None if the files do not have the intervals
    p_adjusted: the same, corrected for the number of sizes compared (Holm)
    library_ratio: new time over old time of the library's best call, which shows changes of clocks or versions
    why: why the two were not compared, or ""
    """

    verdict: str
    old_us: float | None
    old_low_us: float | None
    old_high_us: float | None
    old_config: str
    old_device: str
    winner_changed: bool
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    library_ratio: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Size:
    """One row of a results file.

    id: the fragment of its link, unique in the report
    label: the size, and the format if the report has several
    group, file: indices in `Record.groups` and `Record.files`
    timed: MEASURED, PREDICTED or UNKNOWN
    low_us, high_us: 95 % interval of the median; for a prediction the interval that is meant to hold 80 % of times
    library, library_us: the library's best call in the same rounds
    speedup: library_us / us, with a 95 % interval that combines the intervals of both medians
    called: "kernel" or "library": what a dispatcher calls, or "tie" if the library is called after a tie
    gflop: operations, in 10^9
    intensity: FLOP per byte, with every matrix moved once
    roof_us, roof_share, bound: least time by the data sheet, its share of the time, and the limit: memory or peak
    config: the winner's name; `kernel` is its family, or the library of another library's row
    """

    id: str
    label: str
    size: str
    M: int
    N: int
    K: int
    format: str
    group: int
    file: int
    device: str
    timed: str
    us: float | None
    low_us: float | None
    high_us: float | None
    spread_us: float | None
    samples: int | None
    discarded: int | None
    tflops: float | None
    gb_per_s: float | None
    library: str
    library_us: float | None
    library_low_us: float | None
    library_high_us: float | None
    torch_us: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_torch: float | None
    called: str
    gflop: float
    intensity: float
    roof_us: float | None
    roof_share: float | None
    bound: str
    kernel: str
    config: str
    parameters: Mapping[str, int | str]
    runner_up: str
    runner_up_us: float | None
    margin: float | None
    check: str
    error_ratio: float | None
    searched_share: float | None
    expected_loss: float | None
    batch_invariant: bool
    invariant_loss: float | None
    candidates: int | None = None
    needs: Needs | None = None
    runner_up_needs: Needs | None = None
    source: Source | None = None
    runner_up_source: Source | None = None
    change: Change | None = None


@dataclass(frozen=True)
class Stage:
    """A stretch of a run's timeline: a stage of one size on one device; seconds since the start of the run."""

    size: str
    device_index: int
    stage: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Run:
    """What a run cost, from its journal; None for values that the journal does not have.

    started: when the last start was, in UTC; `starts` counts all starts
    wall_s: from the last start to the last end of a size
    compile_s: processor seconds that the compiles of its binaries took, also of those that came from the cache
    measure_s: seconds in which the GPUs launched kernels: screening, finals, checks and confirmations; None for a run
        that was continued, since its earlier starts measured a part
    idle_s: the rest of the devices' time
    configs, binaries, cached: configs after pruning; binaries ordered, and those that were in the cache
    stages: the timeline
    """

    results: str
    command: str
    started: str
    starts: int
    devices: int
    sizes: int
    wall_s: float | None
    compile_s: float | None
    measure_s: float | None
    idle_s: float | None
    configs: int | None
    binaries: int | None
    cached: int | None
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Record:
    """A report.

    title: what was tuned
    genkern: the version that made the report
    made: when, in UTC
    files, old_files: names of the results files
    notes: what the files lack, one line each
    texts: texts of kernels, by key
    only_old: sizes that only the older files have
    """

    title: str
    genkern: str
    made: str
    files: tuple[str, ...]
    old_files: tuple[str, ...]
    groups: tuple[Group, ...]
    roofs: tuple[Roof, ...]
    sizes: tuple[Size, ...]
    candidates: tuple[Candidates, ...]
    texts: Mapping[str, str]
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    only_old: tuple[str, ...] = ()
    schema: int = field(default=SCHEMA)


def plain(value: Any) -> Any:
    """Return a record as dicts, lists and plain values; numbers have at most six significant digits.

    dataclasses.asdict would copy every number of every column first.
    """
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, (str, int)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
