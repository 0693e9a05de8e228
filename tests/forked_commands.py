"""Starts the command as `python -m genkern` would, each time in a fork of a process that has imported genkern.

A program. A message on the socket that is its standard input is [argv, environment, folder], JSON, with three
descriptors, which become the command's input, output and errors; the answer is its process's number. That process is
in a session of its own, and no child of this one, but of whoever collects orphans above (tests/command.py).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import socket
import sys
import tempfile
from typing import NoReturn

_LARGEST_BYTES = 1 << 20


def main() -> None:
    for name in ("genkern.__main__", "genkern.cli.run", "genkern.cli.status"):
        importlib.import_module(name)
    gc.freeze()
    asked = socket.socket(fileno=0)
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, _LARGEST_BYTES, 3)
        if not message:
            return
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            if number := os.fork():
                os.write(write, str(number).encode())
                os._exit(0)
            os.close(read)
            os.close(write)
            _run(descriptors, *json.loads(message))
        os.waitpid(between, 0)
        asked.send(os.read(read, 64))
        for descriptor in (read, write, *descriptors):
            os.close(descriptor)


def _run(descriptors: list[int], argv: list[str], environment: dict[str, str], folder: str) -> NoReturn:
    """The rest of the process, as Python begins it: its path, and what makes it another machine (machines.py)."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    random.seed()
    main_module = importlib.import_module("genkern.__main__")
    sys.argv = [str(main_module.__file__), *argv]
    sys.path[:1] = [folder, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.modules.pop("sitecustomize", None)
    importlib.invalidate_caches()
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    main_module.command()


if __name__ == "__main__":
    main()
