"""The protocol of a search: a strategy is asked which binaries to make and measure next, and told what came of them.

A unit is what is compiled once: a binary (with those of the kernels around it) and configs that it serves, which differ
in what is set at run time alone (GROUP_SIZE_M, SPLIT_K). Whoever asks has units made by the farm and measured, several
at a time, the one that was asked for first before others; whatever happens to a unit or one of its configs is told as
an event.

A strategy decides the same when it is asked and told the same in the same order: it reads no clock, and draws no number
but from a seed of its own. So a run can be replayed from its journal (`genkern.tuning.replay`).

The next size's strategy is made and asked while one is still told: what a file keeps outside a `Strategy` is seen by
both, in several threads.

A strategy is a file with a function `strategy(task)`, which returns a `Strategy` for one size: here, or anywhere
(`--search FILE.py`). A model of times has what it needs of a config by `Config.features`. What takes long before the
first answer may be in a function `foresee(problem, configs, gpu)` of the file: it is called before the size's turn, in
another process, with what pruning left, and what it returns, which must be fit for a pipe, is `Task.foreseen`.

Two decisions are not the strategy's. Who is timed again and wins is `select`'s, of whatever was measured. What a launch
that is under way tells of the next ones (`screening`: that it is hopeless, that other group sizes of its binary are not
worth a launch) is the measured process's, since it takes microseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from genkern.farm.sharing import compiled_of
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.space.shares import Shares


@dataclass(frozen=True)
class Unit:
    """Configs that share what is compiled, in the order in which they are to be launched."""

    configs: tuple[Config, ...]

    @cached_property
    def compiled(self) -> Hashable:
        """What its configs have in common: equal for units of the same binaries."""
        return compiled_of(self.configs[0])


@dataclass(frozen=True)
class Compiled:
    """The binaries of a unit are there; `binary` is the content address of that which multiplies.

    `cached`: without a compile, since the cache had them.
    """

    unit: Unit
    binary: str
    cached: bool


@dataclass(frozen=True)
class Refused:
    """These configs of a unit are no candidates, and will not be measured: the compiler refuses their binary, the
    device has no room for it, or it is a copy of another one.
    """

    unit: Unit
    configs: tuple[Config, ...]
    outcome: Outcome


@dataclass(frozen=True)
class Measured:
    """One call of the config takes `duration_us` microseconds, as its first measurement has it."""

    config: Config
    duration_us: float


@dataclass(frozen=True)
class Lost:
    """No time of the config counts: it was lost or left out in its measurement, or its result is wrong."""

    config: Config
    outcome: Outcome


Event = Compiled | Refused | Measured | Lost


@dataclass(frozen=True)
class Task:
    """What a strategy is to search: the configs that pruning left for one size, in the order of their space.

    `is_cached` says whether a unit needs no compile; it has one answer for a unit, however often it is asked.
    `number` stands behind the strategy's name (--search NAME:N), None without; what it means is the strategy's.
    Where an earlier start of the run has measured some of it, it is searched from the beginning, and told at once of
    what is known; also of that which it does not ask for. Winners of earlier runs are not the strategy's to ask for:
    they are made first whatever it says, and no config of their units is among `configs`; it is told of them too.
    `most`: no more binaries than so many will be measured of what it asks for (--budget), None for any number; other
    configs of these binaries may be asked for afterwards. `near` are winners of the nearest sizes that are tuned, the
    nearest first. Journals of before have searches that were told no more of an earlier start than its best time,
    `best_us` (microseconds), and how many units it had `tried`. `foreseen` is what the file's `foresee` returned, None
    where it was not called: it may have been told of other configs than `configs`.
    """

    problem: GemmProblem
    gpu: Gpu
    configs: tuple[Config, ...]
    is_cached: Callable[[Unit], bool]
    number: int | None = None
    best_us: float | None = None
    tried: int = 0
    most: int | None = None
    near: tuple[Config, ...] = ()
    foreseen: object = None


class Strategy(ABC):
    """Decides for one size. `ask` and `tell` may be called by several threads, never at the same time."""

    # Why a config has no measurement that was never asked for, or not wanted any more.
    left_out = "the strategy did not ask for it"

    @abstractmethod
    def ask(self, n: int) -> Sequence[Unit]:
        """At most `n` units wanted next, each once, the most wanted first.

        None: nothing before it is told more. Where it is not to be told any more, since all that was asked for is
        measured or dropped, the search has ended.
        """

    def tell(self, event: Event) -> None:  # noqa: B027  a strategy may have nothing to learn
        """What came of a unit, or of one of its configs."""

    def drop(self) -> Sequence[Unit]:
        """Units that were asked for and are not wanted any more, each once; asked after whatever is told.

        What is not begun then is neither compiled nor measured.
        """
        return ()

    def expected_loss(self) -> float | None:
        """How much longer the best that was measured is expected to take than the best of all: 0.01 is 1 %.

        Asked once, when the search has ended and something was left out: what was not asked for, was dropped, or was
        asked for and never told of. None: it does not say.
        """
        return None


# What a file of a strategy has: `strategy(task)`.
MakesStrategy = Callable[[Task], Strategy]


class Foresees(Protocol):
    """What `Task.foreseen` is made by; where others have `shares` in it, it may return before they have ended.

    Of a file from outside, it calls `foresee(problem, configs, gpu)`.
    """

    def __call__(
        self, problem: GemmProblem, configs: Sequence[Config], gpu: Gpu, shares: Shares | None = None
    ) -> object: ...


def units_of(configs: Iterable[Config]) -> list[Unit]:
    """The units of these configs, in the order of the first of each, which keep their order within it."""
    sharers: dict[Hashable, list[Config]] = {}
    for config in dict.fromkeys(configs):
        sharers.setdefault(compiled_of(config), []).append(config)
    return [Unit(tuple(these)) for these in sharers.values()]
