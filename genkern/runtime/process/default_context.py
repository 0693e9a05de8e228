"""The Context of this process, which is created from environment variables on first use."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.drift import versions_here
from genkern.runtime.bundles.table import Choice
from genkern.runtime.calls.configuration import OFF, STRICT, WARN, configuration
from genkern.runtime.calls.context import Context, Watch, problem_text
from genkern.runtime.launch.prepared_call import LiveGpu
from genkern.runtime.process.bundle_sources import Sources
from genkern.runtime.process.online import Online
from genkern.runtime.process.size_recorder import SizeRecorder, record_folder

_LOG = logging.getLogger("genkern")


class Process:
    """The state of one process: a Context configured by `environ`, and the tuning at run time if it is on.

    A first call without a GPU needs no bundle, yet it reads the files that `environ` names and warns of files that
    cannot be used. A deployment can thus be rehearsed on a machine without a GPU.
    """

    def __init__(self, environ: Mapping[str, str], gpu_of: Callable[[int], LiveGpu | None]) -> None:
        said = configuration(environ)
        warn = functools.cache(lambda line: _LOG.warning("%s", line))
        for note in said.notes:
            warn(note)
        sources = Sources(warn, pins=said.pins)
        watches: list[Watch] = []
        self.online: Online | None = None
        folder = record_folder(said.record_dir)
        try:
            if said.record:
                watches.append(SizeRecorder(folder, warn, environ))
            if said.online:
                self.online = Online(folder, warn, said.online_options, environ, pins=said.pins)
                watches.append(self.online)
        except InputError as error:
            warn(str(error))

        def bundles_of(op: str) -> list[Bundle]:
            found = sources.bundles(said.paths_of(op))
            return [*found, *self.online.bundles()] if self.online else found

        every_path = [*said.paths, *itertools.chain.from_iterable(said.own_paths.values())]

        @functools.cache
        def check() -> None:
            for bundle in sources.check(every_path):
                devices = Counter(f"{winner.device} ({winner.arch})" for winner in bundle.winners)
                found = ", ".join(f"{count} winners for {device}" for device, count in devices.items())
                _LOG.info("%s: this machine has no GPU for its %s", bundle.where, found or "0 winners")

        def checked_gpu_of(index: int) -> LiveGpu | None:
            gpu = gpu_of(index)
            # If the machine has a GPU, a call on the CPU reads no files.
            if gpu is None and gpu_of(0) is None:
                check()
            return gpu

        if said.log_choices:
            show_log()
            watches.append(self._log_choice)
        self.context = Context(
            *(bundles_of, checked_gpu_of),
            watches=watches,
            only_proved=said.only_proved,
            here=versions_here,
            batch_invariant=said.batch_invariant,
        )
        if self.online:
            self.online.context = self.context

    def renew(self) -> None:
        """See genkern.tuned_gemm."""
        if self.online:
            self.online.agree()
        self.context.renew()

    def _log_choice(self, gpu: LiveGpu | None, problem: GemmProblem, choice: Choice | None) -> None:
        if choice is None:
            line = "no GPU: the library serves it"
        elif choice.winner is None or choice.bundle is None:
            sums = f" in the order {choice.sums}" if choice.sums else ""
            line = f"{choice.why}: the library serves it{sums}"
        else:
            sums = f" ({choice.call.sums})" if choice.call is not None and choice.call.sums else ""
            line = f"{choice.why}: {choice.winner.config_name} of {choice.bundle.where} serves it{sums}"
        self.context.say((problem, line), f"{problem_text(problem)}: {line}")


def default_context() -> Context:
    """Return the Context of this process."""
    return _process().context


def renew() -> None:
    """See genkern.tuned_gemm."""
    _process().renew()


class ModeSwitch:
    """A context manager that restores the mode that was set before `batch_invariant` was called."""

    def __init__(self, before: str) -> None:
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        default_context().switch(self._before)


def batch_invariant(mode: bool | str = True) -> ModeSwitch:
    """Serve every later call of this process, in all threads, so that a row has the same bits in any batch.

    All calls of a layer (equal types, N, K and layout) are served by kernels with one order of sums, which rows of
    `genkern --batch_invariant` have. docs/batch_invariance.md says what is promised.

    Args:
        mode (bool or str): True: a call without such a kernel raises InvarianceError. "warn": the library serves it,
            and a warning says so. False: off. The environment variable GENKERN_BATCH_INVARIANT sets the first mode.

    Returns:
        A context manager: `with batch_invariant():` restores the mode before at the end of the block.

    Raises:
        InputError: for another mode.
    """
    names = {True: STRICT, False: OFF, WARN: WARN}
    if not isinstance(mode, (bool, str)) or mode not in names:
        raise InputError(f"batch_invariant({str(mode)[:40]!r}): give True, False or {WARN!r}")
    context = default_context()
    before = context.mode.name
    context.switch(names[mode])
    return ModeSwitch(before)


def show_log(log: logging.Logger = _LOG) -> None:
    """Make genkern's log lines of level INFO visible, also if the program configures no logging, or does so later."""
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[genkern] %(message)s"))
        handler.addFilter(lambda record: not logging.getLogger().hasHandlers())
        log.addHandler(handler)


def _process() -> Process:
    global _made
    if _made is None:
        with _making:
            if _made is None:
                _made = Process(os.environ, _gpu_of)
    return _made


def _gpu_of(index: int) -> LiveGpu | None:
    import torch

    from genkern.runtime.launch.torch_gpu import TorchGpu

    return TorchGpu(index) if index >= 0 and torch.cuda.is_available() else None


_made: Process | None = None
_making = threading.Lock()


def _unlock() -> None:
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
