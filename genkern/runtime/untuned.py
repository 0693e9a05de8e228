"""Which tuned M serves one that nobody tuned: by measured times; AITER's padding and others as baselines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.parameter import BLOCK_SIZE_M
from genkern.gemm.problem import GemmProblem
from genkern.kernels.argument import MOST_PROMISED, Constant, Descriptor, alignment_of
from genkern.kernels.plan import PlannedLaunch
from genkern.runtime.packed import PackedCall, PackedWinner

# Share of a tile's rows that may lie beyond M where TMA loads A: it is slower at filling rows with zeros than at
# loading them. A call took up to 1.6 times its winner's own time where nearly all of a tile was such (H200,
# benchmarks/serving/untuned_m.py; https://github.com/deepseek-ai/DeepGEMM/issues/35 says the same). A few rows do no
# harm.
_MOST_OVERHANG, _FEW_BEYOND = 0.5, 16
# In tiles that have room for more rows than were measured, these take up to so much longer (there).
_MORE_ROWS = 1.04
# More tiles than a winner was measured with take no longer while they all run at once. Not all units have room for a
# cluster, and tiles share the bandwidth: 1.01 to 1.18 times its time where up to 96 of 132 units had one, 1.8 times
# with 128.
_MOST_BUSY, _SHARED_BANDWIDTH = 0.75, 1.2
# The library serves what is no faster than it by so much: its times differed by up to 5 % from one H200 to another, the
# winners' by less (200 draws: 1.037 of torch.mm's speed instead of 1.040, 0.996 at least instead of 0.976).
_CLEARLY = 1.02
# Up to so many rows the weights' bytes are what takes time, for the library too.
_FEW_ROWS = 64
# What a config's name says of its tile. Who calls a family of someone's own knows none of its other parameters.
_ROWS = re.compile(rf"_{BLOCK_SIZE_M.prefix}([1-9][0-9]{{0,9}})_")


@dataclass(frozen=True, order=True)
class Relatives:
    """What problems have in common whose winners may serve one another's M: all but that (`problem` has M = 1).

    `divides` is what M is a multiple of where A is column-major: rows of A have M elements in memory then, so that
    kernels, and the library too, have other loads where they begin at multiples of other powers of two bytes. Up to
    MOST_PROMISED bytes, beyond which nothing is gained. 1 where A is row-major.
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
        """From one M of theirs to the next: multiples of a power of two, and where it is not the largest, odd ones."""
        largest = MOST_PROMISED // DTYPES[self.problem.dtype_a].size_bytes
        return self.divides if self.problem.row_major_a or self.divides == largest else 2 * self.divides


@dataclass(frozen=True)
class Option:
    """A winner of another M whose kernels serve this one, by `call`; the library where it won there (None)."""

    winner: PackedWinner
    call: PackedCall | None

    @property
    def m(self) -> int:
        return self.winner.problem.M


# Of the options, in the order of their M, the one to take for M; None: the library.
Rule = Callable[[int, Sequence[Option]], "Option | None"]


def by_times(m: int, options: Sequence[Option]) -> Option | None:
    """Of the options the one with the least time of its own that holds for M, where the library takes clearly longer.

    The library takes no less than for fewer rows. Where nobody measured it, the options alone decide.
    """
    held = _least(m, options)
    if held is None:
        return None
    us, option = held
    library_us = least_library_us(m, [each.winner for each in options])
    return option if library_us is None or us * _CLEARLY < library_us else None


def by_own_times(m: int, options: Sequence[Option]) -> Option | None:
    """The same where the library may not serve; where no time holds for M, the nearest whose kernels serve it."""
    held = _least(m, options)
    return nearest_winner(m, options) if held is None else held[1]


def _least(m: int, options: Sequence[Option]) -> tuple[float, Option] | None:
    """The option with the least time of its own that holds for M, and that time; of two, the larger M's."""
    held = [(us, -option.m, option) for option in options if (us := bound_us(m, option)) is not None]
    us, _, option = min(held, key=lambda each: each[:2], default=(0.0, 0, None))
    return None if option is None else (us, option)


def bound_us(m: int, option: Option) -> float | None:
    """Microseconds that an option takes for M at most, as far as its winner's own time tells; None where it does not.

    It holds for no more tiles, hardly for more rows in these, and longer for more tiles that run at once.
    """
    winner, call = option.winner, option.call
    said = _ROWS.search(winner.config)
    if call is None or winner.time_us is None or said is None:
        return None
    own_rows, main = int(said[1]), _main_launch(call)
    rows = _said_rows(main) or own_rows
    beyond = -m % rows if _loads_boxes(main) else 0
    if beyond > max(_MOST_OVERHANG * rows, _FEW_BEYOND):
        return None
    if -(-m // rows) <= -(-option.m // own_rows):
        return winner.time_us * (_MORE_ROWS if m > option.m else 1)
    programs = math.prod(main.programs({"units": winner.compute_units, "M": m})) * main.cluster
    return winner.time_us * _SHARED_BANDWIDTH if programs <= _MOST_BUSY * winner.compute_units else None


def _main_launch(call: PackedCall) -> PlannedLaunch:
    """Of a call's launches the one that multiplies; others fill with zeros, reduce or convert."""
    return next((launch for launch in call.plan.launches if _said_rows(launch)), call.plan.launches[0])


def _said_rows(launch: PlannedLaunch) -> int:
    """Rows of its tiles of C, which may be lower than those of its winner's config; 0 where it does not say them."""
    found = (each.value for each in launch.arguments if isinstance(each, Constant) and each.name == "BLOCK_SIZE_M")
    rows = next(found, 0)
    return rows if isinstance(rows, int) else 0


def _loads_boxes(launch: PlannedLaunch) -> bool:
    """Whether rows of A come by TMA."""
    return any(isinstance(argument, Descriptor) and argument.operand == "a" for argument in launch.arguments)


def least_library_us(m: int, rows: Sequence[PackedWinner]) -> float | None:
    """What PyTorch's call takes for M at least, in microseconds; None where nobody measured it.

    It is what serves an M that nobody tuned, not the library's best for another M; where it was not measured, that is.
    More rows take it no less time. Below the smallest M that is known it takes as long where rows are few, else no less
    than in proportion to M.
    """
    times = ((row.problem.M, row.library_us if row.torch_us is None else row.torch_us) for row in rows)
    known = sorted((m, us) for m, us in times if us is not None)
    if not known:
        return None
    first_m, first_us = known[0]
    if first_m <= m:
        # Where it takes less for more rows it may have the same kernel for M.
        return min(us for _, us in known)
    return first_us if first_m <= _FEW_ROWS else first_us * m / first_m


def nearest(m: int, options: Sequence[Option]) -> Option | None:
    """The M with the least distance; of two, the larger one."""
    return min(options, key=lambda option: (abs(option.m - m), -option.m), default=None)


def nearest_winner(m: int, options: Sequence[Option]) -> Option | None:
    """The nearest of those whose kernels serve M: of rows in groups, where the library's way is a call for each."""
    return nearest(m, [option for option in options if option.call is not None])
