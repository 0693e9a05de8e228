"""SizeRecorder: problems without a row of their own, written down as they come: a list of sizes for `genkern -i`.

One file a process, to which lines are only added, each by one write: a process may be killed at any time, and any
number of them may write into one folder. AITER's untuned CSV cannot hold every format, so it is YAML.
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
from genkern.files import regular, shown_path
from genkern.gemm.problem import GemmProblem
from genkern.runtime.launch.prepared import LiveGpu
from genkern.runtime.table import Choice

PREFIX = "recorded_"
# The second one is that of earlier releases.
PREFIXES = (PREFIX, "capture_")
_HEAD = f"# sizes without a row of their own, recorded by genkern {__version__}; `genkern merge` joins such files\n"
# In the current folder; the first one that is there, else the first.
_FOLDERS = ("genkern_recorded", "genkern_capture")
# Folders that packages are installed in, by name.
_INSTALLED = ("site-packages", "dist-packages")
_RANKS = ("RANK", "LOCAL_RANK")


class SizeRecorder:
    """A watch of a Context. A folder that cannot be written to is told to `say`, and that is the end of it."""

    def __init__(self, folder: Path, say: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> None:
        """Raises InputError for a folder inside an installed package."""
        require_own(folder)
        # The program may change its current folder.
        self._folder = folder.absolute()
        self._say = say
        self._environ = environ
        self._seen: set[GemmProblem] = set()

    def __call__(self, gpu: LiveGpu | None, problem: GemmProblem, choice: Choice | None) -> None:
        """Write the problem down, unless a row serves it, or it was written by this process."""
        if problem in self._seen or (choice is not None and choice.exact):
            return
        self._seen.add(problem)
        try:
            # A forked process comes here too, and has another name.
            self._write(self._folder / f"{PREFIX}{process_name(self._environ)}.yaml", problem)
        except OSError as error:
            self._say(f"{shown_path(str(self._folder))}: nothing is recorded there ({error}): set GENKERN_RECORD_DIR")
            self._write = lambda path, problem: None  # type: ignore[method-assign]

    def _write(self, path: Path, problem: GemmProblem) -> None:
        from genkern.formats.tune_gemm_yaml import size_line

        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = regular(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            size = os.fstat(file).st_size
            line = (("" if size else _HEAD) + size_line(problem)).encode()
            if os.write(file, line) != len(line):
                os.ftruncate(file, size)
                raise OSError("no space for a line")
        finally:
            os.close(file)


def record_folder(named: str) -> Path:
    """The folder for recorded sizes and for what is tuned online; where none is named, the usual one, or that of
    earlier releases where it alone is there.
    """
    usual = next((folder for folder in _FOLDERS if Path(folder).is_dir()), _FOLDERS[0])
    return Path(named or usual).expanduser()


def process_name(environ: Mapping[str, str]) -> str:
    """What tells this process from all others that may share a folder: host, rank where there is one, and number."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "host"
    rank = next((environ[name] for name in _RANKS if environ.get(name, "").isdigit()), "")
    return "_".join([host, *([f"rank{rank}"] if rank else []), str(os.getpid())])


def require_own(folder: Path) -> None:
    """Raise InputError for a folder inside an installed package, which the next update would take away."""
    place = folder.resolve()
    packages = [Path(path).resolve() for path in genkern.__path__]
    if set(place.parts) & set(_INSTALLED) or any(place.is_relative_to(package) for package in packages):
        raise InputError(
            f"{shown_path(str(folder))} is inside an installed package: set GENKERN_RECORD_DIR to a folder of yours"
        )
