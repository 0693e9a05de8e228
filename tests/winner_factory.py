"""Winners and reports made up for tests of what is written and printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from genkern.file_io import write_whole
from genkern.files.file_kind import kind_of
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check, Measurement, Outcome
from genkern.result.result import Proof, Result
from genkern.tuning.tune import Report

CONFIG = Config("tiled", 128, 256, 64, 8, 1, 8, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=2)
LONG = Config(
    "tiled", 128, 256, 64, 32, 24, 8, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=2, schedule_hint="default"
)


def winner(m: int = 16, us: float = 10.0, config: Config = CONFIG, **changes: object) -> Result:
    """A measured winner of m x 4096 x 4096 on an MI300X; `changes` to its fields, or to its problem's."""
    fields = set(GemmProblem.__dataclass_fields__)
    problem = GemmProblem(m, 4096, 4096, **{k: v for k, v in changes.items() if k in fields})  # type: ignore[arg-type]
    made = Result(
        problem,
        config,
        arch="gfx942",
        device="AMD Instinct MI300X",
        duration_us=us,
        time_source="rocprofv3",
        spread_us=0.1,
        samples=60,
        discarded=0,
        versions=(("triton", "3.7.0"),),
    )
    changed = {k: Proof.of(v) if isinstance(v, Check) else v for k, v in changes.items() if k not in fields}
    return replace(made, **changed)  # type: ignore[arg-type]


def results_text(winners: Sequence[Result], name: str = "r.yaml", compute_units: int = 304) -> str:
    """A results file of the kind that the suffix of its name says, as a run writes it."""
    kind = kind_of(name)
    head, lines = kind.render(winners, compute_units, "")
    return head + ("".join(lines) or kind.EMPTY)


def write_results(path: str | Path, winners: Sequence[Result], compute_units: int = 304) -> None:
    write_whole(str(path), results_text(winners, str(path), compute_units))


def checked(size: str = "16x4096x4096", method: str = "gpu", stand_in: str = "") -> Check:
    return Check(CONFIG.name, True, 0.0, 0.001, size, method, stand_in=stand_in)


def report(found: Result | None, problem: GemmProblem | None = None) -> Report:
    """A finished report with three candidates, or a failed one."""
    made = Report(problem or (found.problem if found else GemmProblem(1, 2, 3)), found, "" if found else "no way")
    if found:
        made.candidates = {
            found.config_name: Measurement(
                found.config_name, Outcome.MEASURED, "rocprofv3", "final", found.duration_us
            ),
            "tiled_BM1": Measurement(
                "tiled_BM1", Outcome.WRONG, "rocprofv3", "final", 9.0, message='error\n "0.9", bad'
            ),
            "tiled_BM2": Measurement("tiled_BM2", Outcome.COMPILE_FAILED, "rocprofv3", message="no"),
        }
        made.outcomes = Counter(m.outcome for m in made.candidates.values())
        made.stage_s = {"prune": 0.25, "check": 1.5}
    return made
