"""Runs programs as `python` would, each in a fork of a process that has imported what generated modules need.

A program: argv[1] is a JSON list of their argv, before which the environment may be set (NAME=value); the status,
output and errors of each are printed as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback

_IMPORTED = ("numpy", "torch", "triton", "triton.language")


def main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    print(json.dumps([run(argv) for argv in json.loads(sys.argv[1])]))


def run(argv: list[str]) -> tuple[int, str, str]:
    """Status, output and errors of one."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            status = _status_of(argv)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        errors.seek(0)
        return status, output.read(), errors.read()


def _status_of(argv: list[str]) -> int:
    while "=" in argv[0]:
        name, _, value = argv.pop(0).partition("=")
        os.environ[name] = value
    sys.argv = argv
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
