"""The command: `genkern`, or `python -m genkern`."""

from __future__ import annotations

from genkern.python_child import leave_current_folder

if __name__ == "__main__":
    # Before any other import, which might find a file of the current folder.
    leave_current_folder()

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
from typing import NoReturn

from genkern.errors import BugError, GenkernError, InputError, bugs_told, machine_fault
from genkern.files import own_descriptor, printable
from genkern.outlet import lost, outlet
from genkern.profiling.cuda.early import Early

# Words in front of the options, and the modules that have WORD_parser, parse_WORD and run_WORD (_ for - in them).
COMMANDS = {
    "status": "genkern.command.status",
    "pack": "genkern.packing.command",
    "verify": "genkern.packing.verification",
    "merge": "genkern.packing.merge",
    "shapes": "genkern.packing.models.shapes",
    "model": "genkern.packing.models.bundling",
    "export": "genkern.command.exchange.exporting",
    "import": "genkern.command.exchange.importing",
    "ops": "genkern.command.exchange.ops_table",
    "kernels": "genkern.command.shipped.kernels",
    "cache": "genkern.command.shipped.caching",
    "compile": "genkern.cluster.compiling",
    "measure": "genkern.cluster.measuring",
    "collect": "genkern.cluster.collecting",
    "sbatch": "genkern.cluster.batch_scripts",
    "lab": "genkern.cluster.lab",
    "record": "genkern.command.recorded.recording",
    "replay": "genkern.command.recorded.replaying",
    "train": "genkern.command.recorded.learning",
    "calibrate": "genkern.command.first.calibrating",
    "engine-check": "genkern.command.engine_check.checking",
    "first-run": "genkern.command.first.first_run",
}
# What a process is refused by a limit, rather than by a file.
_LIMITS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_CHECK_LIMITS = "check the limits of memory, processes and open files (ulimit -v -u -n, the container's)"
# Options with which nothing is measured.
NOTHING_MEASURED = {"-h", "--help", "--version", "--explain"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0 when all went well, 1 for a size without a winner or a config that is wrong, 2 for what a user must
    put right (one line on standard error says what), 3 when genkern itself was at fault, 130 when stopped by Ctrl-C or
    SIGTERM.
    """
    _prepare_process()
    stopped = "stopped"
    early = Early()
    try:
        arguments = sys.argv[1:] if argv is None else list(argv)
        # No other use of the command has a word in front that is not an option, so tuning needs none.
        try:
            if (word := "".join(arguments[:1])) not in COMMANDS and not NOTHING_MEASURED.intersection(arguments):
                early.begin(arguments)
            # Imported when a signal is answered already, and no more than is needed: all of it takes half a second.
            from genkern.command.options import parse
            from genkern.command.screen import Screen

            if word in COMMANDS:
                command = importlib.import_module(COMMANDS[word])
                name = word.replace("-", "_")
                others = getattr(command, f"parse_{name}")(arguments[1:])
                status: int
                with bugs_told():
                    status = getattr(command, f"run_{name}")(
                        others, Screen(stderr=_is_taken(getattr(others, "output", None)))
                    )
                return status
            if word and not word.startswith("-"):
                raise InputError(_unknown_command(word))
            options = parse(arguments)
            if options.model_dir is not None:
                options.model_list = importlib.import_module(COMMANDS["shapes"]).model_list(options)
            # Results that go to standard output have it for themselves.
            console = Screen(stderr=_is_taken(options.tuning_results_file))
            stopped += "; run the same command again to go on" if options.tunes else "; the same command begins anew"
            from genkern.command.run import run

            with bugs_told():
                return run(options, console, early)
        finally:
            early.close()
            # Python's own flush at the end would complain about a reader that left, also after --help.
            sys.stdout.flush()
    except GenkernError as error:
        return _fail(str(error))
    except BugError as bug:
        print("\n".join(map(printable, bug.details.split("\n"))), file=sys.stderr)
        _say(f"a bug in genkern: {bug}; what stands above says where: please report it")
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
            return _fail("the current folder was removed: change to one that is there")
        if error.errno in _LIMITS:
            return _fail(f"{machine_fault(error)}: {_CHECK_LIMITS}")
        return _fail(f"{error.strerror or error} ({error.filename or 'no file'}); check permissions and free space")


def command() -> NoReturn:
    """main() as the whole of a process: what stops it after that finds nothing to clean up, and says nothing."""
    try:
        status = main()
    except SystemExit as done:  # --help
        status = int(done.code or 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if status < 2 and (reason := lost(sys.stdout)):
        status = _fail(f"standard output did not take all that there is to say ({reason}); files are written as asked")
    sys.exit(status)


def _is_taken(output: str | None) -> bool:
    """Whether results go to standard output, which they have for themselves then."""
    return own_descriptor(output or "") == 1


def _prepare_process() -> None:
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    # Joblib says so of what a stopped run leaves undone, now and then, as its generator goes.
    warnings.filterwarnings("ignore", r"\d+ tasks which were still being processed", UserWarning)
    threading.excepthook = _thread_failed
    # NumPy's library would have a thread on each core turn and wait for matrices of a few hundred rows.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # Closed by whoever started us: the next file to be opened would take its place, and what is said.
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = outlet(sys.stdout, 1)
    sys.stderr = outlet(sys.stderr, 2)


class _Stopped(KeyboardInterrupt):
    """As Ctrl-C; Python itself takes note of a plain KeyboardInterrupt, and ends by SIGINT whatever we return."""


def _stop(signal_number: int, frame: FrameType | None) -> None:
    # Once is enough: a second Ctrl-C must not cut the cleaning up short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    # The pool's own thread stumbles over the jobs that are withdrawn when a run ends early (loky, KeyError);
    # it has ended its workers by then.
    if failure.thread is None or failure.thread.name != "ExecutorManagerThread":
        threading.__excepthook__(failure)


def _unknown_command(word: str) -> str:
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean genkern {near[0]}?" if near else "tuning has no word in front, and --help lists the others"
    return f"there is no genkern {word[:40]}: {hint}"


def _is_homeless() -> bool:
    """Whether the folder that this process is in is gone, of which errors name no file."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _missing(error: ModuleNotFoundError) -> str:
    """What to do about a package that is not there. Raises `error` when it is one of genkern's own."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "genkern"):
        raise error
    return (
        f"{sys.executable} has no {package}: in a checkout, `make tune` sets up .venv (then: . .venv/bin/activate), or "
        "pip install -e '.[torch]'"
    )


def _fail(message: str) -> int:
    _say(message)
    return 2


def _say(message: str) -> None:
    print(f"genkern: {printable(' '.join(message.split()))}", file=sys.stderr)


if __name__ == "__main__":
    command()
