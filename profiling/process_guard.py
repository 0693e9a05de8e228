"""Watcher process between genkern and a measured process: kills the process and its children if genkern ends.

Run by path, as `python -I -S process_guard.py PARENT_PID PIPE PROGRAM ARGS...`, in a session of its own (see
`supervisor`). It starts PROGRAM in its own process group, waits, writes the wait status to the descriptor PIPE (unless
PIPE is -), and ends exactly as PROGRAM did: with its exit code, or by its signal. If the parent dies, even by SIGKILL,
the group ends too. The kernel's parent death signal reaches only a direct child and is not inherited by fork, so the
watcher receives it and kills the group, grandchildren included. A process that leaves the group (setsid) is not killed.

It imports nothing of genkern, since a plain interpreter starts in about 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PARENT_DIED = signal.SIGUSR2
_CANNOT_RUN = 127  # exit code of a shell for a program that cannot run
_NOBODY = "-"  # in place of PIPE


def _die_with_parent(libc: ctypes.CDLL, signal_number: int) -> None:
    libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def _exit_as(status: int) -> None:
    """End this process in the way that the wait status `status` describes."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file of the watcher would mislead
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def main() -> None:
    parent_pid, pipe, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    told = None if pipe == _NOBODY else int(pipe)
    if told is not None:
        # A process that inherits the descriptor and outlives the program would keep the pipe open.
        os.set_inheritable(told, False)
    libc = ctypes.CDLL(None)

    def end_group_if_orphaned(*_: object) -> None:
        # The death signal also arrives when only the *thread* that started this process has ended. The parent process
        # then still runs.
        if os.getppid() != parent_pid:
            os.killpg(0, signal.SIGKILL)

    # Handlers, not SIG_IGN: an ignored signal would stay ignored in the program.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(_PARENT_DIED, end_group_if_orphaned)
    _die_with_parent(libc, _PARENT_DIED)
    end_group_if_orphaned()  # the parent may have died before prctl

    pid = os.fork()
    if pid == 0:
        guard_pid = os.getppid()
        _die_with_parent(libc, signal.SIGKILL)
        if guard_pid != os.getppid():
            os._exit(_CANNOT_RUN)
        # exec keeps ignored signals ignored, whether Python or the program that started genkern (timeout, nohup)
        # ignores them.
        for number in signal.valid_signals():
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode())
            os._exit(_CANNOT_RUN)
    # Close this process's ends, so that the parent sees the end of a pipe when the program ends or closes it.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    _, status = os.waitpid(pid, 0)
    if told is not None:
        with contextlib.suppress(OSError):  # the parent may not read it any more
            os.write(told, str(status).encode())
    _exit_as(status)


if __name__ == "__main__":
    main()
