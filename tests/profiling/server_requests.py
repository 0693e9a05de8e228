"""A server of measurements on a simulated GPU, and who asks it."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest
from fake_gpu import FakeGemm, FakeGpu, name_of

from genkern.gemm.problem import GemmProblem
from genkern.profiling import server
from genkern.profiling.checking.verdict import Subject, Verdict
from genkern.profiling.finals import run_finals, semifinal
from genkern.profiling.server import Server
from genkern.runtime.backends.lt_api import LtError
from genkern.search.screening import screening_for
from genkern.timing.libraries import StoredAlgorithm
from genkern.timing.session import Budget, Session

SESSION = Session(
    "module.py", GemmProblem(64, 64, 64), "sm_90", 0, ".", Budget(finals_s=1e9), screening=screening_for(Budget())
)


LT = {us: StoredAlgorithm(131000, bytes([us] * 64)).name for us in (9, 12, 14, 15, 19, 30)}


class FakeAlgorithms:
    """Algorithms that take so many microseconds, by name; `broken` ones raise when they are called."""

    missing = ""
    broken: tuple[int, ...] = ()
    times: dict[str, float] = {name: us for us, name in LT.items()}

    def __init__(self, gemm: Any) -> None:
        if self.missing:
            raise LtError(self.missing)
        self._gemm = gemm

    def names(self) -> list[str]:
        return list(self.times)

    def call(self, name: str) -> Any:
        us = self.times[name]

        def call(copy: int) -> None:
            if us in self.broken:
                raise LtError("cublasLtMatmul: not supported")
            self._gemm.calls.append((name, copy % self._gemm.copies))
            self._gemm.gpu.run(name, float(us))

        return call

    def subject(self, name: str) -> Subject:
        return Subject(lambda operands: self.call(name)(0))


def simulated(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The GPU that servers measure on from here on."""
    gpu = FakeGpu()
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    monkeypatch.setattr(server, "LoadedGemm", FakeGemm)
    monkeypatch.setattr(server, "open_clock", lambda *_: None)
    # However busy the machine is that simulates it: no time passes in finals, so that they end by their rounds.
    monkeypatch.setattr(server, "run_finals", partial(run_finals, now=lambda: 0.0))
    monkeypatch.setattr(server, "semifinal", partial(semifinal, now=lambda: gpu.host_us * 1e-6))
    monkeypatch.setattr(FakeGemm, "the_gpu", gpu, raising=False)
    monkeypatch.setattr(server, "Algorithms", FakeAlgorithms)
    monkeypatch.setattr(server, "Checking", FakeChecking)
    monkeypatch.setattr(FakeChecking, "made", 0)
    return gpu


class FakeChecking:
    """Launches what it is to check once, and finds it right."""

    made = 0

    def __init__(self, *_: object) -> None:
        type(self).made += 1

    def check(self, subject: Subject) -> Verdict:
        subject.launch({})
        return Verdict(True, "", 0.25, 0.5, ("exact",), 1.0)


class Parent:
    """Asks a server, and keeps what it tells before its last answer: who is running, and other answers."""

    def __init__(self, session: Session = SESSION) -> None:
        self.server = Server("cudagraph")
        self.told: list[str] = []
        self.answers: list[dict[str, Any]] = []
        self.opened = self.ask("open", session=session.to_json())

    @property
    def gemm(self) -> Any:
        return self.server._gemm

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        return self.server.answer({"command": command, **values}, self._tell)

    def screen(self, name: str) -> dict[str, Any]:
        answer = self.ask("screen", configs=[name_of(name)], binaries=[name])
        # Of the host's clock, which is a real one.
        answer.pop("took_ms", None)
        return answer

    def _tell(self, said: dict[str, Any]) -> None:
        if "running" in said:
            self.told.append(said["running"])
        else:
            self.answers.append(said)

    def retime(self, *names: str, vendor: bool = True, cublaslt: bool = False, **more: Any) -> dict[str, Any]:
        candidates = [{"config": name_of(name), "binaries": [name], "same_bits": True} for name in names]
        limits = {"min_rounds": 10, "max_rounds": 20, "seed": 0}
        libraries = ["cublaslt"] if cublaslt else []
        return self.ask("retime", candidates=candidates, vendor=vendor, lt=libraries, **limits, **more)
