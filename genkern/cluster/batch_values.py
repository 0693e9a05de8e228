"""What scripts for Slurm say besides commands, as a person gives it: nothing that sbatch or a shell takes apart."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence

from genkern.errors import InputError

_FILES = frozenset(("--space", "--kernels", "--cache_dir", "--cache-dir", "--op", "--family", "--search"))
# Options of tuning that say which GPUs of a machine measure.
WHICH_GPUS = frozenset(("--gpu_ids", "--ngpus", "--mp"))
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    """Reads what matches as a whole; raises argparse.ArgumentTypeError, which says that it is not `what`."""

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
    """How many GPUs a task has for which Slurm is asked for these."""
    return int(spec.rpartition(":")[2])


def given_names(tuning: Sequence[str]) -> frozenset[str]:
    """What may be names of options among these words: as they are written, and with underscores for dashes."""
    names = {argument.partition("=")[0] for argument in tuning}
    return frozenset(names | {name.replace("-", "_").replace("__", "--", 1) for name in names})


def absolute(tuning: Sequence[str]) -> list[str]:
    """Options of tuning with the files that they name as these are found from a process that begins elsewhere."""
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
    """The path. Raises InputError for one with what does not show, such as a line's end."""
    if not path.isprintable():
        raise InputError(f"{what} {path!r:.60} has characters that do not show: a script would not survive them")
    return path
