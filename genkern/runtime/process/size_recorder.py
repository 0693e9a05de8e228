"""SizeRecorder: appends problems without a row of their own to a list of sizes for `genkern -i`.

Each process has one file and appends each line by one write: a process may be killed at any time, and any number of
processes may use one folder. The file is YAML, since AITER's CSV for untuned sizes cannot express every format.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import genkern
from genkern import __version__
from genkern.errors import InputError
from genkern.file_io import open_regular, shown_path
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.table import Choice
from genkern.runtime.launch.prepared_call import LiveGpu

PREFIX = "recorded_"
# The second prefix is from earlier releases.
PREFIXES = (PREFIX, "capture_")
_HEAD = f"# sizes without a row of their own, recorded by genkern {__version__}; `genkern merge` joins such files\n"
# Default folders, below the current one: the first that exists, else the first.
_FOLDERS = ("genkern_recorded", "genkern_capture")
# Names of folders in which packages are installed.
_INSTALLED = ("site-packages", "dist-packages")
_RANKS = ("RANK", "LOCAL_RANK")


class SizeRecorder:
    """A watch of a Context. If the folder cannot be written, it reports that to `say` once and records nothing more."""

    def __init__(self, folder: Path, say: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> None:
        """Raise InputError if `folder` is in an installed package."""
        require_own(folder)
        # Absolute, since the program may change its current folder.
        self._folder = folder.absolute()
        self._say = say
        self._environ = environ
        self._seen: set[GemmProblem] = set()

    def __call__(self, gpu: LiveGpu | None, problem: GemmProblem, choice: Choice | None) -> None:
        """Record the problem, unless a row of its own M decides the choice, or this process has recorded it before."""
        if problem in self._seen or (choice is not None and choice.exact):
            return
        self._seen.add(problem)
        try:
            # The name is computed for each write: a forked process has another one.
            self._write(self._folder / f"{PREFIX}{process_name(self._environ)}.yaml", problem)
        except OSError as error:
            self._say(f"{shown_path(str(self._folder))}: nothing is recorded there ({error}): set GENKERN_RECORD_DIR")
            self._write = lambda path, problem: None  # type: ignore[method-assign]

    def _write(self, path: Path, problem: GemmProblem) -> None:
        from genkern.files.tune_gemm_yaml import size_line

        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = open_regular(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            size = os.fstat(file).st_size
            line = (("" if size else _HEAD) + size_line(problem)).encode()
            if os.write(file, line) != len(line):
                os.ftruncate(file, size)
                raise OSError("no space for a line")
        finally:
            os.close(file)


def record_folder(named: str) -> Path:
    """Return the folder for recorded sizes and for tuning at run time.

    `named` if it is not empty; else the default folder, or the one of earlier releases if only that exists.
    """
    usual = next((folder for folder in _FOLDERS if Path(folder).is_dir()), _FOLDERS[0])
    return Path(named or usual).expanduser()


def process_name(environ: Mapping[str, str]) -> str:
    """Return a name that is unique among processes that may share a folder: host, rank (if any) and process id."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "host"
    rank = next((environ[name] for name in _RANKS if environ.get(name, "").isdigit()), "")
    return "_".join([host, *([f"rank{rank}"] if rank else []), str(os.getpid())])


def require_own(folder: Path) -> None:
    """Raise InputError if the folder is in an installed package, which an update would delete."""
    place = folder.resolve()
    packages = [Path(path).resolve() for path in genkern.__path__]
    if set(place.parts) & set(_INSTALLED) or any(place.is_relative_to(package) for package in packages):
        raise InputError(
            f"{shown_path(str(folder))} is inside an installed package: set GENKERN_RECORD_DIR to a folder of yours"
        )
