"""Rows of results as they are packed: which rows are left out and why, and the M for which each winner is called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from genkern.errors import InputError
from genkern.files.results import gpu_of
from genkern.gemm.gpus import NOT_PRESENT, Gpu
from genkern.gemm.problem import MAX_DIMENSION, GemmProblem
from genkern.gemm.records import CONFIG_WINS, VENDOR_WINS
from genkern.kernels.catalogue import is_deterministic, sums_of
from genkern.kernels.legality import legal
from genkern.ops.op import bytes_moved, get_op, groups_of
from genkern.packing.m_ranges import Kernels, MRange, further, lower_tiles, m_range
from genkern.packing.packer import CallToPack
from genkern.result.package import Package, PackedCall, PackedOperand
from genkern.result.result import Proof, Result
from genkern.runtime.bundles.untuned_m import Relatives
from genkern.search.guided.predicted_times import predicted_times
from genkern.timing.libraries import AITER, TORCH, library_of
from genkern.timing.trust_rank import TrustRank, trust_rank

# Predictions that differ relatively by less are the same: files have four decimals of a microsecond.
_SAME_PREDICTION = 0.002
# Operands of more than _CACHED times the last-level cache come from memory. They cannot come in less than _FASTEST of
# the time that they take at the memory's stated bandwidth.
_CACHED, _FASTEST = 2.0, 0.97


@dataclass(frozen=True)
class PackedRow:
    """One row to pack: the winner without its calls, and the calls to pack for it (none if the library wins)."""

    winner: Result
    wanted: tuple[CallToPack, ...]


@dataclass(frozen=True)
class Rows:
    """The rows to pack; by reason, the number of rows that are left out, and of packed rows that are in doubt."""

    packed: tuple[PackedRow, ...]
    left_out: dict[str, int]
    in_doubt: dict[str, int]


def rows_of(found: Iterable[Result], arch: str | None, predicted: bool) -> Rows:
    """Return the rows to pack. `arch` is the architecture of rows that do not state theirs.

    If two rows have one problem and device, the more reliable one is taken (genkern.timing.trust_rank), else the faster
    one. Batch-invariant rows are packed in addition to other rows of their problems, with kernels for every M that some
    kernel of their order of sums can serve.

    Raises InputError if a row has no architecture and `arch` is None, or if batch-invariant rows of one layer have
    different orders of sums.
    """
    best: dict[object, _Row] = {}
    left_out: dict[str, int] = defaultdict(int)
    in_doubt: dict[str, int] = defaultdict(int)
    for measured in found:
        row = _as_called(measured)
        if row is not measured:
            left_out["calls of AITER's kernels (genkern's or PyTorch's serve instead)"] += 1
        if reason := _left_out(row, predicted):
            left_out[reason] += 1
            continue
        target = row.arch or arch
        if not target:
            raise InputError(f"{row.problem.size} does not say for which architecture it is: give --arch")
        gpu = gpu_of(row, target)
        is_packed = row.choice == CONFIG_WINS or row.batch_invariant
        if is_packed and row.config and (reason := legal(row.problem, row.config, gpu)):
            left_out[f"not legal: {reason}"] += 1
            continue
        if _is_predicted_otherwise(row, gpu):
            left_out[f"predicted for another GPU than {gpu.name}, which they name (--device predicts for it)"] += 1
            continue
        if _is_faster_than_memory(row, gpu):
            in_doubt[f"measured faster than the memory of {gpu.name} allows: was their device changed?"] += 1
        here = _Row(row, target, gpu)
        if row.batch_invariant and row.config and sums_of(row.problem, row.config, target) != row.sums:
            left_out["batch invariant in an order of sums that their config no longer has: tune them again"] += 1
            continue
        key = here.problem, here.beside
        if key in best:
            left_out["duplicates (the better proved or faster one is packed)"] += 1
            if rank_of(best[key].row) <= rank_of(row):
                continue
        best[key] = here
    tuned: dict[object, list[int]] = defaultdict(list)
    for here in best.values():
        # A measured winner is also called beyond sizes that were only predicted.
        if not here.is_alone:
            tuned[Relatives.of(here.problem), here.beside].append(here.problem.M)
    for sizes in tuned.values():
        sizes.sort()
    packed = {key: _packed(here, tuned[Relatives.of(here.problem), here.beside]) for key, here in best.items()}
    return Rows(tuple(_with_every_m(packed).values()), dict(left_out), dict(in_doubt))


@dataclass(frozen=True)
class _Row:
    """A row, and the GPU that it is for."""

    row: Result
    arch: str
    gpu: Gpu

    @property
    def problem(self) -> GemmProblem:
        return self.row.problem

    @property
    def beside(self) -> tuple[object, ...]:
        """A key: rows with different keys neither replace each other nor serve each other's M."""
        return self.arch, _device(self.row), self.gpu.compute_units, self.row.batch_invariant

    @property
    def is_alone(self) -> bool:
        """True if its kernels serve only its own M: the row is predicted, and not batch-invariant.

        Only a measured time shows which other M a winner should serve.
        """
        return bool(self.row.predicted) and not self.row.batch_invariant


