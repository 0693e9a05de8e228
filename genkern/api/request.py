"""`Request`: what a call of `tune` or `explain` asks for, as a command line and its parsed options."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from genkern.api.options import StrPath, arguments_of
from genkern.cli.options import parse
from genkern.cli.run import read_problems
from genkern.cli.setting import Setting, make_setting
from genkern.errors import InputError
from genkern.file_io import write_whole
from genkern.files.gemm_entry import SIZE_KEYS, own_keys, refuse_unknown, resolve
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem
from genkern.packing.models.shapes import model_list
from genkern.screen import Screen

if TYPE_CHECKING:
    import torch

# One size: a record, its (M, N, K), or keys of a list of sizes (docs/results.md).
Problem = Union[GemmProblem, "tuple[int, int, int]", "Mapping[str, object]"]
# Sizes: one, several, a list's file, or a model: its folder, its config.json, or a module of PyTorch.
Problems = Union[Problem, "Iterable[Problem]", StrPath, "torch.nn.Module"]

# What a fault of the machine prevents, and what to do about it.
FAULTS = "run genkern", "check the current folder, the folder of temporary files, permissions and free space"

_CONFIG = "config.json"
# The beginning, and the end, of messages of the command's parser.
_FLAG = re.compile(r"^argument (-[^ :]+):")
_PARSERS_HINT = " (--help lists the options)"


@dataclass(frozen=True)
class Request:
    """One run of the command.

    arguments: its command line, without the output
    setting: its options and its device
    problems: the sizes, without duplicates
    """

    arguments: tuple[str, ...]
    setting: Setting
    problems: tuple[GemmProblem, ...]


def request_of(
    problems: Problems | None,
    M: int | Sequence[int] | None,
    N: int | None,
    K: int | None,
    options: Mapping[str, Any],
    folder: Path,
    more: Sequence[str] = (),
) -> Request:
    """Return the run that these arguments ask for; lists of sizes are written into `folder`.

    more: further arguments of the command

    Raises InputError, in one line, for arguments that cannot be used, and ProfilerError for a device or a program that
    this machine lacks.
    """
    sizes = _sizes(problems, M, N, K, folder)
    with _in_pythons_words():
        arguments = (*sizes.arguments, *arguments_of(options), *more)
        parsed = parse(arguments)
        if parsed.model_dir is not None:
            parsed.model_list = model_list(parsed)
        setting = make_setting(parsed)
        if sizes.entries is not None:
            _write_list(parsed.gemm_size_file, sizes.entries, setting)
        if not setting.target.measured and parsed.device is None:
            # The child is told what this process has found, and finds nothing itself.
            arguments += ("--device", setting.target.gpu.name)
        return Request(arguments, setting, read_problems(setting, silent()))


def silent() -> Screen:
    """Return a console that drops what is printed."""
    screen = Screen(stderr=True)
    screen.file = io.StringIO()
    return screen


@contextlib.contextmanager
def _in_pythons_words() -> Iterator[None]:
    """Context in which messages of the command's parser name keyword arguments: "iters: 'x' is ..."."""
    try:
        yield
    except InputError as error:
        text = str(error)
        if not text.endswith(_PARSERS_HINT):
            raise
        text = _FLAG.sub(lambda found: f"{_keyword(found[1])}:", text.removesuffix(_PARSERS_HINT))
        raise InputError(text) from None


def _keyword(flags: str) -> str:
    """Return the keyword argument of a flag, as argparse names it: `--search/--strategy`, `-m`."""
    first = next((flag for flag in flags.split("/") if flag.startswith("--")), flags)
    return first.lstrip("-") if first.startswith("--") else first.lstrip("-").upper()


@dataclass(frozen=True)
class _Sizes:
    """The arguments that name the sizes; `entries` are to be written into the list that they name, if any."""

    arguments: tuple[str, ...]
    entries: Sequence[object] | None = None


