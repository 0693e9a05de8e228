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

from genkern.compile.binary_groups import binary_group
from genkern.errors import GenkernError, InputError, one_line
from genkern.file_io import MAX_READ_BYTES, import_file, regular_bytes
from genkern.search.strategy import Event, MakesStrategy, Strategy, Task, Unit


@dataclass(frozen=True)
class Named:
    """A strategy of genkern's.

    module: its module below genkern.search
    takes_number: whether a number may follow its name, which limits the search
    whole: without a number it measures every binary
    every: it measures every config, including identical copies
    """

    module: str
    takes_number: bool = False
    whole: bool = False
    every: bool = False


# By name; the first one is the default.
STRATEGIES = {
    "guided": Named("guided.guided"),
    "zero": Named("guided.zero"),
    "predicted": Named("guided.predicted_order", takes_number=True, whole=True),
    "exhaustive": Named("guided.predicted_order", whole=True, every=True),
    "cached": Named("guided.cached", takes_number=True),
    "spread": Named("spread", takes_number=True),
}
# Strategies of earlier versions that others beat after every number of binaries (docs/measurement.md).
_REMOVED = ("patience", "racing", "random")
DEFAULT = next(iter(STRATEGIES))
ZERO, PREDICTED, EXHAUSTIVE, CACHED = "zero", "predicted", "exhaustive", "cached"
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
        if digits is not None and not named.takes_number:
            raise InputError(f"--search {name}:{digits[:40]}: {name} takes no number")
        number = None if digits is None else _number(name, digits, least=1)
        module = importlib.import_module(f"genkern.search.{named.module}")
        make = cast(MakesStrategy, module.strategy)
        whole = named.whole and number is None
        return ChosenStrategy(name, make, number, whole, named.every)
    if name in _REMOVED:
        raise InputError(
            f"--search {name} is no longer part of genkern: use {DEFAULT} (the default), with --budget N to measure at "
            "most N kernels"
        )
    if not name.endswith(".py"):
        raise InputError(f"--search {asked}: not {', '.join(shown_names())}, nor a file that ends in .py")
    return replace(_of_file(Path(name)), number=None if digits is None else _number(name, digits, least=0))


def shown_names() -> list[str]:
    """Return the names as they stand in the option's help: `predicted[:N]`."""
    return [name + "[:N]" * named.takes_number for name, named in STRATEGIES.items()]


def _number(name: str, digits: str, least: int) -> int:
    if not digits or len(digits) > len(str(_MOST)) or not least <= int(digits) <= _MOST:
        raise InputError(f"--search {name}:{digits[:40]}: N is a whole number from {least} to {_MOST}")
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
        if not unit.configs or any(binary_group(config) != unit.compiled for config in unit.configs[1:]):
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