def _with_every_m(packed: dict[object, PackedRow]) -> dict[object, PackedRow]:
    """Return the rows, with further kernels of batch-invariant rows for the M that no kernel of their layer serves."""
    layers: dict[object, list[object]] = defaultdict(list)
    for key, row in packed.items():
        if (winner := row.winner).batch_invariant and row.wanted:
            layers[replace(winner.problem, M=1), winner.arch, winner.device, winner.compute_units].append(key)
    for keys in layers.values():
        rows = [packed[key] for key in keys]
        if len(orders := sorted({row.winner.order for row in rows})) > 1:
            problem = rows[0].winner.problem
            raise InputError(
                f"batch-invariant rows of N = {problem.N}, K = {problem.K} ({problem.op}) have several orders of sums "
                f"({', then '.join(orders)}): pack the rows of one run of --batch_invariant"
            )
        kernels = [
            Kernels(row.winner.problem, row.wanted[0].config, row.wanted[0].gpu, tuple(w.reach for w in row.wanted))
            for row in rows
        ]
        for place, reached in further(kernels, rows[0].winner.arch):
            row = packed[keys[place]]
            wanted = CallToPack(kernels[place].config, kernels[place].gpu, reached)
            packed[keys[place]] = replace(row, wanted=(*row.wanted, wanted))
    return packed


def with_calls(row: PackedRow, calls: Sequence[PackedCall]) -> Result:
    """Return the winner with its calls, in the order of `row.wanted`."""
    return row.winner.with_calls(tuple(calls))


def without_kernels(winner: Result) -> Result | None:
    """Return what remains of a winner without its kernels: the library's call that was measured beside it.

    None if there is none. The library's order of sums is unknown, so the result is not batch-invariant.
    """
    if winner.vendor_us is None:
        return None
    left = replace(winner, choice=VENDOR_WINS, duration_us=winner.vendor_us, batch_invariant=False, sums="")
    return left.with_calls(())


def _left_out(row: Result, predicted: bool) -> str:
    if not row.is_genkerns and row.choice == CONFIG_WINS:
        return "of other libraries"
    if row.predicted and not predicted:
        return "predicted and never checked (--predicted packs them)"
    return ""


def _as_called(row: Result) -> Result:
    """Return the row as it will be called. AITER's kernels are not called, so PyTorch's own call takes their place."""
    if row.choice == CONFIG_WINS or library_of(row.vendor) != AITER:
        return row
    choice = CONFIG_WINS if _beats_torch(row) else VENDOR_WINS
    return replace(row, choice=choice, vendor=TORCH if row.torch_us else "", vendor_us=row.torch_us)


def _beats_torch(row: Result) -> bool:
    """Return True if a config that lost to the library's best beats PyTorch's own call, which serves other M."""
    return row.duration_us is not None and row.torch_us is not None and row.duration_us < row.torch_us


