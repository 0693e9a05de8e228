"""The strategies by name, and loading of a strategy from a user's file."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import math
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from genkern.errors import GenkernError, InputError, one_line
from genkern.farm.sharing import compiled_of
from genkern.files import MAX_READ_BYTES, import_file, regular_bytes
from genkern.search.strategy import Event, MakesStrategy, Strategy, Task, Unit


@dataclass(frozen=True)
class Number:
    """The number behind the colon of a strategy's name.

    name: N or SEED, for help texts
    least: the smallest valid number
    limits: whether the number ends a search
    needed: whether the number is required
    """

    name: str = "N"
    least: int = 1
    limits: bool = True
    needed: bool = False


@dataclass(frozen=True)
class Named:
    """A strategy of genkern's.

    module: its module below genkern.search
    number: the number that it takes; None if it takes none
    whole: without a limiting number it measures every binary
    every: it measures every config, including identical copies
    """

    module: str
    number: Number | None = None
    whole: bool = False
    every: bool = False


# By name; the first one is the default.
STRATEGIES = {
    "guided": Named("guided.guided"),
    "zero": Named("guided.zero"),
    "predicted": Named("plain.predicted_order", Number(), whole=True),
    "patience": Named("plain.patience", Number(needed=True)),
    "racing": Named("plain.racing"),
    "random": Named("plain.random_order", Number("SEED", least=0, limits=False), whole=True),
    "exhaustive": Named("plain.predicted_order", whole=True, every=True),
    "cached": Named("plain.cached", Number()),
    "spread": Named("calibrated.spread", Number()),
}
DEFAULT = next(iter(STRATEGIES))
ZERO, PREDICTED, PATIENT, EXHAUSTIVE, CACHED = "zero", "predicted", "patience", "exhaustive", "cached"
_MOST = 1_000_000
_NAMED = re.compile(r"(?P<name>.*?)(:(?P<number>[0-9]*))?", re.DOTALL)


@dataclass(frozen=True)
class ChosenStrategy:
    """A strategy with its number.

    name: its name; for a file, the file's name and the digest of its text, which the journal records
    make: returns the strategy for a size's task
    whole, every: as in `Named`; assumed for a user's file
    """

    name: str
    make: MakesStrategy
    number: int | None = None
    whole: bool = True
    every: bool = False

    @property
    def said(self) -> str:
        """Name and number, as in the option."""
        return self.name if self.number is None else f"{self.name}:{self.number}"


def chosen_strategy(asked: str | None = None) -> ChosenStrategy:
    """Return the strategy that `--search` names, or the default.

    Raises InputError for an unknown name, for a number that the strategy does not take, and for a file that cannot be
    read or has no function `strategy`.
    """
    parts = _NAMED.fullmatch(asked or DEFAULT)
    assert parts is not None
    name, digits = parts["name"], parts["number"]
    if (named := STRATEGIES.get(name)) is not None:
        number = _number(name, named.number, digits)
        module = importlib.import_module(f"genkern.search.{named.module}")
        limited = number is not None and named.number is not None and named.number.limits
        make = cast(MakesStrategy, module.strategy)
        whole = named.whole and not limited
        return ChosenStrategy(name, make, number, whole, named.every)
    if not name.endswith(".py"):
        raise InputError(f"--search {asked}: not {', '.join(shown_names())}, nor a file that ends in .py")
    return replace(_of_file(Path(name)), number=_number(name, Number(least=0), digits))


def shown_names() -> list[str]:
    """Return the names as they stand in the option's help: `predicted[:N]`."""
    return [name + _shown(named.number) for name, named in STRATEGIES.items()]


def _shown(number: Number | None) -> str:
    if number is None:
        return ""
    return f":{number.name}" if number.needed else f"[:{number.name}]"


def _number(name: str, takes: Number | None, digits: str | None) -> int | None:
    if digits is None:
        if takes is not None and takes.needed:
            raise InputError(f"--search {name}: give a number, {name}{_shown(takes)}")
        return None
    if takes is None:
        raise InputError(f"--search {name}:{digits}: {name} takes no number")
    if not digits or len(digits) > len(str(_MOST)) or not takes.least <= int(digits) <= _MOST:
        least_most = f"from {takes.least} to {_MOST}"
        raise InputError(f"--search {name}:{digits[:40]}: {takes.name} is a whole number {least_most}")
    return int(digits)


def _of_file(path: Path) -> ChosenStrategy:
    try:
        text = regular_bytes(path, MAX_READ_BYTES)
    except OSError as error:
        raise InputError(f"--search {path}: {error.strerror}") from None
    try:
        module = import_file(path.resolve(), f"genkern_strategy_{path.stem}")
    except Exception as error:
        raise _mistake(path, error) from None
    make = getattr(module, "strategy", None)
    if not callable(make):
        raise InputError(f"--search {path}: it has no function strategy(task)")
    name = f"{path.name} {hashlib.sha256(text).hexdigest()[:16]}"
    return ChosenStrategy(name, lambda task: _FromFile(path, cast(MakesStrategy, make), task))


class _FromFile(Strategy):
    """A user's strategy, whose exceptions are reported as InputError with its file and line."""

    def __init__(self, path: Path, make: MakesStrategy, task: Task) -> None:
        self._path = path
        with _mistakes_told(self._path):
            self._strategy = make(task)
        if not isinstance(self._strategy, Strategy):
            raise InputError(f"--search {path}: strategy(task) gave {self._strategy!r:.100}, which is not a Strategy")
        self.left_out = self._strategy.left_out

    def ask(self, n: int) -> Sequence[Unit]:
        with _mistakes_told(self._path):
            asked = self._strategy.ask(n)
            for unit in asked:
                self._require_unit(unit)
            return asked

    def tell(self, event: Event) -> None:
        with _mistakes_told(self._path):
            self._strategy.tell(event)

    def drop(self) -> Sequence[Unit]:
        with _mistakes_told(self._path):
            return self._strategy.drop()

    def expected_loss(self) -> float | None:
        with _mistakes_told(self._path):
            loss = self._strategy.expected_loss()
            if loss is not None and not (isinstance(loss, float | int) and 0 <= loss < math.inf):
                raise InputError(f"--search {self._path}: expected_loss() gave {loss!r:.100}, which is not a share")
            return loss

    def _require_unit(self, unit: Unit) -> None:
        """Raise InputError for an invalid unit: all its configs must share the binaries of the first."""
        if not isinstance(unit, Unit):
            raise InputError(f"--search {self._path}: ask(n) gave {unit!r:.100}, which is not a Unit")
        if not unit.configs or any(compiled_of(config) != unit.compiled for config in unit.configs[1:]):
            names = ", ".join(config.name for config in unit.configs[:3])
            raise InputError(f"--search {self._path}: ask(n) gave a Unit whose configs share no binaries: ({names})")


@contextlib.contextmanager
def _mistakes_told(path: Path) -> Iterator[None]:
    try:
        yield
    except GenkernError:
        raise
    except Exception as error:
        raise _mistake(path, error) from error


def _mistake(path: Path, error: Exception) -> InputError:
    """Return the error as one line, with the last line of the file in its traceback, if the file is in it."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    line = next((f", line {frame.lineno}" for frame in frames if frame.filename == str(path.resolve())), "")
    return InputError(f"--search {path}{line}: {one_line(error)}")
