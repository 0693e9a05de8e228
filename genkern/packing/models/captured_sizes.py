"""Records the sizes that a user's program calls, by running it once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from genkern.errors import InputError
from genkern.file_io import shown_path
from genkern.gemm.problem import GemmProblem
from genkern.packing.merge import read_list, recorded_files
from genkern.runtime.calls.configuration import BATCH_INVARIANT, CONFIG, OF_FORMAT, ONLINE, RECORD, RECORD_DIR

# Prefixes of variables that the program does not get: with them genkern might serve a size, and so not record it, or
# refuse it.
_OTHERS = (CONFIG, *OF_FORMAT, *ONLINE, BATCH_INVARIANT)


def capture_sizes(
    program: Sequence[str], folder: Path, arch: str, console: Console, *, run: bool = True
) -> list[GemmProblem]:
    """Return the sizes that the program calls, without duplicates.

    The program is run, and its sizes are written into `folder`, unless that has sizes already.

    Raises InputError if it cannot be run, fails, or calls nothing through genkern; without `run`, if it was not run
    before.
    """
    if not any(folder.glob("*.yaml")):
        if not run:
            raise InputError(f"{shown_path(str(folder))} has no sizes yet: run this without --dry_run, once")
        # Renamed when complete: a program that fails or is killed leaves no partial list.
        begun = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(begun, ignore_errors=True)
        _run(program, begun)
        if folder.exists():
            folder.rmdir()
        os.replace(begun, folder)
    else:
        console.print(f"note: recorded sizes are in {shown_path(str(folder))}: remove it to run the program again")
    found: dict[GemmProblem, None] = {}
    for path in recorded_files([str(folder)]):
        found.update(dict.fromkeys(read_list(path, arch)[0].problems))
    return list(found)


def _run(program: Sequence[str], folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
    environment |= {RECORD[0]: "1", RECORD_DIR[0]: str(folder.resolve())}
    try:
        status = subprocess.run(program, env=environment, check=False).returncode
    except OSError as error:
        raise InputError(f"--capture: {program[0]} cannot be run: {error.strerror or error}") from None
    if status:
        raise InputError(f"--capture: {program[0]} ended with {status}: its sizes may be incomplete, no bundle is made")
    if not any(folder.glob("*.yaml")):
        raise InputError(
            f"--capture: {program[0]} called no size through genkern: does it call genkern.patch(model), or tuned_gemm?"
        )
