"""Server: answers the requests of one parent in the measured process. Requests and answers are JSON objects.

A request after which the device is unusable raises, which ends the process. If the device or the driver refuses a
request, its answer has "error". If a request reveals a bug of genkern, its answer has "bug" and "details".
"""

from __future__ import annotations

import dataclasses
import math
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from genkern.errors import one_line
from genkern.gemm.parameter import GROUP_SIZE_M
from genkern.kernels.refusal import is_out_of_memory, refused_by_device, refused_by_library
from genkern.ops.op import get_op
from genkern.profiling.aiter_finder import AiterFinder
from genkern.profiling.algorithms import Algorithms, Screening, announced
from genkern.profiling.checking.verdict import Checking, Subject
from genkern.profiling.clocks import AmdSmiClock, ThrottleGuard, open_clock
from genkern.profiling.cuda.icache import InstructionCacheFlush
from genkern.profiling.finals import Rounds, confirmation_rounds, run_finals, semifinal
from genkern.profiling.loaded_gemm import Call, Launchable, LoadedGemm
from genkern.profiling.rehearsal import CHECK, run_each
from genkern.profiling.same_bits.row_bits import RowChecking, compared
from genkern.profiling.timers import Sampler, Timer, make_timer
from genkern.timing.libraries import AITER, OURS, VENDOR, library_of
from genkern.timing.session import Session

# A sample is one graph of calls. Calls are repeated until the graph runs about this long, at most `_MAX_REPEATS` times,
# so that the 1 to 2 us of an event are some 2 % of the sample.
_SAMPLE_US = 100.0
_MAX_REPEATS = 32
# Long calls vary little: a sample needs no more calls than fit in this time, but at least one, whatever the budget
# says.
_ENOUGH_US = 1000.0
# Calls in one sample when each follows a flush of the instruction caches.
_FLUSHED_CALLS = 8
_GROUP = GROUP_SIZE_M.name

Answer = dict[str, Any]
# Sends a message before the answer: {"running": NAME} before a step that may hang or fault, and the answers for all but
# the last of several configs.
Tell = Callable[[Answer], None]


