"""The command: `genkern`, or `python -m genkern`."""

from __future__ import annotations

from genkern.python_child import leave_current_folder

if __name__ == "__main__":
    # Before any other import, which might find a file of the current folder.
    leave_current_folder()

import argparse
import difflib
import errno
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from genkern.errors import BugError, GenkernError, InputError, machine_fault, reporting_bugs
from genkern.file_io import own_descriptor, printable
from genkern.profiling.early_process import EarlyProcess
from genkern.safe_stdio import safe_stream, write_error
from genkern.subcommands import COMMANDS, MODES

if TYPE_CHECKING:
    from genkern.screen import Screen

# Errors caused by a limit of the process, not by a file.
_LIMITS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_CHECK_LIMITS = "check the limits of memory, processes and open files (ulimit -v -u -n, and the container's limits)"
# Options with which nothing is measured.
NOTHING_MEASURED = {"-h", "--help", "--help-all", "--help_all", "--version", "--explain"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0: success; 1: the command ran, but its result needs attention, such as a size without a winner or a wrong config;
        2: an error that the user must fix, described in one line on standard error; 3: a bug in genkern; 130: stopped
        by Ctrl-C or SIGTERM.
    """
    _prepare_process()
    stopped = "stopped"
    early = EarlyProcess()
    try:
        arguments = sys.argv[1:] if argv is None else list(argv)
        # Other subcommands than tune, check and bench start no measured process.
        try:
            word = "".join(arguments[:1])
            if measures(word) and not NOTHING_MEASURED.intersection(arguments):
                early.begin(arguments)
            # Imported after the signal handlers are set, and only what is needed: importing everything takes half a
            # second.
            from genkern.cli.options import parse

            if word in COMMANDS and word not in MODES:
                command = importlib.import_module(COMMANDS[word].module)
                name = word.replace("-", "_")
                others = getattr(command, f"parse_{name}")(arguments[1:])
                status: int
                output = getattr(others, "output", None)
                console = _screen(others, output)
                with reporting_bugs():
                    status = getattr(command, f"run_{name}")(others, console)
                if (
                    status == 0
                    and not own_descriptor(output or "")
                    and (line := COMMANDS[word].next_line(vars(others)))
                ):
                    console.put_next(line)
                return status
            if word and not word.startswith("-") and word not in MODES:
                raise InputError(_unknown_command(word))
            options = parse(arguments)
            if options.model_dir is not None:
                options.model_list = importlib.import_module(COMMANDS["shapes"].module).model_list(options)
            console = _screen(options, options.tuning_results_file)
            stopped += "; run the same command again to continue" if options.tunes else "; the same command starts anew"
            from genkern.cli.run import run

            with reporting_bugs():
                return run(options, console, early)
        finally:
            early.close()
            # If the reader of a pipe has gone, Python's own flush at exit would print an error. --help needs this too.
            sys.stdout.flush()
    except GenkernError as error:
        return _fail(str(error))
    except BugError as bug:
        print("\n".join(map(printable, bug.details.split("\n"))), file=sys.stderr)
        _say(f"a bug in genkern: {bug}; the traceback is above: please report it")
        return 3
    except KeyboardInterrupt:
        _say(stopped)
        return 130
    except ModuleNotFoundError as error:
        return _fail(_missing(error))
    except (MemoryError, ImportError, RuntimeError) as error:
        if not (why := machine_fault(error)):
            raise
        return _fail(f"{why}: {_CHECK_LIMITS}")
    except OSError as error:
        if not error.filename and _is_homeless():
            return _fail("the current folder was removed: change to an existing folder")
        if error.errno in _LIMITS:
            return _fail(f"{machine_fault(error)}: {_CHECK_LIMITS}")
        return _fail(f"{error.strerror or error} ({error.filename or 'no file'}); check permissions and free space")


def command() -> NoReturn:
    """Run main() as a whole process, and exit. A signal after main() is ignored, since nothing is left to clean up."""
    try:
        status = main()
    except SystemExit as done:  # --help
        status = int(done.code or 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if status < 2 and (reason := write_error(sys.stdout)):
        status = _fail(f"standard output could not be written completely ({reason}); the files are complete")
    sys.exit(status)


def _is_taken(output: str | None) -> bool:
    """Return True if results go to standard output, so that messages must not."""
    return own_descriptor(output or "") == 1


def _screen(options: argparse.Namespace, output: str | None) -> Screen:
    """Return the console of a command. If its results go to standard output, messages go to standard error."""
    from genkern.screen import Screen

    return Screen(stderr=_is_taken(output), is_json=options.json, is_wide=options.wide)


def measures(word: str) -> bool:
    """Return True if a command that begins with this word may measure: it is no other subcommand."""
    return word not in COMMANDS or (word in MODES and MODES[word] not in NOTHING_MEASURED)


def _prepare_process() -> None:
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    # Joblib warns about the unfinished jobs of a stopped run when its generator is deleted.
    warnings.filterwarnings("ignore", r"\d+ tasks which were still being processed", UserWarning)
    threading.excepthook = _thread_failed
    # Otherwise NumPy's library would keep a thread spinning on each core for matrices of a few hundred rows.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # If descriptor 0, 1 or 2 is closed, the next open() would reuse it and receive our output.
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = safe_stream(sys.stdout, 1)
    sys.stderr = safe_stream(sys.stderr, 2)


class _Stopped(KeyboardInterrupt):
    """Like Ctrl-C. For a plain KeyboardInterrupt, Python itself would end by SIGINT whatever main() returns."""


def _stop(signal_number: int, frame: FrameType | None) -> None:
    # A second Ctrl-C must not interrupt the cleaning up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    # Loky's management thread fails with a KeyError if jobs are withdrawn when a run ends early. It has ended its
    # workers by then, so failures of this thread are not printed.
    if failure.thread is None or failure.thread.name != "ExecutorManagerThread":
        threading.__excepthook__(failure)


def _unknown_command(word: str) -> str:
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean genkern {near[0]}?" if near else "--help lists the subcommands; genkern tune FILE tunes"
    return f"there is no genkern {word[:40]}: {hint}"


def _is_homeless() -> bool:
    """Return True if the current folder was removed; errors then name no file."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _missing(error: ModuleNotFoundError) -> str:
    """Return what to do about a missing package. Raises `error` if it is a module of genkern."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "genkern"):
        raise error
    from genkern.installation import is_checkout, pip_install

    how = "`make tune` in the checkout sets up .venv (then: . .venv/bin/activate), or " if is_checkout() else ""
    return f"{sys.executable} has no {package}: {how}{pip_install('torch')}"


def _fail(message: str) -> int:
    _say(message)
    return 2


def _say(message: str) -> None:
    print(f"genkern: {printable(' '.join(message.split()))}", file=sys.stderr)


if __name__ == "__main__":
    command()
