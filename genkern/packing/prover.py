"""Prover: checks calls of a bundle on a GPU of this machine, in a subprocess, and reports which are right."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from genkern.errors import BugError, InputError, ProfilerError
from genkern.file_io import write_whole
from genkern.gemm.gpu import arch_vendor
from genkern.gemm.gpus import DetectedDevice
from genkern.gemm.records import Check
from genkern.kernels.generate import generate
from genkern.ops.op import check_problem
from genkern.packing.parallel_checks import Checks, WantedCheck, made_checks, process_count
from genkern.packing.proof import CallProof, Place, has_no_room, other_bits, sizes_to_prove, with_proofs
from genkern.packing.proof_store import PROOFS, ProofStore, proof_key
from genkern.profiling.device_rows import DeviceRows
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.python_child import module_argv
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.records import Contents
from genkern.runtime.bundles.untuned_m import Relatives
from genkern.runtime.routed.row_kernels import needed
from genkern.timing.device_lock import DeviceLock
from genkern.timing.profiler import usual_timer
from genkern.timing.session import Budget, Session

SERVER = module_argv("genkern.packing.bundle_server")
# Limit per M. Filling operands of several gigabytes takes seconds.
PROOF_TIMEOUT_S = 20.0
# If an M's operands do not fit on the GPU, smaller M are tried up to this number of times, halving the distance to the
# last M that fitted.
_MOST_HALVED = 12
# Limit of the elements of A or C for the comparison of rows: it needs further tensors of the same size.
_MOST_COMPARED = 2**28
# The message of a check that is in the store.
_KEPT = "kept"


class RowComparer(Protocol):
    """Compares rows to the bit on a GPU (DeviceRows)."""

    def check(self, session: Session, name: str, candidate: Any, reference: Any) -> Check: ...


@dataclass(frozen=True)
class PackedCandidate:
    """A call of a winner in a bundle's file, in the form in which it is requested from the measured process.

    name: the config's name.
    where: path of the bundle.
    place: indices of the winner and of the call.
    same_bits: True if two calls must give equal bits.
    """

    name: str
    where: str
    place: Place
    same_bits: bool = True

    @property
    def request(self) -> dict[str, Any]:
        winner, call = self.place
        packed = {"bundle": self.where, "winner": winner, "call": call}
        return {"config": self.name, "binaries": [], "same_bits": self.same_bits, "packed": packed}


@dataclass(frozen=True)
class Sessions:
    """Creates sessions of problems on GPU number `index` of this machine, with modules in `folder`."""

    arch: str
    index: int
    folder: Path

    def of(self, winner: Result, m: int, budget: Budget) -> Session:
        """Return the session of the winner's problem with M = `m`. Raise InputError if the format refuses it."""
        problem = replace(winner.problem, M=m)
        check_problem(problem, self.arch)
        text = generate(problem, [], self.arch).measured_text
        path = self.folder / f"packed_{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
        if not path.exists():
            # Whole, since the checks of several processes may need the same module.
            write_whole(str(path), text)
        return Session(str(path), problem, self.arch, self.index, str(self.folder), budget)


def server_on(device: DetectedDevice, cache_dir: str, log_dir: str, number: int = 0) -> SupervisedProfiler:
    """Return measured process `number` for bundles on a GPU."""
    time_source = usual_timer(arch_vendor(device.arch))
    device_lock = DeviceLock(number=number)
    return SupervisedProfiler(time_source, device.index, cache_dir, log_dir, harness=SERVER, device_lock=device_lock)


@dataclass(frozen=True)
class Proofs:
    """The result of proving a bundle.

    contents: the contents with their proofs.
    wrong: number of wrong calls and kernels.
    bugs: number of bugs in genkern.
    ended: why it ended early; "" if it did not.
    """

    contents: Contents
    wrong: int = 0
    bugs: int = 0
    ended: str = ""

    @property
    def status(self) -> int:
        """The command's exit status: 0 if nothing that was checked is wrong."""
        return 3 if self.bugs else 1 if self.wrong else 0


