"""Context: finds what serves a problem on a GPU, and logs each fact about bundles, GPUs and problems once."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from genkern.errors import InvarianceError, LaunchError, one_line
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import on_arch
from genkern.ops.fields import own_text
from genkern.ops.op import get_op
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.drift import Here, drift_text, library_version, no_versions
from genkern.runtime.bundles.table import Choice, InvariantTable, Table
from genkern.runtime.bundles.untuned_m import Rule, by_measured_times, by_times, nearest_winner
from genkern.runtime.calls.configuration import OFF, STRICT
from genkern.runtime.launch.prepared_call import LiveGpu
from genkern.runtime.launch.workspaces import WorkspaceUsage

_LOG = logging.getLogger("genkern")
T = TypeVar("T")

# What to do with a problem that no winner serves, and the reason why none does: raise, or leave it to the library.
Leave = Callable[[GemmProblem, str], None]

# Called when a problem is looked up: with its GPU, the problem and the choice. On a CPU, GPU and choice are None.
# Callers cache what they find, so that a problem is reported once until the bundles are read again.
Watch = Callable[["LiveGpu | None", GemmProblem, "Choice | None"], None]


class Forgetful(Protocol):
    """An object that caches results of look-ups and can drop them."""

    def forget(self) -> None: ...


class Mode:
    """Whether calls must be batch-invariant: `name` is one of the MODES of genkern.runtime.calls.configuration.

    Each switch creates a new object, so that comparing by identity tells whether a switch has happened in between.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_on = name != OFF


