"""genkern's command as a subprocess that ends with this process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import genkern
from genkern.errors import OutputError, ResultsError
from genkern.python_child import module_argv

# The part of a log that is searched for its last line, which states the error.
_MOST_SAID = 16 * 1024
_GRACE_S = 2.0
# A working folder to which only root can write.
_NEUTRAL = "/"
# Variables with paths, which are relative to this process's folder.
_PATHS = ("GENKERN_CACHE_DIR", "XDG_CACHE_HOME")
_LISTS_OF_PATHS = ("PYTHONPATH", "GENKERN_OP_FOLDERS", "GENKERN_FAMILY_FILES", "GENKERN_GPU_FILES")
# A script that ends the command and its children when this process ends, however it ends. Run by its path.
_GUARD = Path(genkern.__path__[0]) / "profiling" / "process_guard.py"


class GenkernCommand:
    """A started `python -m genkern ARGUMENTS` whose output goes to the file `log`.

    ARGUMENTS are relative to the folder `cwd`; by default, paths in them must be absolute. With `nice` it has the
    lowest priority. Raises OutputError if it cannot be started.
    """

    def __init__(self, arguments: Sequence[str], log: Path, nice: bool = False, cwd: str = _NEUTRAL) -> None:
        argv: Sequence[str] = module_argv("genkern", *arguments)
        if nice and (program := shutil.which("nice")):
            argv = [program, "-n", "19", *argv]
        self.log = log
        try:
            with open(log, "wb") as said:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), "-", *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    cwd=cwd,
                    env=_environment(),
                    # A process group of its own, so that Ctrl-C reaches only this process, and `end` reaches the whole
                    # group.
                    start_new_session=True,
                )
        except OSError as error:
            raise OutputError(f"genkern cannot be started ({error.strerror}: {error.filename})") from None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return its exit status (negative: the signal that ended it), or None if it still runs after the timeout."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Stop it as Ctrl-C would, if it still runs, and kill the rest of its process group (the guard script's)."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            self.wait(_GRACE_S)
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    @property
    def last_line(self) -> str:
        """The last line that it printed, without the program's name."""
        try:
            text = self.log.read_bytes()[-_MOST_SAID:].decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1].removeprefix("genkern: ") if lines else ""


def finished(arguments: Sequence[str], log: Path) -> int:
    """Run `python -m genkern ARGUMENTS` and return its exit status: 0, or 1 if a part of the work could not be done.

    Raises ResultsError with the command's last line for any other status, OutputError if it cannot be started. If this
    process is interrupted meanwhile, by Ctrl-C for example, the command is ended first.
    """
    command = GenkernCommand(arguments, log)
    try:
        status = command.wait()
    except BaseException:
        command.end()
        raise
    if status not in (0, 1):
        raise ResultsError(command.last_line or f"genkern ended with {status}")
    return status


def pack_arguments(results: Path, bundle: Path, cache: Path) -> list[str]:
    """Return the arguments that pack the winners of a results file into a bundle.

    The command exits with 1 if some winners could not be packed, with a higher status if there is no bundle. It makes
    no proofs, since a program waits for it or uses the GPU meanwhile.
    """
    files = results.absolute(), "-o", bundle.absolute(), "--overwrite", "--cache_dir", cache.absolute()
    return ["pack", *map(str, files), "--no_proofs"]


def pack(results: Path, bundle: Path, cache: Path, log: Path) -> int:
    """Run the command of pack_arguments. Raises ResultsError with the command's last line if it made no bundle."""
    return finished(pack_arguments(results, bundle, cache), log)


def _environment() -> dict[str, str]:
    """Return the environment of the command, with absolute paths, in which it finds the same genkern."""
    named = {name: _absolute(os.environ[name]) for name in _PATHS if os.environ.get(name)}
    for name in _LISTS_OF_PATHS:
        named[name] = os.pathsep.join(map(_absolute, filter(None, os.environ.get(name, "").split(os.pathsep))))
    root = str(Path(genkern.__path__[0]).parent)
    path = [part for part in named.get("PYTHONPATH", "").split(os.pathsep) if part]
    named["PYTHONPATH"] = os.pathsep.join([*path, *([] if root in path else [root])])
    # For commands that it starts with -m or -c: Python 3.11 and later then leaves the current folder out of sys.path.
    return {**os.environ, **named, "PYTHONSAFEPATH": "1"}


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
