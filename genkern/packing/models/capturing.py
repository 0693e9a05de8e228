"""Sizes that a user's program calls, by running it once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from genkern.errors import InputError
from genkern.files import shown_path
from genkern.gemm.problem import GemmProblem
from genkern.packing.merge import read_list, recorded_files

# What else would serve a size, so that it is not written down.
_OTHERS = ("GENKERN_CONFIG", "GENKERN_ONLINE_TUNING")


def captured(
    program: Sequence[str], folder: Path, arch: str, console: Console, *, run: bool = True
) -> list[GemmProblem]:
    """The sizes that the program calls, each once: it writes them into `folder`, and is run where nothing is there.

    Raises InputError where it cannot be run, fails, or calls nothing; and without `run` where it was not run before.
    """
    if not any(folder.glob("*.yaml")):
        if not run:
            raise InputError(f"{shown_path(str(folder))} has no sizes yet: run this without --dry_run, once")
        _run(program, folder)
    else:
        console.print(
            f"note: sizes recorded before are in {shown_path(str(folder))}: remove it to run the program again"
        )
    found: dict[GemmProblem, None] = {}
    for path in recorded_files([str(folder)]):
        found.update(dict.fromkeys(read_list(path, arch)[0].problems))
    return list(found)


def _run(program: Sequence[str], folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    environment |= {"GENKERN_TUNE_GEMM": "1", "GENKERN_RECORD_DIR": str(folder.resolve())}
    try:
        status = subprocess.run(program, env=environment, check=False).returncode
    except OSError as error:
        raise InputError(f"--capture: {program[0]} cannot be run: {error.strerror or error}") from None
    if status:
        raise InputError(f"--capture: {program[0]} ended with {status}; no bundle is made of half of its sizes")
    if not any(folder.glob("*.yaml")):
        raise InputError(
            f"--capture: {program[0]} called no size through genkern: does it call genkern.patch(model), or tuned_gemm?"
        )
