"""Session: what the measured process must know besides the candidates."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.timing.libraries import ALL, parse_libraries

# Of AITER's gradlib for 16-bit outputs, relative and absolute.
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Budget:
    """How much to measure: launches and rounds per candidate, and how long one may take.

    `protocol` is "genkern" (screen cheaply, re-time finalists round-robin) or "tune_gemm" (ten launches,
    the last one counts). The finals have `min_rounds` to `final_rounds` rounds, and no more than `min_rounds`
    after `finals_s` seconds, which is enough to choose by; the rounds that say how fast the chosen one is come after
    (profiling/finals.py). `timeout_s` limits a candidate's screening, and each of its turns in the finals.
    `rotating_mb` is the size in MiB (2**20 bytes) that the rotated copies of B together must exceed to stay
    cold in the last-level cache. `icache_flush` makes code cold too in the finals (see `icache`). `exhaustive`
    measures all group sizes of a binary, also where the first is far beyond the best, and all copies of a binary.
    `libraries` may win (genkern.timing.libraries), names with commas between them. `atol` and `rtol` are the tolerance
    by which outputs of checks are counted as AITER counts them, beside the proof: |C - ref| <= atol + rtol |ref|.
    """

    protocol: str = "genkern"
    warmup: int = 1
    screen_launches: int = 4
    final_rounds: int = 60
    min_rounds: int = 10
    finals_s: float = 0.5
    finalists: int = 12
    timeout_s: float = 10.0
    rotating_mb: float = 256.0
    icache_flush: bool = False
    exhaustive: bool = False
    libraries: str = parse_libraries(ALL)
    atol: float = TOLERANCE
    rtol: float = TOLERANCE

    def may_win(self, library: str) -> bool:
        """Whether this library may win."""
        return library in self.libraries.split(",")

    @property
    def every(self) -> bool:
        """Whether all candidates are measured, as tune_gemm does, whatever is known of them before."""
        return self.exhaustive or self.protocol == "tune_gemm"


@dataclass(frozen=True)
class Screening:
    """What a screening leaves out, by the best sample so far; None: nothing for that reason.

    A candidate is hopeless, and not timed further, when one launch of it takes more than `hopeless_factor` times the
    best and `hopeless_slack_us` microseconds. Configs that differ in GROUP_SIZE_M alone are not launched once the first
    of them took `sibling_factor` times the best. Where the best takes longer than `long_us` microseconds, the first
    launch of a candidate is its sample too.
    """

    hopeless_factor: float | None = None
    hopeless_slack_us: float = 0.0
    sibling_factor: float | None = None
    long_us: float | None = None

    def is_hopeless(self, call_us: float, best_us: float) -> bool:
        return self.hopeless_factor is not None and call_us > self.hopeless_factor * best_us + self.hopeless_slack_us

    def leaves_siblings(self, first_us: float, best_us: float) -> bool:
        return self.sibling_factor is not None and first_us > self.sibling_factor * best_us

    def is_long(self, best_us: float) -> bool:
        return self.long_us is not None and self.long_us < best_us < math.inf


@dataclass(frozen=True)
class Session:
    """One problem on one device. `work_dir` holds files of this session only.

    `screening` is the search's; as it stands here every candidate is measured to the end.
    `best_us` is the best time, in microseconds, that an earlier start of this run measured; None when it measured none.
    """

    module_path: str
    problem: GemmProblem
    arch: str
    device_index: int
    work_dir: str
    budget: Budget
    init_type: str = "randn"
    seed: int = 0
    best_us: float | None = None
    screening: Screening = Screening()

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Session:
        values: dict[str, Any] = json.loads(text)
        values["problem"] = GemmProblem(**values["problem"])
        values["budget"] = Budget(**values["budget"])
        values["screening"] = Screening(**values["screening"])
        return cls(**values)
