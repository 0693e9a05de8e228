"""Session: what the measured process must know besides the candidates; and the profiler protocol."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from genkern.problem import GemmProblem
from genkern.records import Candidate, Measurement


@dataclass(frozen=True)
class Budget:
    """How much to measure: launches and rounds per candidate, and how long one may take.

    `protocol` is "genkern" (screen cheaply, re-time finalists round-robin) or "tune_gemm" (ten launches,
    the last one counts). `rotating_mb` is the size in MiB (2**20 bytes) that the rotated copies of A and B
    together must exceed to stay cold in the last-level cache.
    """

    protocol: str = "genkern"
    warmup: int = 1
    screen_launches: int = 4
    final_rounds: int = 15
    finalists: int = 12
    timeout_s: float = 10.0
    rotating_mb: float = 256.0


@dataclass(frozen=True)
class Session:
    """One problem on one device. `work_dir` holds files of this session only."""

    module_path: str
    problem: GemmProblem
    arch: str
    device_index: int
    work_dir: str
    budget: Budget
    init_type: str = "randn"
    seed: int = 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Session:
        values: dict[str, Any] = json.loads(text)
        values["problem"] = GemmProblem(**values["problem"])
        values["budget"] = Budget(**values["budget"])
        return cls(**values)


class Profiler(Protocol):
    """One way to get kernel times. `time_source` labels every number that it returns."""

    time_source: str

    def screen(self, session: Session, candidates: Iterable[Candidate]) -> Iterator[Measurement]:
        """Yield one Measurement per candidate, in any order; `candidates` may still be growing (a farm)."""

    def retime(self, session: Session, finalists: Sequence[Candidate]) -> list[Measurement]:
        """Time the finalists against each other, round-robin in shuffled order."""

    def close(self) -> None:
        """Stop every process that this profiler started."""