class Context:
    """Finds winners in bundles for the GPUs of this process.

    bundles_of: returns the bundles of a number format.
    gpu_of: returns the GPU with PyTorch's index; None for a CPU.
    rule: chooses the winner of another M that serves an M that was not tuned.
    watches: functions that are called with every problem that is looked up.
    only_proved: the library serves problems whose packed calls have no proof.
    here: returns the versions of the software of this process for an architecture. A bundle that was measured with
        other versions is logged.
    batch_invariant: name of the initial Mode.
    """

    def __init__(
        self,
        bundles_of: Callable[[str], Sequence[Bundle]],
        gpu_of: Callable[[int], LiveGpu | None],
        rule: Rule = by_times,
        watches: Sequence[Watch] = (),
        *,
        only_proved: bool = False,
        here: Here = no_versions,
        batch_invariant: str = OFF,
    ) -> None:
        self._bundles_of = bundles_of
        self._gpu_of = gpu_of
        self._rule = rule
        self._watches = tuple(watches)
        self._only_proved = only_proved
        self._here = here
        self._gpus: dict[int, LiveGpu | None] = {}
        self._tables: dict[tuple[str, int], Table] = {}
        self._invariant: dict[tuple[str, int], InvariantTable] = {}
        self._said: set[object] = set()
        self._listeners: list[Callable[[], None]] = []
        self._switches: list[Callable[[], None]] = []
        self.mode = Mode(batch_invariant)
        self._lock = threading.RLock()
        _contexts.add(self)

    def gpu(self, index: int) -> LiveGpu | None:
        """Return the GPU with PyTorch's index; None for a CPU."""
        with self._lock:
            if index not in self._gpus:
                self._gpus[index] = self._gpu_of(index)
            return self._gpus[index]

    def workspaces(self) -> list[tuple[int, WorkspaceUsage]]:
        """Return, for each GPU that calls have used, its index and the workspaces that calls keep on it."""
        with self._lock:
            return [(index, gpu.workspaces.kept()) for index, gpu in self._gpus.items() if gpu is not None]

    def find(self, gpu: LiveGpu, problem: GemmProblem, *, kernels_alone: bool = False) -> Choice:
        """Return what serves the problem on the GPU. If the look-up raises, log one warning and return the library.

        With `kernels_alone`, batch-invariant look-ups return kernels only, no algorithm of the library.
        """

        def found(problem: GemmProblem) -> Choice:
            if self.mode.is_on:
                return self._invariant_table(gpu, problem.op).find(problem, kernels_alone=kernels_alone)
            return self._table(gpu, problem.op).find(problem)

        return self._asked(found, gpu, problem, Choice("looking for a winner failed"))

    def tuned(self, gpu: LiveGpu, problem: GemmProblem) -> list[tuple[int, str]]:
        """Return each M that the problem is tuned for, with the winning config, "vendor" or "tie"."""

        def tuned(problem: GemmProblem) -> list[tuple[int, str]]:
            made = self._invariant_table if self.mode.is_on else self._table
            return made(gpu, problem.op).tuned(problem)

        return self._asked(tuned, gpu, problem, [])

    def is_tuned(self, gpu: LiveGpu, problem: GemmProblem) -> bool:
        """Return True if the problem has winners for any M, whether or not calls must be batch-invariant."""
        return self._asked(lambda problem: bool(self._table(gpu, problem.op).tuned(problem)), gpu, problem, False)

    def sums(self, gpu: LiveGpu, problem: GemmProblem) -> str:
        """Return the order of sums that all calls of the problem share for any M.

        "" if calls need not be batch-invariant, or if the problem has no winners with one order of sums.
        """

        def sums(problem: GemmProblem) -> str:
            layer = self._invariant_table(gpu, problem.op).layer(problem) if self.mode.is_on else None
            return "" if layer is None else layer.sums

        return self._asked(sums, gpu, problem, "")

    def _asked(self, question: Callable[[GemmProblem], T], gpu: LiveGpu, problem: GemmProblem, failed: T) -> T:
        """Return `question(problem)`; if it raises, log one warning and return `failed`.

        A damaged or malicious bundle, or a bug in genkern, must not stop the program that makes the call.
        """
        try:
            with self._lock:
                return question(on_arch(problem, gpu.identity.arch))
        except Exception as error:
            line = f"looking for a winner failed ({one_line(error)}): the library serves it"
            self.say(("failed", problem.op, type(error)), f"{problem_text(problem)}: {line}", logging.WARNING)
            return failed

    def switch(self, name: str) -> None:
        """Change the Mode of all later calls to the one named `name`."""
        with self._lock:
            self.mode = Mode(name)
            for switched in list(self._switches):
                switched()

    def on_switch(self, switched: Callable[[], None]) -> Callable[[], None]:
        """Call `switched` after every switch of the Mode. Return a function that unregisters it."""
        self._switches.append(switched)
        return lambda: self._switches.remove(switched)

    def leave(self, problem: GemmProblem | str, why: str) -> None:
        """Log that the library serves the problem, and why.

        Raise InvarianceError if calls must be batch-invariant, since the library is not. In the mode "warn" log a
        warning instead.
        """
        mode = self.mode
        if mode.name == STRICT:
            self.refuse(problem, why)
        if mode.is_on:
            line = f"{_named(problem)}: {why}: the library serves it, which is not batch invariant"
            self.say((problem, why), line, logging.WARNING)
        else:
            self.say(problem, f"{why}: the library serves it")

    def refuse(self, problem: GemmProblem | str, why: str) -> None:
        """Raise InvarianceError: the problem has no batch-invariant kernel."""
        raise InvarianceError(f"{_named(problem)}: no batch-invariant kernel: {why}")

    def row_kernel(self, gpu: LiveGpu, op: str, name: str) -> tuple[Bundle, str] | None:
        """Return a bundle with the GPU's row kernel `name`, and the sha256 of its binary; None if there is none.

        A row kernel runs beside products (genkern.runtime.routed.row_kernels).
        """
        key = gpu.identity.arch, name
        with self._lock:
            bundles = self._bundles_of(op)
        if self._only_proved:
            bundles = [bundle for bundle in bundles if key in bundle.contents.proved_rows]
        found = ((bundle, bundle.contents.row_kernels.get(key)) for bundle in bundles)
        return next(((bundle, sha256) for bundle, sha256 in found if sha256 is not None), None)

    def _invariant_table(self, gpu: LiveGpu, op: str) -> InvariantTable:
        key = op, gpu.index
        if key not in self._invariant:
            rule = by_measured_times if get_op(op).groups is None else nearest_winner
            bundles = self._bundles_of(op)
            library = library_version(self._here(gpu.identity.arch)) if bundles else None
            self._invariant[key] = table = InvariantTable(
                bundles, gpu.identity, rule, only_proved=self._only_proved, library=library
            )
            for problem in table.others:
                line = "winners with a second order of sums are not called: name one bundle, or pack rows of one run"
                self.say((problem, "others"), f"N = {problem.N}, K = {problem.K} ({op}): {line}", logging.WARNING)
        return self._invariant[key]

    def _table(self, gpu: LiveGpu, op: str) -> Table:
        key = op, gpu.index
        if key not in self._tables:
            rule = self._rule if get_op(op).groups is None else nearest_winner
            bundles = self._bundles_of(op)
            here = self._here(gpu.identity.arch) if bundles else {}
            self._tables[key] = table = Table(
                bundles, gpu.identity, rule, only_proved=self._only_proved, library=library_version(here)
            )
            for bundle in bundles:
                self._say_drift(bundle, gpu, here)
            if doubled := sum(winner.problem.op == op for winner in table.doubled):
                self.say((key, "doubled"), f"problems of {op} with two winners (the faster one is called): {doubled}")
            if table.predicted:
                said = f"kernels of {op} that the cost model chose without a measurement: {table.predicted}"
                self.say((key, "predicted"), said)
            if table.elsewhere and not len(table):
                said = "; ".join(sorted(table.elsewhere))
                self.say((key, "elsewhere"), f"the bundles are for {said}, not for {gpu.identity.name}")
        return self._tables[key]

    def _say_drift(self, bundle: Bundle, gpu: LiveGpu, here: Mapping[str, str]) -> None:
        said, of_times = drift_text(filter(gpu.identity.has, bundle.winners), here)
        if said:
            level = logging.WARNING if of_times else logging.INFO
            self.say(("drift", bundle.where), f"{bundle.where}: measured with {said}", level)

    @property
    def is_watched(self) -> bool:
        """True if any watch is registered. Watches are called with every problem, also without a winner."""
        return bool(self._watches)

    def watched(self, gpu: LiveGpu | None, problem: GemmProblem, choice: Choice | None) -> None:
        """Call every watch with the problem and its choice."""
        problem = problem if gpu is None else on_arch(problem, gpu.identity.arch)
        for watch in self._watches:
            watch(gpu, problem, choice)

    def capturing(self, index: int) -> bool:
        """Return True if launches on the GPU with this index are being captured into a CUDA or HIP graph."""
        try:
            gpu = self.gpu(index)
            return gpu is not None and gpu.driver.capture(gpu.stream()) != 0
        except LaunchError:
            return False

    def on_change(self, forget: Callable[[], None]) -> Callable[[], None]:
        """Call `forget` whenever the bundles are read again. Return a function that unregisters it."""
        self._listeners.append(forget)
        return lambda: self._listeners.remove(forget)

    def let_forget(self, kept: Forgetful) -> None:
        """Call `kept.forget` whenever the bundles are read again, without keeping `kept` alive.

        A program may patch its model in every step, and every patch creates such objects.
        """
        weak = weakref.ref(kept)

        def forget() -> None:
            if (live := weak()) is not None:
                live.forget()

        weakref.finalize(kept, self.on_change(forget)).atexit = False

    def renew(self) -> None:
        """Read the bundles again: later calls use winners that were added since."""
        with self._lock:
            self._tables.clear()
            self._invariant.clear()
            for forget in list(self._listeners):
                forget()

    def say(self, subject: object, line: str, level: int = logging.INFO) -> None:
        """Log `line` about `subject`, for example a problem. Later lines about the same subject are dropped."""
        with self._lock:
            if subject in self._said:
                return
            self._said.add(subject)
        _LOG.log(level, "%s%s", f"{problem_text(subject)}: " if isinstance(subject, GemmProblem) else "", line)


_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


def _unlock() -> None:
    # A thread of the parent may have held the lock at the fork. It does not exist in the child, so it would never
    # release it.
    for context in list(_contexts):
        context._lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock)


def _named(subject: GemmProblem | str) -> str:
    return problem_text(subject) if isinstance(subject, GemmProblem) else subject


def problem_text(problem: GemmProblem) -> str:
    """Return the problem on one line for messages."""
    types = f"{problem.dtype_a} x {problem.dtype_b} -> {problem.dtype_c}"
    more = [
        word
        for word in (problem.layout, "bias" * problem.bias, problem.activation, own_text(problem.own))
        # TN is the layout of nn.Linear, so it is not worth a word.
        if word not in ("", "none", "TN")
    ]
    return " ".join([problem.size, problem.op, types, *more])
