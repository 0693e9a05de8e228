"""Rules that choose, for an M that was not tuned, the tuned M whose winner serves it, by measured times."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.parameter import BLOCK_SIZE_M
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import MOST_PROMISED, Constant, Descriptor, alignment_of
from genkern.kernels.plan import PlannedLaunch
from genkern.result.package import PackedCall
from genkern.result.result import Result

# The largest part of a tile's rows that may be beyond M if TMA loads A: TMA fills rows with zeros more slowly than it
# loads rows. A call took up to 1.6 times its winner's own time if nearly all rows of a tile were beyond M (H200,
# benchmarks/serving/untuned_m.py; https://github.com/deepseek-ai/DeepGEMM/issues/35 reports the same). The second
# number of rows is always allowed.
_MOST_OVERHANG, _FEW_BEYOND = 0.5, 16
# Factor of time for more rows than were measured if they fit into the same number of tiles (same benchmark).
_MORE_ROWS = 1.04
# More tiles than a winner was measured with take no longer while they all run at once. Not all units can hold a
# cluster, and tiles share the bandwidth: times grew by 1.01 to 1.18 if up to 96 of 132 units were busy, and by 1.8 with
# 128.
_MOST_BUSY, _SHARED_BANDWIDTH = 0.75, 1.2
# A winner must be faster than the library by this factor: the library's times differed by up to 5 % from one H200 to
# another, the winners' by less. Over 200 draws the mean speed against torch.mm was 1.037 instead of 1.040 without the
# factor, and the worst 0.996 instead of 0.976.
_CLEARLY = 1.02
# Up to this number of rows, loading the weights determines the time, for the library too.
_FEW_ROWS = 64
# The number of rows of a tile in a config's name. A bundle may hold families that are not installed, whose other
# parameters are unknown.
_ROWS = re.compile(rf"_{BLOCK_SIZE_M.prefix}([1-9][0-9]{{0,9}})_")


@dataclass(frozen=True, order=True)
class Relatives:
    """What problems share if their winners may serve each other's M: everything except M (`problem` has M = 1).

    `divides` is the power of two that divides M if A is column-major, up to MOST_PROMISED bytes: rows of A^T then have
    M elements in memory, and kernels and the library use other loads for other alignments. It is 1 if A is row-major.
    """

    problem: GemmProblem
    divides: int

    @classmethod
    def of(cls, problem: GemmProblem) -> Relatives:
        divides = 1
        if not problem.row_major_a:
            divides = min(alignment_of(problem.M), MOST_PROMISED // DTYPES[problem.dtype_a].size_bytes)
        return cls(replace(problem, M=1), divides)

    @property
    def step(self) -> int:
        """The distance from one M of this group to the next.

        It is 1 if A is row-major, else the power of two, doubled if only its odd multiples belong to the group.
        """
        largest = MOST_PROMISED // DTYPES[self.problem.dtype_a].size_bytes
        return self.divides if self.problem.row_major_a or self.divides == largest else 2 * self.divides


@dataclass(frozen=True)
class Option:
    """The winner of another M, and its `call` that serves this M; None if no call does."""

    winner: Result
    call: PackedCall | None

    @property
    def m(self) -> int:
        return self.winner.problem.M


# Chooses, from options sorted by M, the one that serves M; None means the library.
Rule = Callable[[int, Sequence[Option]], "Option | None"]


def by_times(m: int, options: Sequence[Option]) -> Option | None:
    """Return the option with the smallest time that holds for M if the library takes clearly longer; else None.

    The library's time is bounded by its times for other M: more rows take it no less. If it was not measured, the
    options alone decide.
    """
    held = _least(m, options)
    if held is None:
        return None
    us, option = held
    library_us = least_library_us(m, [each.winner for each in options])
    return option if library_us is None or us * _CLEARLY < library_us else None


def by_measured_times(m: int, options: Sequence[Option]) -> Option | None:
    """Return the option with the smallest time that holds for M, or the nearest one that serves M if no time holds.

    For calls that the library may not serve.
    """
    held = _least(m, options)
    return nearest_winner(m, options) if held is None else held[1]


def _least(m: int, options: Sequence[Option]) -> tuple[float, Option] | None:
    """Return the smallest time that holds for M, with its option. Of equal times, the option with the larger M wins."""
    held = [(us, -option.m, option) for option in options if (us := bound_us(m, option)) is not None]
    us, _, option = min(held, key=lambda each: each[:2], default=(0.0, 0, None))
    return None if option is None else (us, option)


def bound_us(m: int, option: Option) -> float | None:
    """Return an upper bound in microseconds on the time of an option for M; None if its winner's time implies no bound.

    The winner's time holds for at most as many tiles, with a small factor for more rows in the same tiles and a larger
    one for more tiles if they all run at once.
    """
    winner, call = option.winner, option.call
    said = _ROWS.search(winner.config_name)
    if call is None or winner.duration_us is None or said is None:
        return None
    own_rows, main = int(said[1]), _main_launch(call)
    rows = _said_rows(main) or own_rows
    beyond = -m % rows if _loads_boxes(main) else 0
    if beyond > max(_MOST_OVERHANG * rows, _FEW_BEYOND):
        return None
    if -(-m // rows) <= -(-option.m // own_rows):
        return winner.duration_us * (_MORE_ROWS if m > option.m else 1)
    programs = math.prod(main.programs({"units": winner.known_units, "M": m})) * main.cluster
    return winner.duration_us * _SHARED_BANDWIDTH if programs <= _MOST_BUSY * winner.known_units else None


def _main_launch(call: PackedCall) -> PlannedLaunch:
    """Return the launch of a call that multiplies. Other launches fill with zeros, reduce or convert."""
    return next((launch for launch in call.plan.launches if _said_rows(launch)), call.plan.launches[0])


def _said_rows(launch: PlannedLaunch) -> int:
    """Return the rows of the launch's tiles of C; 0 if it has no such argument.

    They may be fewer than in the config's name.
    """
    found = (each.value for each in launch.arguments if isinstance(each, Constant) and each.name == "BLOCK_SIZE_M")
    rows = next(found, 0)
    return rows if isinstance(rows, int) else 0


def _loads_boxes(launch: PlannedLaunch) -> bool:
    """Return True if the launch loads A by TMA."""
    return any(isinstance(argument, Descriptor) and argument.operand == "a" for argument in launch.arguments)


def least_library_us(m: int, rows: Sequence[Result]) -> float | None:
    """Return a lower bound in microseconds on the time of PyTorch's own call for M; None if it was not measured.

    PyTorch's own call, not the library's best, serves an M that was not tuned. If its time is missing, the time of the
    library's best is used. More rows take no less time. Below the smallest measured M, the bound is that M's time if
    its rows are few, else in proportion to M.
    """
    times = ((row.problem.M, row.vendor_us if row.torch_us is None else row.torch_us) for row in rows)
    known = sorted((m, us) for m, us in times if us is not None)
    if not known:
        return None
    first_m, first_us = known[0]
    if first_m <= m:
        # If more rows take less time, the library may use their kernel for M too, so the smallest of all times counts.
        return min(us for _, us in known)
    return first_us if first_m <= _FEW_ROWS else first_us * m / first_m


def nearest(m: int, options: Sequence[Option]) -> Option | None:
    """Return the option with the nearest M; of two that are equally near, the one with the larger M."""
    return min(options, key=lambda option: (abs(option.m - m), -option.m), default=None)


def nearest_winner(m: int, options: Sequence[Option]) -> Option | None:
    """Return the nearest option whose kernels serve M.

    Used for grouped products, for which the library makes one call per group.
    """
    return nearest(m, [option for option in options if option.call is not None])
