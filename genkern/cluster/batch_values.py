"""Validates values that users give for Slurm scripts, so that sbatch and shells cannot misread them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence

from genkern.errors import InputError

_FILES = frozenset(("--space", "--kernels", "--cache_dir", "--cache-dir", "--op", "--family", "--search"))
# Options of tuning that choose the GPUs that measure.
WHICH_GPUS = frozenset(("--gpu_ids", "--ngpus", "--mp"))
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    """Return a parser of texts that match `pattern`; it raises argparse.ArgumentTypeError: the text is not `what`."""

    def read(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {what}")
        return text

    return read


partitions = _matching(rf"{_NAME}(,{_NAME})*", "a partition, or some with commas between them")
account = _matching(_NAME, "an account")
# https://slurm.schedmd.com/sbatch.html, --time and --gpus
duration = _matching(
    r"[0-9]{1,6}|[0-9]{1,6}:[0-9]{2}|[0-9]{1,4}:[0-9]{2}:[0-9]{2}|[0-9]{1,3}-[0-9]{1,2}(:[0-9]{2}){0,2}",
    "a time as Slurm has it: minutes, HH:MM:SS or D-HH:MM:SS",
)
gpus = _matching(rf"({_NAME}:)?[1-9][0-9]{{0,2}}", "a number of GPUs, with their type before a colon")


def gpus_each(spec: str) -> int:
    """Return the number of GPUs per task in a --gpus value of Slurm."""
    return int(spec.rpartition(":")[2])


def option_names(tuning: Sequence[str]) -> frozenset[str]:
    """Return the option names among these words, as written, and with underscores instead of dashes."""
    names = {argument.partition("=")[0] for argument in tuning}
    return frozenset(names | {name.replace("-", "_").replace("__", "--", 1) for name in names})


def absolute(tuning: Sequence[str]) -> list[str]:
    """Return options of tuning with absolute paths, since they are used by processes in other folders."""
    made = []
    for before, option in zip(("", *tuning), tuning, strict=False):
        name, equals, value = option.partition("=")
        if before in _FILES and os.path.exists(option):
            made.append(os.path.abspath(option))
        elif equals and name in _FILES and os.path.exists(value):
            made.append(f"{name}={os.path.abspath(value)}")
        else:
            made.append(option)
    return made


def require_plain(path: str, what: str) -> str:
    """Return the path. Raises InputError if it has unprintable characters, such as a line end."""
    if not path.isprintable():
        raise InputError(f"{what} {path!r:.60} has unprintable characters, which would break a script")
    return path