class Server:
    """Holds one open session at a time. `time_source`: name of a timer in cuda/timers.py."""

    def __init__(self, time_source: str) -> None:
        self._time_source = time_source
        self._timer: Timer | None = None
        self._guard = ThrottleGuard(None)
        self._flush: InstructionCacheFlush | None = None
        self._gemm: LoadedGemm | None = None
        self._finders: dict[str, Algorithms | AiterFinder] = {}
        self._best_us = math.inf
        # First measured time by binaries and run-time arguments other than GROUP_SIZE_M.
        self._first_us: dict[tuple[tuple[str, ...], frozenset[tuple[str, int]]], float] = {}
        self._next_copy = 0
        # True if the last request was a semi-final, so that the device is warm.
        self._hot = False
        self._checking: Checking | None = None
        self._rows: RowChecking | None = None

    def answer(self, request: dict[str, Any], tell: Tell) -> Answer:
        """Return the answer to `request`.

        "command" in the request is start, open, screen, semifinal, retime, check, rehearse, rows or alike.

        `tell` sends messages that precede the answer. Raises if the device is unusable.
        """
        try:
            return self._answer(request, tell)
        except Exception as error:
            if refused_by_device(error):
                raise
            return {"bug": one_line(error), "details": traceback.format_exc()}

    def _answer(self, request: dict[str, Any], tell: Tell) -> Answer:
        command = request["command"]
        hot, self._hot = self._hot, command == "semifinal"
        if command == "start":
            if request.get("on_device", True):
                self._start()
            return {}
        if command == "open":
            return self._open(Session.from_json(request["session"]))
        if self._gemm is None or self._timer is None:
            raise ValueError("no session is open")
        if command == "screen":
            self._best_us = min(self._best_us, request.get("best_us", math.inf))
            return self._screen_unit(self._gemm, self._timer, request, tell)
        if command == "retime":
            return self._retime(self._gemm, self._timer, request, tell, hot)
        if command == "semifinal":
            return self._semifinal(self._gemm, self._timer, request, tell)
        if command == "check":
            return self._check(self._gemm, request)
        if command == "rehearse":
            return self._rehearse(self._gemm, request["what"])
        if command in ("rows", "alike"):
            return self._compare(self._gemm, request)
        raise ValueError(f"unknown command {command!r}")

    def _start(self) -> None:
        """Create timer and clock unless they exist. The synchronisation that follows also creates the context."""
        import torch

        if self._timer is None:
            # CUPTI must be set up before the context exists.
            self._timer = make_timer(self._time_source)
            uuid = str(torch.cuda.get_device_properties(0).uuid)
            self._guard = ThrottleGuard(AmdSmiClock() if torch.version.hip else open_clock(uuid))

    def _open(self, session: Session) -> Answer:
        import torch

        self._start()
        self._gemm = self._checking = self._rows = None
        self._finders = {}
        self._best_us = math.inf
        self._first_us = {}
        torch.cuda.empty_cache()
        try:
            gemm = LoadedGemm(session)
            torch.cuda.synchronize()
        except Exception as error:
            return self._failed("", error)
        self._gemm = gemm
        return {"device": torch.cuda.get_device_name(0), "copies": gemm.copies, "torch": torch.__version__}

    def _screen_unit(self, gemm: LoadedGemm, timer: Timer, request: dict[str, Any], tell: Tell) -> Answer:
        """Screen the configs that share these binaries.

        Sends all answers but the last through `tell`, and returns the last.
        """
        import torch

        *before, last = Launchable.of_unit(request)
        for launchable in before:
            started_s = time.monotonic()
            answer = self._screen(gemm, timer, launchable)
            # An asynchronous fault is raised here, while the config that caused it is known.
            torch.cuda.synchronize()
            tell({**answer, **_took(started_s)})
        started_s = time.monotonic()
        return {**self._screen(gemm, timer, last), **_took(started_s)}

    def _screen(self, gemm: LoadedGemm, timer: Timer, launchable: Launchable) -> Answer:
        name = launchable.name
        siblings = launchable.binaries, frozenset(each for each in launchable.run_time.items() if each[0] != _GROUP)
        sibling_us = self._first_us.get(siblings, 0.0)
        if gemm.session.screening.leaves_siblings(sibling_us, self._best_us):
            ratio = sibling_us / self._best_us
            return {"config": name, "left_out": f"with another GROUP_SIZE_M it took {ratio:.1f} times the best time"}
        answer = self._sampled(gemm, timer, launchable)
        if samples_us := answer.get("samples_us"):
            self._first_us.setdefault(siblings, samples_us[-1])
        return answer

    def _sampled(self, gemm: LoadedGemm, timer: Timer, launchable: Launchable) -> Answer:
        name = launchable.name
        try:
            sample_us, hopeless = self._sample(gemm, timer, gemm.bind(launchable))
        except Exception as error:  # Triton's OutOfResources and the driver's refusals have no common base
            return self._failed(name, error)
        if message := gemm.left_in_counters():
            return {"config": name, "wrong": message}
        if hopeless:
            return {"config": name, "samples_us": [sample_us], "hopeless": True}
        self._best_us = min(self._best_us, sample_us)
        return {"config": name, "samples_us": [sample_us]}

    def _sample(self, gemm: LoadedGemm, timer: Timer, call: Call) -> tuple[float, bool]:
        """Return the microseconds of a call, and True if one launch was so slow that no sample followed."""
        import torch

        # The operands may have been filled in another stream than the one that uses them.
        torch.cuda.synchronize()
        budget = gemm.session.budget
        warmup = self._copies(max(1, budget.warmup))
        screening = gemm.session.screening
        if len(warmup) == 1 and screening.is_long(self._best_us) and budget.protocol == "genkern":
            launch_us = timer.launch_us(call, *warmup)
            return launch_us, screening.is_hopeless(launch_us, self._best_us)
        for copy in warmup:
            first_us = timer.rough_us(call, copy)
        if budget.protocol == "tune_gemm":
            return [timer.prepare(call, [copy])() for copy in self._copies(10)][-1], False
        # The first launch includes host time, so it does not rule a candidate out.
        if screening.is_hopeless(first_us, self._best_us):
            first_us = timer.launch_us(call, *self._copies(1))
            if screening.is_hopeless(first_us, self._best_us):
                return first_us, True
        return timer.prepare(call, self._copies(self._repeats(gemm, first_us)))(), False

    def _retime(self, gemm: LoadedGemm, timer: Timer, request: dict[str, Any], tell: Tell, hot: bool) -> Answer:
        import torch

        binds: dict[str, Callable[[], Call]] = {
            entry["config"]: partial(self._bound, gemm, entry) for entry in request["candidates"]
        }
        if request["vendor"]:
            binds[VENDOR] = gemm.vendor
        binds |= {name: partial(self._algorithm_call, gemm, name) for name in request.get("algorithms", ())}
        calls: dict[str, Call] = {}
        errors: dict[str, str] = {}
        fastest_us = self._best_us
        for name, bind in binds.items():
            tell({"running": name})
            try:
                call = bind()
                call(0)
                # A fault is raised here, while this call is known to be the cause.
                torch.cuda.synchronize()
                if self._best_us == math.inf:
                    # This process has screened nothing: another process did, or nothing was screened (--benchmark).
                    fastest_us = min(fastest_us, timer.launch_us(call, *self._copies(1)))
                calls[name] = call
            except Exception as error:
                errors[name] = self._failed(name, error)["error"]
        if libraries := request.get("lt"):
            raced = self._algorithms_to_race(gemm, timer, libraries, calls.get(VENDOR), tell)
            calls |= raced
            if self._best_us == math.inf:
                fastest_us = min([fastest_us, *(timer.launch_us(call, *self._copies(1)) for call in raced.values())])
        least, most, seed = request["min_rounds"], request["max_rounds"], request["seed"]
        rounds = Rounds(least, most, gemm.session.budget.finals_s, seed, hot=hot)
        if request.get("confirm"):
            rounds = confirmation_rounds(least, most, seed)
        copies = self._all_copies(gemm, fastest_us)
        samplers = {}
        for name, call in calls.items():
            tell({"running": name})
            try:
                samplers[name] = announced(name, self._sampler(gemm, timer, call, copies), tell)
            except Exception as error:
                errors[name] = self._failed(name, error)["error"]
        finals = run_finals(samplers, rounds, self._guard)
        errors |= finals.errors
        names = (each["config"] for each in request["candidates"] if each.get("same_bits") and request.get("compared"))
        both = {name: (calls[name], samplers[name]) for name in names if name not in errors}
        wrong = gemm.faults_of_timed(both, copies[-1], tell)
        return {
            "wrong": wrong,
            "samples_us": {name: samples for name, samples in finals.samples_us.items() if name not in errors},
            "discarded": finals.discarded,
            "errors": errors,
            "rounds": finals.rounds,
            "stopped": finals.stopped,
            "usual_mhz": self._guard.usual_mhz,
            "watts": self._guard.watts(),
        }

    def _semifinal(self, gemm: LoadedGemm, timer: Timer, request: dict[str, Any], tell: Tell) -> Answer:
        import torch

        calls: dict[str, Call] = {}
        fastest_us = math.inf
        for entry in request["candidates"]:
            name = entry["config"]
            tell({"running": name})
            try:
                call = gemm.bind(Launchable.of(entry))
                call(0)
                torch.cuda.synchronize()
                fastest_us = min(fastest_us, timer.launch_us(call, *self._copies(1)))
                calls[name] = call
            except Exception as error:
                self._failed(name, error)
        # Each sample takes as long as a sample of the finals. A device that idles between short samples stays cool and
        # runs at a higher clock.
        copies = self._all_copies(gemm, fastest_us)
        samplers: dict[str, Sampler] = {}
        for name, call in calls.items():
            tell({"running": name})
            try:
                samplers[name] = announced(name, timer.prepare(call, copies), tell)
            except Exception as error:
                self._failed(name, error)
        return {"fastest": semifinal(samplers, request["most"])}

    def _algorithms_to_race(
        self, gemm: LoadedGemm, timer: Timer, libraries: list[str], torch_call: Call | None, tell: Tell
    ) -> dict[str, Call]:
        """Screen the calls of `libraries` briefly and return the fastest ones, without calls that a library refuses."""
        binds: dict[str, Callable[[], Call]] = {}
        for library in libraries:
            tell({"running": library})
            self._finders.pop(library, None)
            try:
                finder = self._finder(gemm, library)
                binds |= {name: partial(finder.call, name) for name in finder.names()}
            except Exception as error:
                self._failed(library, error)
        if not binds:
            return {}
        screening = Screening(timer, self._copies, partial(self._repeats, gemm), tell, self._failed)
        return screening.best(binds, torch_call)

    def _finder(self, gemm: LoadedGemm, library: str) -> Algorithms | AiterFinder:
        """Return the object that lists a library's calls for the open session's problem."""
        if library not in self._finders:
            self._finders[library] = AiterFinder(gemm) if library == AITER else Algorithms(gemm)
        return self._finders[library]

    def _algorithm_call(self, gemm: LoadedGemm, name: str) -> Call:
        return self._finder(gemm, library_of(name)).call(name)

    def _sampler(self, gemm: LoadedGemm, timer: Timer, call: Call, copies: list[int]) -> Sampler:
        if not gemm.session.budget.icache_flush:
            return timer.prepare(call, copies)
        if self._flush is None:
            self._flush = InstructionCacheFlush(gemm.units)
        return timer.prepare_flushed(call, lambda: self._copies(_FLUSHED_CALLS), self._flush.launch)

    def _bound(self, gemm: LoadedGemm, entry: dict[str, Any]) -> Call:
        """Return the call of a finalist."""
        return gemm.bind(Launchable.of(entry))

    def _check(self, gemm: LoadedGemm, request: dict[str, Any]) -> Answer:
        import torch

        name = request["config"]
        try:
            if self._checking is None:
                session = gemm.session
                op = get_op(session.problem.op)
                what = session.problem, op, session.arch, gemm.module.reference, gemm.operands, session.seed
                self._checking = Checking(*what, session.budget.atol, session.budget.rtol)
            verdict = self._checking.check(self._subject(gemm, request))
            torch.cuda.synchronize()
        except Exception as error:
            answer = self._failed(name, error)
            # A check that ran out of memory says nothing about C.
            return {"config": name, "no_memory": answer["error"]} if is_out_of_memory(error) else answer
        return {"config": name, **dataclasses.asdict(verdict)}

    def _rehearse(self, gemm: LoadedGemm, what: str) -> Answer:
        """Run the check, or the library's algorithms, once.

        Of its results only the `Checking` object is kept. A refusal is ignored, since the real request meets it again.
        """
        if what == CHECK:
            self._check(gemm, {"config": VENDOR, "binaries": []})
        else:
            run_each(partial(Algorithms, gemm), self._copies(1)[0], self._failed)
        return {}

    def _compare(self, gemm: LoadedGemm, request: dict[str, Any]) -> Answer:
        """Compare rows of a config to the bit, or find which configs have the same bits as which library calls."""
        import torch

        try:
            if self._rows is None:
                problem = gemm.session.problem
                self._rows = RowChecking(problem, get_op(problem.op), gemm.operands, gemm.session.seed)
            answer = compared(self._rows, request, partial(self._subject, gemm))
            torch.cuda.synchronize()
        except Exception as error:
            return self._failed(request.get("config", VENDOR), error)
        return answer

    def _subject(self, gemm: LoadedGemm, request: dict[str, Any]) -> Subject:
        """Return the subject of a request. Libraries are checked on contiguous operands only."""
        launchable = Launchable.of(request)
        if launchable.name == VENDOR:
            return Subject(gemm.module.vendor, refuses=lambda operands: "libraries are checked on contiguous operands")
        if (library := library_of(launchable.name)) not in OURS:
            return self._finder(gemm, library).subject(launchable.name)
        return gemm.subject(launchable)

    def _failed(self, name: str, error: Exception) -> Answer:
        """Return the answer for a refusal, which leaves the device as it was.

        Raises `error` for a bug. After a fault of the device, the synchronisation raises.
        """
        import torch

        torch.cuda.synchronize()
        if not (refused_by_library(error) if name == VENDOR else refused_by_device(error)):
            raise error
        return {"config": name, "error": one_line(error)}

    def _all_copies(self, gemm: LoadedGemm, call_us: float) -> list[int]:
        """Return the copies used in one sample: all copies, equally often.

        Thus every call, including the first of a sample, uses the weights that were used longest ago.
        """
        repeats = -(-self._repeats(gemm, call_us) // gemm.copies) * gemm.copies
        return [i % gemm.copies for i in range(repeats)]

    def _repeats(self, gemm: LoadedGemm, call_us: float) -> int:
        call_us = max(call_us, 1.0)
        least = min(gemm.session.budget.screen_launches, max(1, int(_ENOUGH_US / call_us)))
        return max(least, min(_MAX_REPEATS, int(_SAMPLE_US / call_us)))

    def _copies(self, count: int) -> list[int]:
        """Return the numbers of the next `count` copies of the weights.

        All launches of this process take the copies in turn.
        """
        first, self._next_copy = self._next_copy, self._next_copy + count
        return list(range(first, first + count))


def _took(started_s: float) -> Answer:
    return {"took_ms": round((time.monotonic() - started_s) * 1000, 2)}
