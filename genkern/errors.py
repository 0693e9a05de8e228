"""The errors that a user can cause, of which the command line prints one line and exits with 2; and genkern's own."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

# Enough to recognise an error by; the whole of it stands in a log.
_MESSAGE_CHARACTERS = 300


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


@contextlib.contextmanager
def bugs_told(where: str = "") -> Iterator[None]:
    """Raise BugError for what neither a user nor the machine can be the cause of; `where` as in BugError.of."""
    try:
        yield
    except (GenkernError, BugError, OSError, MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise BugError.of(error, where) from error
