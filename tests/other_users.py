"""Runs a function as another user of this machine, in a forked process: only root can."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

GROUP = 54321
FIRST, SECOND = 54322, 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


def as_user(user: int, function: Callable[[], Any], umask: int = 0o002) -> Any:
    """What `function` returns, as JSON has it, to a process of that user and of GROUP."""
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(user)
            os.umask(umask)
            os.environ["XDG_CACHE_HOME"] = f"{tempfile.gettempdir()}/nowhere-of-{user}"
            os.environ["HOME"] = "/nonexistent"
            os.write(theirs, json.dumps(function()).encode())
            status = 0
        except BaseException:
            os.write(theirs, json.dumps(traceback.format_exc()).encode())
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as file:
        said = json.load(file)
    _, status = os.waitpid(child, 0)
    assert status == 0, said
    return said


@contextmanager
def folder_of_the_group(mode: int = 0o2775, owner: int = FIRST) -> Iterator[Path]:
    """A folder that all users can reach, with this mode and owner, and of GROUP."""
    # Not pytest's own, which nobody but root can enter.
    folder = Path(tempfile.mkdtemp(prefix="genkern-shared-", dir="/tmp"))
    try:
        os.chown(folder, owner, GROUP)
        folder.chmod(mode)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