class Prover:
    """Proves the calls of a bundle for one device.

    checks: checks calls on the GPU.
    more_checks: starts measured process number n of the same GPU, for n from 1; None: one check follows the other.
    sessions: creates the sessions of problems.
    bundle, where: the bundle and the path of its file.
    device: name of the device; winners for other devices are skipped.
    say: prints a line about what is wrong.
    rows: compares rows of batch-invariant winners to the bit, with themselves in other batches, and with all other
        calls of their layer. None skips that.
    store: remembers checks that have passed. None makes every check.
    timeout_s: seconds for one check.
    again: also prove calls that are proved already, ignoring the store.
    """

    def __init__(
        self,
        checks: Checks,
        sessions: Sessions,
        bundle: Bundle,
        where: str,
        device: str,
        say: Callable[[str], None],
        *,
        more_checks: Callable[[int], Checks] | None = None,
        rows: RowComparer | None = None,
        store: ProofStore | None = None,
        timeout_s: float = PROOF_TIMEOUT_S,
        again: bool = False,
    ) -> None:
        self._checks = checks
        self._more_checks = more_checks
        # The results of checks that several processes made, by the call's place and M.
        self._made: dict[tuple[Place, int], Check | Exception] = {}
        self._store = store
        self._found_in_store = 0
        self._compares = rows
        # By layer: the digests of rows, by each call's place and M.
        self._bits: dict[object, dict[tuple[Place, int], str]] = {}
        self._sessions = sessions
        self._bundle = bundle
        self._where = where
        self._device = device
        self._say = say
        # Without rotating copies of the weights, since nothing is timed.
        self._budget = Budget(rotating_mb=0.0, timeout_s=timeout_s)
        self._again = again
        self._calls: dict[Place, CallProof] = {}
        self._rows: dict[tuple[str, str], bool] = {}
        self._wrong = self._bugs = 0

    def prove(self) -> Proofs:
        """Prove all calls and row kernels for the device."""
        ended = ""
        here = self._sessions.arch, self._device
        mine = [
            (place, winner) for place, winner in enumerate(self._bundle.winners) if (winner.arch, winner.device) == here
        ]
        try:
            if self._more_checks is not None:
                self._check_at_once(mine, self._more_checks)
            for place, winner in mine:
                self._prove_winner(place, winner)
        except ProfilerError as error:
            ended = str(error)
        self._compare_layers()
        if self._found_in_store:
            self._say(f"{self._found_in_store} checks were taken from an earlier pack or verify")
        return Proofs(with_proofs(self._bundle.contents, self._calls, self._rows), self._wrong, self._bugs, ended)

    def _check_at_once(self, winners: Sequence[tuple[int, Result]], more_checks: Callable[[int], Checks]) -> None:
        """Make the checks of all calls in several processes at the same time, and keep the results."""
        wanted = [
            WantedCheck(
                (place, number), replace(winner.problem, M=m), partial(self._proved_once, winner, (place, number), m)
            )
            for place, winner in winners
            for number, call in enumerate(winner.calls)
            if self._again or not call.is_proved
            for m in sizes_to_prove(winner, call)
        ]
        with contextlib.ExitStack() as stack:
            processes = [self._checks]
            for number in range(1, process_count(len(wanted))):
                processes.append(more_checks(number))
                stack.callback(processes[-1].close)
            for each, result in made_checks(wanted, processes):
                if isinstance(result, ProfilerError):
                    raise result
                # The processes shared the GPU's memory. If it was too small, one process alone makes the check again.
                if isinstance(result, Exception) or not has_no_room(result):
                    self._made[each.place, each.problem.M] = result

    def _prove_winner(self, place: int, winner: Result) -> None:
        contents = self._bundle.contents
        for number, call in enumerate(winner.calls):
            if self._again or not call.is_proved:
                what = f"{winner.problem.size} {winner.config_name} for M from {call.least_m} to {call.most_m}"
                with self._faults_told(what):
                    self._calls[place, number] = proof = self._call(winner, (place, number))
                    if proof.wrong:
                        self._tell(f"{what}: {proof.wrong}")
        for kernel in needed(winner.problem):
            key = winner.arch, kernel.name
            proved = key in self._rows or (key in contents.proved_rows and not self._again)
            if key in contents.row_kernels and not proved:
                with self._faults_told(kernel.name):
                    self._prove_row(place, winner, key)

    @contextlib.contextmanager
    def _faults_told(self, what: str) -> Iterator[None]:
        """Report errors that are not the kernel's fault; the call stays without a proof."""
        try:
            yield
        except BugError as bug:
            self._bugs += 1
            self._say(f"not proved: {what}: a bug in genkern: {bug}")
        except InputError as error:
            self._say(f"not proved: {what}: {error}")

    def _tell(self, line: str) -> None:
        self._wrong += 1
        self._say(f"left out: {line}")

    def _call(self, winner: Result, place: Place) -> CallProof:
        call = winner.calls[place[1]]
        request = PackedCandidate(winner.config_name, self._where, place).request
        proved: list[int] = []
        for m in sizes_to_prove(winner, call):
            check = self._result(winner, place, m)
            if check.passed:
                if differs := self._other_bits(winner, place, m):
                    return CallProof((), False, f"at M = {m}: {differs}")
                proved.append(m)
            elif has_no_room(check):
                self._say(
                    f"not proved: {winner.problem.size} {winner.config_name} at M = {m}: its operands do not fit here"
                )
                return CallProof((*proved, *self._below(winner, proved[-1:], m, request)), False)
            else:
                return CallProof((), False, f"at M = {m}: {' '.join(check.message.split())}")
        return CallProof(tuple(proved), bool(proved))

    def _result(self, winner: Result, place: Place, m: int) -> Check:
        """Return the check of a call for `m` rows, or raise the exception that it raised."""
        found = self._made.pop((place, m), None)
        if isinstance(found, Exception):
            raise found
        check = self._proved_once(winner, place, m, self._checks) if found is None else found
        self._found_in_store += check.message == _KEPT
        return check

    def _proved_once(self, winner: Result, place: Place, m: int, checks: Checks) -> Check:
        """Return the check of a call for `m` rows: from the store if the same code has passed it, else made now."""
        session = self._sessions.of(winner, m, self._budget)
        request = PackedCandidate(winner.config_name, self._where, place).request
        if self._store is None:
            return checks.check_request(session, winner.config_name, request)
        call = winner.calls[place[1]]
        images = [self._bundle.image(sha256) for sha256 in call.binaries]
        key = proof_key(winner, call, session, images)
        if self._store.has(key) and not self._again:
            return Check(winner.config_name, True, 0.0, 0.0, session.problem.size, "gpu", _KEPT)
        check = checks.check_request(session, winner.config_name, request)
        if check.passed:
            self._store.add(key)
        return check

    def _other_bits(self, winner: Result, place: Place, m: int) -> str:
        """Return how rows of a call differ from themselves in other batches; "" if they do not.

        The bits of equal rows are kept for _compare_layers.
        """
        problem = winner.problem
        elements = m * max(problem.N, problem.K) * problem.batch
        if self._compares is None or not winner.batch_invariant or elements > _MOST_COMPARED:
            return ""
        candidate = PackedCandidate(winner.config_name, self._where, place)
        check = self._compares.check(self._sessions.of(winner, m, self._budget), winner.config_name, candidate, None)
        if check.passed:
            layer = replace(problem, M=1), winner.compute_units
            self._bits.setdefault(layer, {})[place, m] = check.row_bits
        return "" if check.passed or check.lost else " ".join(check.message.split())

    def _compare_layers(self) -> None:
        """Leave out calls whose rows have other bits than the rows of most calls of their layer."""
        for bits in self._bits.values():
            for place, m in other_bits(bits):
                winner = self._bundle.winners[place[0]]
                what = f"{winner.problem.size} {winner.config_name} at M = {m}"
                wrong = f"rows have other bits than with most kernels of the order of sums {winner.order}"
                self._calls[place] = CallProof((), False, f"at M = {m}: {wrong}")
                self._tell(f"{what}: {wrong}")
        if self._bits:
            count = sum(map(len, self._bits.values()))
            self._say(f"rows compared to the bit: {len(self._bits)} layers, {count} calls, each in several batches")

    def _below(self, winner: Result, proved: list[int], m: int, request: dict[str, Any]) -> list[int]:
        """Return, as a list, an M that passes between the last proved M and `m`; [] if none is found.

        The operands of `m` do not fit on the GPU. The distance to the last proved M is halved until a check passes, at
        most `_MOST_HALVED` times.
        """
        step = Relatives.of(winner.problem).step
        for _ in range(_MOST_HALVED if proved else 0):
            m = proved[0] + (m - proved[0]) // 2 // step * step
            if m <= proved[0]:
                break
            if self._checked(winner, m, request).passed:
                return [m]
        return []

    def _prove_row(self, place: int, winner: Result, key: tuple[str, str]) -> None:
        """Prove a row kernel that runs beside the winner's product."""
        _, name = key
        check = self._checked(
            winner,
            winner.problem.M,
            {"command": "row_kernel", "config": name, "bundle": self._where, "winner": place},
        )
        if check.passed or not has_no_room(check):
            self._rows[key] = check.passed
            if not check.passed:
                self._tell(f"{name}: {' '.join(check.message.split())}")

    def _checked(self, winner: Result, m: int, request: dict[str, Any]) -> Check:
        return self._checks.check_request(self._sessions.of(winner, m, self._budget), request["config"], request)


