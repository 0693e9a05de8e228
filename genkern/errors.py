"""The errors that a user can cause; the command line prints each as one line and exits with 2."""

from __future__ import annotations


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
