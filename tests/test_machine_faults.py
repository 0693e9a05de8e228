"""Which errors are the machine's, and what becomes of them."""

from __future__ import annotations

import errno
import os

import pytest

from genkern.errors import BugError, InputError, MachineError, machine_fault, reporting_bugs, reporting_machine_faults


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/tmp/x"), "/tmp/x"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "open files"),
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "thread"),
        (ImportError("libtriton.so: failed to map segment from shared object"), "libtriton.so"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "UTF-8"),
        (ImportError("cannot import name 'x'"), ""),
        (ModuleNotFoundError("No module named 'x'"), ""),
        (RuntimeError("anything else"), ""),
        (ValueError("x"), ""),
    ],
    ids=repr,
)
def test_faults_of_the_machine(error: Exception, said: str) -> None:
    """They are told apart by type; a bug is none of them."""
    found = machine_fault(error)
    assert bool(found) == bool(said)
    assert said in found
    with pytest.raises(MachineError if said else type(error)), reporting_machine_faults("do it", "try"):
        raise error


def test_what_a_library_makes_of_one_counts() -> None:
    """loky stumbles over a variable when there is no file for a pipe."""

    def stumbles() -> None:
        try:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        finally:
            raise UnboundLocalError("child_r")

    with (
        pytest.raises(MachineError, match="Too many open files"),
        reporting_machine_faults("do it", "try"),
    ):
        stumbles()


def test_neither_a_bug_nor_a_users_error() -> None:
    """A fault of the machine passes through what tells bugs; so does an error that a user can put right."""
    for error in (MemoryError(), OSError(errno.ENOSPC, ""), InputError("x"), ModuleNotFoundError("x")):
        with pytest.raises(type(error)), reporting_bugs():
            raise error
    with pytest.raises(BugError), reporting_bugs():
        raise KeyError("x")