def proofs_text(contents: Contents, seconds: float | None) -> str:
    """Return the number of proved calls and kernels as a line; `seconds` is None if nothing was proved in this run."""
    proved, of = contents.proofs
    if seconds is not None:
        return f"proved: {proved} of {of} calls and kernels, in {seconds:.1f} s"
    if proved == of:
        return f"proved: all {of} calls and kernels"
    return f"proved: {proved} of {of} calls and kernels; `genkern verify` on their GPU proves the others"


def devices_for(contents: Contents, detected: Sequence[DetectedDevice]) -> list[DetectedDevice]:
    """Return the first GPU of each kind of this machine that the bundle is for."""
    wanted = {(winner.arch, winner.device) for winner in contents.winners}
    kinds = {(device.arch, device.name): device for device in reversed(detected)}
    return [device for kind, device in kinds.items() if kind in wanted]


def prove_on(
    device: DetectedDevice,
    bundle: Bundle,
    where: str,
    cache: Path,
    folder: Path,
    say: Callable[[str], None],
    *,
    timeout_s: float,
    again: bool = False,
) -> Proofs:
    """Prove the bundle on a GPU of this machine, with modules and logs in `folder`. Raises OutputError."""
    sessions = Sessions(device.arch, device.index, folder)
    with contextlib.closing(server_on(device, str(cache), str(folder))) as checks:
        rows = DeviceRows(checks)
        store = ProofStore(cache / PROOFS)
        prover = Prover(
            *(checks, sessions, bundle, where, device.name, say),
            more_checks=partial(server_on, device, str(cache), str(folder)),
            rows=rows,
            store=store,
            timeout_s=timeout_s,
            again=again,
        )
        return prover.prove()
