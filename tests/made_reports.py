"""Results files for tests of reports: measured, with a journal beside them, and with names that would harm a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recorded_runs import BEST, BROKEN, CONFIGS, FIT, HEADER, NEEDS, UNITS, WRONG, measurement
from winner_factory import write_results

from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check, Outcome, Unfit
from genkern.journal.binaries import JournalBinary
from genkern.journal.facts import Begun, Compiled, Ended, Start
from genkern.journal.journal import Journal
from genkern.journal.run_files import RunFiles
from genkern.result.result import Result

START_S = 1.7e9
STAGES = {
    "prune": 0.5,
    "compile and screen": 20.0,
    "wait for its turn": 1.0,
    "re-time": 6.0,
    "check": 2.0,
    "confirm": 3.0,
}
HOSTILE = "</script><img src=x onerror=\"document.title='harmed'\">{{DATA}}`|\u202e"


def problems(count: int = 6) -> list[GemmProblem]:
    return [GemmProblem(16 * (1 + place), 6144 if place % 2 else 4096, 4096) for place in range(count)]


def winner(problem: GemmProblem, us: float, over: float | None = 1.1, **changes: object) -> Result:
    """A measured winner on an H200 with intervals of 0.4 %; the library takes `over` times as long."""
    library = {} if over is None else {"vendor_us": us * over, "vendor": "torch", "torch_us": us * over}
    around = None if over is None else (us * over * 0.998, us * over * 1.002)
    versions = (("driver", "570.86.15"), ("triton", "3.7.1"))
    made = Result(
        problem,
        BEST,
        duration_us=us,
        spread_us=us * 0.01,
        samples=60,
        time_source="cudagraph",
        arch="sm_90",
        device="NVIDIA H200",
        versions=versions,
        **library,  # type: ignore[arg-type]
    )
    made = replace(made, interval_us=(us * 0.998, us * 1.002), vendor_interval_us=around)
    made = replace(made, runner_up=FIT[3].name, runner_up_us=us * 1.02, expected_loss=0.002, searched_share=0.3)
    return replace(made, **changes)  # type: ignore[arg-type]


def predicted(problem: GemmProblem, us: float) -> Result:
    device = "NVIDIA H200 (not present)"
    made = winner(problem, us, None, time_source="predicted", device=device, interval_us=None, runner_up_us=None)
    return replace(made, predicted_interval_us=(us * 0.8, us * 1.25))


def results(path: Path, winners: Sequence[Result] | None = None) -> Path:
    write_results(path, winners or [winner(problem, 10.0 + place) for place, problem in enumerate(problems())], 132)
    return path


def journal(results: Path, *, times: bool = True) -> None:
    """Write the journal of a finished run on two GPUs, one size after another; without `times` as genkern 0.2 did."""
    sizes = problems()
    kept = Journal(RunFiles(str(results)).finished_journal, HEADER)
    kept.started(Start(tuple(sizes), "genkern -i sizes.yaml", "/", "node7", 42, START_S))
    for place, problem in enumerate(sizes):
        begin_s = START_S + 2.0 + 16.0 * place
        kept.add_begun(problem, Begun(len(CONFIGS), place % 2, begin_s))
        for number, config in enumerate(FIT):
            kept.add_screened(problem, measurement(config.name, number, Outcome.CRASHED))
        kept.add_unfit(problem, [config.name for config in BROKEN], Unfit(Outcome.COMPILE_FAILED, "no"))
        kept.add_compiled(problem, Compiled(8, 1, 2))
        needs = replace(NEEDS, loop_instructions=120, loop_matrix=16, loop_fma=0, loop_shared=20, loop_loads=8)
        binaries = [JournalBinary(f"{place:08x}{number:08x}", needs, 0.5) for number in range(len(UNITS))]
        kept.add_binaries(problem, {unit.configs[0].name: of for unit, of in zip(UNITS, binaries, strict=True)})
        kept.add_check(problem, Check(WRONG.name, False, 0.5, 0.0, "", "gpu", "wrong"))
        when = (begin_s + sum(STAGES.values()) - STAGES["prune"], STAGES) if times else ()
        kept.add_end(problem, Ended({Outcome.MEASURED: 16, Outcome.WRONG: 1}, "", *when))
    kept.close()


def hostile_row() -> Result:
    """Another library's row whose name, device and versions would close a script and run one of their own."""
    return Result(
        GemmProblem(7, 64, 64),
        None,
        duration_us=5.0,
        device=HOSTILE,
        versions=((HOSTILE, HOSTILE),),
        library=HOSTILE,
        kernel_name=HOSTILE,
    )
