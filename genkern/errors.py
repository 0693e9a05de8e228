"""The errors that a user can cause, of which the command line prints one line and exits with 2; and genkern's own."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

# Enough to recognise an error by; the whole of it stands in a log.
_MESSAGE_CHARACTERS = 300
# What Python says when pthread_create fails: a limit on processes, or no memory for a stack.
_NO_THREAD = "can't start new thread"


class GenkernError(Exception):
    """Base of the family: what is wrong, where, and what to try."""


class InputError(GenkernError, ValueError):
    """A size, file, option or space that cannot be used as given."""


class ResultsError(GenkernError, ValueError):
    """A results file, journal or cache that does not fit this run."""


class OutputError(GenkernError, OSError):
    """A file that could not be written (permissions, full disk)."""


class ProfilerError(GenkernError, RuntimeError):
    """A profiler that is missing or whose output cannot be used at all."""


class LaunchError(GenkernError, RuntimeError):
    """A kernel that cannot be loaded or launched on a device."""


class MachineError(GenkernError, RuntimeError):
    """The machine refuses what genkern needs: processes, threads, memory, files, or a compiler that works."""


class InvarianceError(GenkernError, RuntimeError):
    """A call that must have the same bits in every batch, and has no kernel for that (genkern.batch_invariant)."""


class BugError(Exception):
    """A fault of genkern's own code (a template, a generator, the harness), never a user's or a kernel's.

    `message` is one line, `details` the traceback, of whichever process it happened in. No GenkernError, so that
    nobody who answers for a user's error takes it for one.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message, details)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of(cls, error: BaseException, where: str = "", said: str = "") -> BugError:
        """The bug that `error` shows; `where` says what was being done, `said` is better than the error's own line."""
        said = said or one_line(error)
        return cls(f"{where}: {said}" if where else said, "".join(traceback.format_exception(error)))


def one_line(error: BaseException, message: str | None = None) -> str:
    """The error's type and message (or this one) on one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error if message is None else message}".split())[:_MESSAGE_CHARACTERS]


def machine_fault(error: BaseException) -> str:
    """Why `error` is a fault of the machine (a limit, a full disk, a library that is missing), in a few words.

    Returns "" for any other error. Faults of the machine are OSError, MemoryError, ImportError of a library that cannot
    be loaded, UnicodeError (of paths: kernels are ASCII), and the RuntimeError with which Python refuses a thread.
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
def machine_faults_told(doing: str, hint: str) -> Iterator[None]:
    """Raise MachineError "cannot DOING: REASON; HINT" for a fault of the machine, or for an error that a library raised
    while it handled one; other errors pass. A RuntimeError, such as that of a broken pool, is judged by itself.
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
def bugs_told(where: str = "") -> Iterator[None]:
    """Raise BugError for an error that neither a user nor the machine can cause; `where` as in BugError.of."""
    try:
        yield
    except (GenkernError, BugError, ModuleNotFoundError):
        raise
    except Exception as error:
        if machine_fault(error) and not isinstance(error, UnicodeError):
            raise
        raise BugError.of(error, where) from error
