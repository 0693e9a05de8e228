"""Errors that a user can cause (the command prints one line and exits with 2), and genkern's own bugs."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

# Enough to recognise an error; the complete text is in a log.
_MESSAGE_CHARACTERS = 300
# Python's message if pthread_create fails: a process limit, or no memory for a stack.
_NO_THREAD = "can't start new thread"


class GenkernError(Exception):
    """Base of the errors that a user can mend. The message says what is wrong, where, and what to try."""


class InputError(GenkernError, ValueError):
    """A size, file, option or space that cannot be used as given."""


class ResultsError(GenkernError, ValueError):
    """A results file, journal or cache that does not fit this run."""


class OutputError(GenkernError, OSError):
    """A file that could not be written (permissions, full disk)."""


class ProfilerError(GenkernError, RuntimeError):
    """A profiler that is missing, or whose output cannot be used."""


class LaunchError(GenkernError, RuntimeError):
    """A kernel that cannot be loaded or launched on a device."""


class MachineError(GenkernError, RuntimeError):
    """The machine lacks what genkern needs: processes, threads, memory, files, or a working compiler."""


class RunError(GenkernError, RuntimeError):
    """A run of genkern's command in a child process that ended early; the message is the command's.

    `result` has what the run had found, as a genkern.TuningResult; None if nothing.
    """

    result: Any = None


class InvarianceError(GenkernError, RuntimeError):
    """A call must have the same bits in every batch, and no kernel can do so (genkern.batch_invariant)."""


class BugError(Exception):
    """A fault of genkern's own code (a template, a generator, the harness), never of a user or a kernel.

    `message` is one line, `details` the traceback, from the process in which it happened. It is not a GenkernError, so
    that handlers of user errors do not catch it.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message, details)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of(cls, error: BaseException, where: str = "", said: str = "") -> BugError:
        """Return the BugError for `error`.

        `where`: the current activity; `said`: a better message than the error's own.
        """
        said = said or one_line(error)
        return cls(f"{where}: {said}" if where else said, "".join(traceback.format_exception(error)))


def one_line(error: BaseException, message: str | None = None) -> str:
    """Return the error's type and its message (or `message`) on one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error if message is None else message}".split())[:_MESSAGE_CHARACTERS]


def machine_fault(error: BaseException) -> str:
    """Return in a few words why `error` is a fault of the machine (a limit, a full disk, a missing library), or "".

    Faults of the machine are OSError, MemoryError, ImportError of a library that cannot be loaded, UnicodeError (of
    paths, since kernels are ASCII), and Python's RuntimeError for a thread that cannot start.
    """
    if isinstance(error, ModuleNotFoundError):
        return ""
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, UnicodeError):
        return f"a path or a text is not UTF-8 ({error.reason})" if hasattr(error, "reason") else str(error)
    is_library = isinstance(error, ImportError) and ".so" in f"{error} {error.path}"
    if is_library or (isinstance(error, RuntimeError) and _NO_THREAD in str(error)):
        return one_line(error).partition(": ")[2]
    return ""


@contextlib.contextmanager
def reporting_machine_faults(doing: str, hint: str) -> Iterator[None]:
    """Raise MachineError "cannot DOING: REASON; HINT" for a fault of the machine in the block. Other errors pass.

    This includes an error that a library raised while it handled a fault of the machine. For a RuntimeError, such as
    that of a broken pool, the errors behind it are not considered.
    """
    try:
        yield
    except GenkernError:
        raise
    except Exception as error:
        behind: BaseException | None = error
        while behind is not None:
            if why := machine_fault(behind):
                raise MachineError(f"cannot {doing}: {why}; {hint}") from error
            behind = None if isinstance(behind, RuntimeError) else behind.__cause__ or behind.__context__
        raise


@contextlib.contextmanager
def reporting_bugs(where: str = "") -> Iterator[None]:
    """Raise BugError for an error in the block that neither a user nor the machine can cause.

    A UnicodeError counts as a bug here. `where` as in BugError.of.
    """
    try:
        yield
    except (GenkernError, BugError, ModuleNotFoundError):
        raise
    except Exception as error:
        if machine_fault(error) and not isinstance(error, UnicodeError):
            raise
        raise BugError.of(error, where) from error