def _device(row: Result) -> str:
    """Return the device's name as the driver states it; "" if the row has none."""
    return row.device.removesuffix(NOT_PRESENT)


def _is_predicted_otherwise(row: Result, gpu: Gpu) -> bool:
    """Return True if the row's time is predicted with an interval, and the model predicts another time for the GPU.

    Rows without an interval are predicted by the cost model, whose constants a calibration changes: they return False.
    """
    if not (row.predicted and row.duration_us and row.config and row.predicted_interval_us):
        return False
    expected_us = predicted_times(row.problem, [row.config], gpu)[0].us
    return abs(expected_us / row.duration_us - 1) > _SAME_PREDICTION


def _is_faster_than_memory(row: Result, gpu: Gpu) -> bool:
    """Return True if the row was measured to be faster than the GPU's memory can deliver operands beyond its caches."""
    # For formats with groups, the bytes moved are only an expectation: they depend on how many groups have rows.
    if not row.measured or row.duration_us is None or groups_of(row.problem) is not None:
        return False
    moved = bytes_moved(row.problem)
    in_cache = moved <= _CACHED * gpu.last_level_cache_mib * 2**20
    return not in_cache and row.duration_us < _FASTEST * moved / gpu.memory_tb_per_s * 1e-6


def rank_of(row: Result) -> tuple[TrustRank, float]:
    """Return the sort key of rows of one size and device; the smallest row is kept.

    Rows are sorted by proof and source of the time, then by the time.
    """
    us = row.duration_us if row.duration_us is not None else float("inf")
    return trust_rank(row.choice, row.proved_by, row.time_source), us


def _packed(here: _Row, tuned: Sequence[int]) -> PackedRow:
    row, arch, gpu, problem = here.row, here.arch, here.gpu, here.problem
    winner = Result(
        problem=problem,
        arch=arch,
        device=_device(row) or gpu.name,
        compute_units=row.compute_units or gpu.compute_units,
        kernel_name=row.config.name if row.config else row.library,
        choice=row.choice,
        # The library's algorithm is kept only if its bits have shown that it has the rows' order of sums.
        vendor="" if row.batch_invariant and row.choice != CONFIG_WINS and row.vendor_sums != row.sums else row.vendor,
        duration_us=row.duration_us,
        vendor_us=row.vendor_us,
        torch_us=row.torch_us,
        time_source=row.time_source,
        check=Proof(row.proved_by) if row.proved_by else None,
        code=row.code,
        versions=tuple(sorted(row.versions)),
        sums=row.order,
        batch_invariant=row.batch_invariant,
        package=Package(
            operands=tuple(map(PackedOperand.of, get_op(problem.op).operands(problem))),
            deterministic=row.config is None or is_deterministic(problem, row.config),
        ),
    )
    is_needed = row.choice == CONFIG_WINS or row.batch_invariant or _beats_torch(row)
    if row.config is None or not is_needed:
        return PackedRow(winner, ())
    if here.is_alone:
        return PackedRow(winner, (CallToPack(row.config, gpu, MRange(problem.M, problem.M, problem)),))
    place = tuned.index(problem.M)
    # A config may serve every M up to its neighbours; the call decides which of the two serves an M between them.
    between = tuned[place - 1] + 1 if place else 1, tuned[place + 1] - 1 if place + 1 < len(tuned) else MAX_DIMENSION
    lower = lower_tiles(problem, row.config, gpu, between[0])
    if row.batch_invariant and any(sums_of(problem, config, arch) != row.sums for config, _ in lower):
        lower = []
    least_m = lower[-1][1].most_m + 1 if lower else between[0]
    found = m_range(problem, row.config, gpu, (least_m, between[1]))
    wanted = [CallToPack(row.config, gpu, found), *(CallToPack(config, gpu, reached) for config, reached in lower)]
    if found.kernels_of.M != problem.M:
        wanted.insert(0, CallToPack(row.config, gpu, MRange(problem.M, problem.M, problem)))
    return PackedRow(winner, tuple(wanted))
