"""The protocol of a search: a strategy is asked which binaries to make and measure next, and told what became of them.

A unit is what is compiled together: a binary (with those of the kernels around it) and the configs that it serves,
    which differ only in what is set at run time (GROUP_SIZE_M, SPLIT_K). The search driver has units compiled by the
    farm and measured, several at a time, in the order in which the strategy named them. It reports what happens to a
    unit or one of its configs as an event.

A strategy must make the same decisions if it is asked and told the same in the same order: it reads no clock, and draws
random numbers only from a seed of its own. A run can therefore be replayed from its journal (`genkern.tuning.replay`).

The strategy of the next size is created and asked while the current one is still told events. State outside of a
`Strategy` object is therefore seen by both, in several threads.

A strategy is a file with a function `strategy(task)`, which returns a `Strategy` for one size: a module of genkern, or
any file (`--search FILE.py`). `Config.features` returns what a model of times needs of a config. `strategy(task)` is
called before the size's turn, while another size is measured, so slow preparations belong there.

Two decisions are not the strategy's. `select` decides which candidates are timed again and which one wins, from all
measurements. The measured process decides, during a launch, to skip further ones (`screening`: a candidate is hopeless,
or other group sizes of its binary are not worth a launch), since that takes microseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from genkern.compile.binary_groups import binary_group
from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome


@dataclass(frozen=True)
class Unit:
    """Configs that share their binaries, in the order in which they are to be launched."""

    configs: tuple[Config, ...]

    @cached_property
    def compiled(self) -> Hashable:
        """A key that is equal for units with the same binaries."""
        return binary_group(self.configs[0])


@dataclass(frozen=True)
class Compiled:
    """The binaries of a unit are available.

    binary: content address of the binary that multiplies
    cached: True if nothing had to be compiled
    """

    unit: Unit
    binary: str
    cached: bool


@dataclass(frozen=True)
class Refused:
    """These configs of a unit are no candidates, and will not be measured.

    The compiler refuses their binary, the device lacks resources for it, or it is a copy of another one.
    """

    unit: Unit
    configs: tuple[Config, ...]
    outcome: Outcome


@dataclass(frozen=True)
class Measured:
    """A config was measured: one call takes `duration_us` microseconds in its first measurement."""

    config: Config
    duration_us: float


@dataclass(frozen=True)
class Lost:
    """A config has no valid time: it was lost or skipped while it was measured, or its result is wrong."""

    config: Config
    outcome: Outcome


Event = Compiled | Refused | Measured | Lost


@dataclass(frozen=True)
class Task:
    """What a strategy searches: the configs that pruning left for one size, in the order of their space.

    problem, gpu: the size and the GPU
    configs: what the strategy may ask for. Winners of earlier runs, and the other configs of their units, are not among
        them: they are measured first in any case, and the strategy is told their events
    is_cached: whether a unit needs no compile; it always returns the same for a unit
    number: the number behind the strategy's name (--search NAME:N), whose meaning is the strategy's; None without
    most: the most binaries that will be measured of those that are asked for (--budget); None: any number. Other
        configs of these binaries may be asked for afterwards

    If an earlier start of the run has measured some units, the strategy starts from the beginning: it is told their
    known results as soon as it asks for them. When it first asks for a unit that was not measured before, it is also
    told the known results that it has not asked for.
    """

    problem: GemmProblem
    gpu: Gpu
    configs: tuple[Config, ...]
    is_cached: Callable[[Unit], bool]
    number: int | None = None
    most: int | None = None


class Strategy(ABC):
    """Decides which kernels of one size are compiled and measured, and when the search ends.

    Several threads may call `ask` and `tell`, but never at the same time.
    """

    # The reason that results state for a config that the strategy never asked for, or dropped.
    left_out = "the strategy did not ask for it"

    @abstractmethod
    def ask(self, n: int) -> Sequence[Unit]:
        """Return at most `n` units to make next, each only once in a search, most wanted first.

        An empty list means: nothing until it is told more. The search ends if it then will not be told more, since all
            units that it asked for are measured or dropped.
        """

    def tell(self, event: Event) -> None:  # noqa: B027  a strategy may have nothing to learn
        """Take note of what became of a unit, or of one of its configs."""

    def drop(self) -> Sequence[Unit]:
        """Return units that were asked for and are no longer wanted, each once; called after each event.

        Units that have not begun are then neither compiled nor measured.
        """
        return ()

    def expected_loss(self) -> float | None:
        """Return by how much the best measured config is expected to be slower than the best of all: 0.01 is 1 %.

        Called once, when the search has ended and units were left out: not asked for, dropped, or asked for but never
        reported. None: unknown.
        """
        return None


# The type of a strategy file's function `strategy(task)`.
MakesStrategy = Callable[[Task], Strategy]


def units_of(configs: Iterable[Config]) -> list[Unit]:
    """Return the units of these configs, in the order of each unit's first config; configs keep their order."""
    sharers: dict[Hashable, list[Config]] = {}
    for config in dict.fromkeys(configs):
        sharers.setdefault(binary_group(config), []).append(config)
    return [Unit(tuple(these)) for these in sharers.values()]