def _sizes(
    problems: Problems | None, M: int | Sequence[int] | None, N: int | None, K: int | None, folder: Path
) -> _Sizes:
    """Return the sizes that the arguments of `tune` name. Raises InputError."""
    listed = "-i", str(folder / "sizes.yaml")
    if problems is None:
        missing = [name for name, value in (("M", M), ("N", N), ("K", K)) if value is None]
        if len(missing) == 3:
            raise InputError("nothing to tune: give M, N and K, or problems (sizes, a file, or a model)")
        if missing:
            raise InputError(f"a size needs M, N and K: give {' and '.join(missing)}")
        if isinstance(M, Sequence) and not isinstance(M, str):
            return _Sizes(listed, [{"M": m, "N": N, "K": K} for m in M])
        return _Sizes(("-m", str(M), "-n", str(N), "-k", str(K)))
    if N is not None or K is not None:
        raise InputError("give either problems, or M, N and K")
    if hasattr(problems, "named_modules"):
        if M is None:
            return _Sizes(("--model_dir", _config_of(problems, folder)))
        return _Sizes(listed, _linear_layers(problems, M if isinstance(M, Sequence) else [M]))
    if M is not None:
        raise InputError("M goes with N and K, or with a module of PyTorch, whose layers have N and K")
    if isinstance(problems, (str, os.PathLike)):
        path = os.path.abspath(os.path.expanduser(os.fspath(problems)))
        is_model = os.path.isdir(path) or os.path.basename(path) == _CONFIG
        return _Sizes(("--model_dir" if is_model else "-i", path))
    if isinstance(problems, (GemmProblem, Mapping)) or _is_size(problems):
        return _Sizes(listed, [problems])
    if not isinstance(problems, Iterable):
        raise InputError(f"problems is {str(problems)[:40]!r}: give sizes, a file, or a model")
    return _Sizes(listed, list(problems))


def _is_size(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and all(type(each) is int for each in value)


def _write_list(path: str, entries: Sequence[object], setting: Setting) -> None:
    """Write the list of these sizes. Raises InputError, which says which size cannot be used and why."""
    if not entries:
        raise InputError("problems holds no sizes: give at least one, such as (16, 4096, 4096)")
    lines = []
    for number, entry in enumerate(entries, 1):
        try:
            lines.append(size_line(_problem(entry, setting)))
        except InputError as error:
            raise InputError(f"problems, size {number}: {error}") from None
    write_whole(path, lines)


def _problem(entry: object, setting: Setting) -> GemmProblem:
    if isinstance(entry, GemmProblem):
        return entry
    if _is_size(entry):
        entry = dict(zip("MNK", entry, strict=True))  # type: ignore[call-overload]
    if not isinstance(entry, Mapping):
        raise InputError(f"{str(entry)[:60]!r} is not a size: give (M, N, K), a mapping with these, or a GemmProblem")
    refuse_unknown([str(key) for key in entry], [*SIZE_KEYS, *own_keys()], "key")
    return resolve({str(key): value for key, value in entry.items()}, setting.defaults, setting.target.arch).problem


def _config_of(module: Any, folder: Path) -> str:
    """Write the config of a model of transformers, and return its path. Raises InputError for another module."""
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "to_dict"):
        raise InputError("give M, the rows of the input, such as M=(1, 16, 256): this module does not say them")
    path = str(folder / _CONFIG)
    write_whole(path, json.dumps(config.to_dict(), default=str))
    return path


def _linear_layers(module: Any, rows: Sequence[int]) -> list[dict[str, object]]:
    """Return the sizes of a module's linear layers for these M. Raises InputError if it has none."""
    linear = importlib.import_module("torch").nn.Linear
    layers = {
        (each.out_features, each.in_features, str(each.weight.dtype).removeprefix("torch."), each.bias is not None)
        for _, each in module.named_modules()
        if isinstance(each, linear)
    }
    if not layers:
        raise InputError("this module has no torch.nn.Linear: give sizes instead")
    return [
        {"M": m, "N": n, "K": k, "dtype_a": dtype, "dtype_b": dtype, "dtype_c": dtype, "bias": bias}
        for n, k, dtype, bias in sorted(layers)
        for m in rows
    ]
