"""genkern's command, as a process of its own that ends with this one."""

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

# Standard error of a command that failed: enough for its last line, which says what is wrong.
_MOST_SAID = 16 * 1024
_GRACE_S = 2.0
# Nobody but root puts anything there.
_NEUTRAL = "/"
# Of variables that name paths, which are meant from where the program is.
_PATHS = ("GENKERN_CACHE_DIR", "XDG_CACHE_HOME")
_LISTS_OF_PATHS = ("PYTHONPATH", "GENKERN_OP_FOLDERS", "GENKERN_FAMILY_FILES", "GENKERN_GPU_FILES")
# Run by its path, it takes what it starts along when this process ends, however it ends.
_GUARD = Path(genkern.__path__[0]) / "profiling" / "process_guard.py"


class OwnCommand:
    """`python -m genkern ARGUMENTS`, started; what it prints goes to the file `log`. Paths in ARGUMENTS are absolute.

    With `nice` it yields to whatever else wants a processor. Raises OutputError where it cannot be started.
    """

    def __init__(self, arguments: Sequence[str], log: Path, nice: bool = False) -> None:
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
                    cwd=_NEUTRAL,
                    env=_environment(),
                    # A group of its own: Ctrl-C is for this process, and `end` for all of theirs.
                    start_new_session=True,
                )
        except OSError as error:
            raise OutputError(f"genkern cannot be started ({error.strerror}: {error.filename})") from None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit status (negative: the signal that ended it); None when it goes on after that time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Stop it, if it goes on, as Ctrl-C does; then what is left of its group, which the guard leads."""
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
    """Run `python -m genkern ARGUMENTS` to its end: 0, or 1 where some of what it was asked for could not be done.

    Raises ResultsError with its own last line where it ended otherwise, and OutputError where it cannot be started.
    Where this process is stopped meanwhile, by Ctrl-C for example, the command ends first.
    """
    command = OwnCommand(arguments, log)
    try:
        status = command.wait()
    except BaseException:
        command.end()
        raise
    if status not in (0, 1):
        raise ResultsError(command.last_line or f"genkern ended with {status}")
    return status


def pack_arguments(results: Path, bundle: Path, cache: Path) -> list[str]:
    """Write the winners of a results file into a bundle: 1 where some could not be packed, above that there is none.

    Without proofs: a program waits for it, or works on the GPU meanwhile.
    """
    files = results.absolute(), "-o", bundle.absolute(), "--overwrite", "--cache_dir", cache.absolute()
    return ["pack", *map(str, files), "--no_proofs"]


def pack(results: Path, bundle: Path, cache: Path, log: Path) -> int:
    """See pack_arguments. Raises ResultsError with the command's own line when there is no bundle to show for it."""
    return finished(pack_arguments(results, bundle, cache), log)


def _environment() -> dict[str, str]:
    """This environment, in which genkern is found as it was here, and what it names is what it names here."""
    named = {name: _absolute(os.environ[name]) for name in _PATHS if os.environ.get(name)}
    for name in _LISTS_OF_PATHS:
        named[name] = os.pathsep.join(map(_absolute, filter(None, os.environ.get(name, "").split(os.pathsep))))
    root = str(Path(genkern.__path__[0]).parent)
    path = [part for part in named.get("PYTHONPATH", "").split(os.pathsep) if part]
    named["PYTHONPATH"] = os.pathsep.join([*path, *([] if root in path else [root])])
    # For what it starts with -m or -c, where Python knows it (3.11 and later).
    return {**os.environ, **named, "PYTHONSAFEPATH": "1"}


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
