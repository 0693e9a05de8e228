"""Session: what the measured process must know in addition to the candidates."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.timing.libraries import ALL, parse_libraries

# Relative and absolute tolerance of AITER's gradlib for 16-bit outputs.
TOLERANCE = 1e-2


@dataclass(frozen=True)
class Budget:
    """How much to measure.

    protocol: "genkern" (short screening, then finals round-robin) or "tune_gemm" (ten launches, the last one counts)
    warmup: launches before those that are timed
    screen_launches: timed launches in screening
    final_rounds: maximum number of rounds of the finals
    min_rounds: minimum number of rounds of the finals
    finals_s: seconds after which the finals have no more than `min_rounds` rounds. That is enough for the choice; the
        confirmation measures the winner's time (profiling/finals.py)
    finalists: number of finalists
    timeout_s: time limit in seconds of a candidate's screening, and of each of its turns in the finals
    rotating_mb: MiB (2**20 bytes) that the rotated copies of B have together at least, so that B is cold in the
        last-level cache; there are 512 copies at most, and a single one for 0
    icache_flush: flush the instruction caches before each call of the finals (profiling/cuda/icache.py)
    exhaustive: measure all group sizes of a binary, even if the first is far slower than the best, and all configs with
        identical launches
    libraries: names of the libraries that may win, separated by commas (genkern.timing.libraries)
    atol, rtol: tolerances of AITER's error ratio, which is reported beside the proof: |C - ref| <= atol + rtol |ref|
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
        """Return True if this library may win."""
        return library in self.libraries.split(",")

    @property
    def every(self) -> bool:
        """True if all candidates are measured, as in tune_gemm, whatever is known about them beforehand."""
        return self.exhaustive or self.protocol == "tune_gemm"


@dataclass(frozen=True)
class Screening:
    """Which candidates a screening skips, given the best time so far; None switches a rule off.

    hopeless_factor, hopeless_slack_us: a candidate is hopeless, and not timed further, if one launch takes more than
        `hopeless_factor` times the best time plus `hopeless_slack_us`
    sibling_factor: configs that differ only in GROUP_SIZE_M are skipped if the first of them took this many times the
        best
    long_us: if the best takes longer than this many microseconds, a candidate's first launch is also its sample
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
    """One problem on one device.

    module_path: path of the generated module
    problem: the GEMM
    arch: architecture of the GPU
    device_index: number of the GPU
    work_dir: folder for files of this session only
    budget: how much to measure
    init_type: distribution of the inputs
    seed: seed of the inputs and of shuffled orders
    best_us: best time in microseconds that an earlier start of this run measured; None if there is none
    screening: the search's rules for skipping candidates; the default measures every candidate completely
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
