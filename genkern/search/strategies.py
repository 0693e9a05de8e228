"""Which strategy a run searches with: one of genkern's by name, or anybody's by the file that it is in."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from genkern.errors import GenkernError, InputError, one_line
from genkern.farm.sharing import compiled_of
from genkern.files import import_file
from genkern.search.strategy import Event, MakesStrategy, Strategy, Task, Unit

# By name, the module here that it is in. A strategy more is a file more, and with a name a line more.
STRATEGIES = {"predicted": "predicted_order", "patience": "patience"}
DEFAULT, PATIENT = STRATEGIES


@dataclass(frozen=True)
class ChosenStrategy:
    """A strategy and what a run's journal says of it: a name, or of a file its name and the digest of its text."""

    name: str
    make: MakesStrategy


def chosen_strategy(asked: str | None, patience: int) -> ChosenStrategy:
    """The strategy that `--strategy` names, or the one that goes with this patience (0: none).

    Raises InputError for a name that nobody knows, and for a file that cannot be read or has no `strategy`.
    """
    name = asked or (PATIENT if patience else DEFAULT)
    if name == PATIENT and not patience:
        raise InputError("--strategy patience ends after so many binaries in vain: say how many with --patience N")
    if name == DEFAULT and patience:
        raise InputError("--strategy predicted measures everything, and --patience ends early: give one of them")
    if name in STRATEGIES:
        module = importlib.import_module(f"genkern.search.{STRATEGIES[name]}")
        return ChosenStrategy(name, cast(MakesStrategy, module.strategy))
    if not name.endswith(".py"):
        raise InputError(f"--strategy {name}: not {', '.join(STRATEGIES)}, nor a file that ends in .py")
    return _of_file(Path(name))


def _of_file(path: Path) -> ChosenStrategy:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"--strategy {path}: {error.strerror}") from None
    try:
        module = import_file(path.resolve(), f"genkern_strategy_{path.stem}")
    except Exception as error:
        raise _mistake(path, error) from None
    make = getattr(module, "strategy", None)
    if not callable(make):
        raise InputError(f"--strategy {path}: it has no function strategy(task)")
    name = f"{path.name} {hashlib.sha256(text).hexdigest()[:16]}"
    return ChosenStrategy(name, lambda task: _FromFile(path, cast(MakesStrategy, make), task))


class _FromFile(Strategy):
    """A strategy from outside, whose mistakes are told as its own: InputError, with its file and line."""

    def __init__(self, path: Path, make: MakesStrategy, task: Task) -> None:
        self._path = path
        with self._mistakes_told():
            self._strategy = make(task)
        if not isinstance(self._strategy, Strategy):
            raise InputError(f"--strategy {path}: strategy(task) gave {self._strategy!r:.100}, which is no Strategy")
        self.left_out = self._strategy.left_out

    def ask(self, n: int) -> Sequence[Unit]:
        with self._mistakes_told():
            asked = self._strategy.ask(n)
            for unit in asked:
                self._require_unit(unit)
            return asked

    def tell(self, event: Event) -> None:
        with self._mistakes_told():
            self._strategy.tell(event)

    def drop(self) -> Sequence[Unit]:
        with self._mistakes_told():
            return self._strategy.drop()

    def _require_unit(self, unit: Unit) -> None:
        """Raise InputError for what is no unit: all configs of one are launched by the binaries of its first."""
        if not isinstance(unit, Unit):
            raise InputError(f"--strategy {self._path}: ask(n) gave {unit!r:.100}, which is no Unit")
        if not unit.configs or any(compiled_of(config) != unit.compiled for config in unit.configs[1:]):
            names = ", ".join(config.name for config in unit.configs[:3])
            raise InputError(f"--strategy {self._path}: ask(n) gave a Unit whose configs share no binaries: ({names})")

    @contextlib.contextmanager
    def _mistakes_told(self) -> Iterator[None]:
        try:
            yield
        except GenkernError:
            raise
        except Exception as error:
            raise _mistake(self._path, error) from error


def _mistake(path: Path, error: Exception) -> InputError:
    """The error as one line, with the last line of the file on the way to it, where it was in the file at all."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    line = next((f", line {frame.lineno}" for frame in frames if frame.filename == str(path.resolve())), "")
    return InputError(f"--strategy {path}{line}: {one_line(error)}")
