"""Which strategy a run searches with: one of genkern's by name, or anybody's by the file that it is in."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from genkern.errors import InputError, one_line
from genkern.search.strategy import MakesStrategy

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
    spec = importlib.util.spec_from_file_location(f"genkern_strategy_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1].lineno
        raise InputError(f"--strategy {path}, line {at}: {one_line(error)}") from None
    make = getattr(module, "strategy", None)
    if not isinstance(make, Callable):  # type: ignore[arg-type]
        raise InputError(f"--strategy {path}: it has no function strategy(task)")
    return ChosenStrategy(f"{path.name} {hashlib.sha256(text).hexdigest()[:16]}", cast(MakesStrategy, make))
