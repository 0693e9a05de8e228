"""Journals of runs that measured a small space whole, as the journal's own writer makes them."""

from __future__ import annotations

from pathlib import Path

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check, Measurement, Outcome, Resources, Unfit
from genkern.journal.binaries import JournalBinary
from genkern.journal.facts import JournalFacts, Start, read_journal
from genkern.journal.journal import Journal
from genkern.journal.search_steps import AskStep, SearchRecord, TellStep
from genkern.search.strategy import Lost, Measured, Refused, units_of

PROBLEM = GemmProblem(64, 128, 256)
OTHER = GemmProblem(33, 64, 4096, op="a8w8", dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn", bias=True)
# Eight binaries of three configs each; the last but one is refused, the last a copy of the one before that.
FIT = tuple(Config("tiled", m, n, 32, group) for m in (16, 32, 64) for n in (32, 64) for group in (8, 4, 1))
BROKEN = tuple(Config("tiled", 256, 256, 32, group) for group in (8, 4, 1))
COPIES = tuple(config.with_values(num_stages=5) for config in FIT[15:])
CONFIGS = (*FIT, *BROKEN, *COPIES)
BEST, WRONG = FIT[7], FIT[4]
UNITS = units_of(CONFIGS)
US = {config.name: 20.5 + place % 7 + place / 8 for place, config in enumerate(FIT)}
US |= {BEST.name: 9.8765, WRONG.name: 5}
LOST = FIT[10].name
HEADER = {
    "genkern": "0.2.0",
    "triton": "3.7.1",
    "torch": "2.13.0",
    "driver": "570.86.15",
    "arch": "sm_90",
    "device": "NVIDIA H200",
    "devices": {"0": {"sm_clock_max_mhz": 1980}},
    "time_source": "cudagraph",
}
NEEDS = Resources(registers=168, spills=0, shared_bytes=65536, scratch_bytes=8)
TIMED = Outcome.MEASURED


def measurement(name: str, place: int, lost: Outcome) -> Measurement:
    """The first one of a config, one of which is lost; of every third there are two samples."""
    took_ms = round(1.25 + place / 100, 2)
    if name == LOST:
        return Measurement(name, lost, "cudagraph", message="illegal address", took_ms=took_ms)
    us = US[name]
    samples_us = (us - 0.25, us + 0.25) if place % 3 == 0 else (us,)
    return Measurement(name, TIMED, "cudagraph", duration_us=us, samples_us=samples_us, took_ms=took_ms)


def final(name: str, us: float) -> Measurement:
    samples_us = (us, us * 1.0000001, us / 3 * 3)
    return Measurement(name, TIMED, "cudagraph", "final", us, samples_us, usual_mhz=1755.5, watts=612.25)


def journal(
    path: Path,
    *problems: GemmProblem,
    time_s: float = 1.7e9,
    factor: float = 1.0,
    most: int = 99,
    lost: Outcome = Outcome.CRASHED,
) -> JournalFacts:
    """A run over these problems, whose configs take `factor` times as long; `most` of them were screened."""
    kept = Journal(path, HEADER)
    kept.started(Start(problems or (PROBLEM,), "genkern -i s.yaml --exhaustive", "/", "node7", 42, time_s))
    for problem in problems or (PROBLEM,):
        screened = [measurement(config.name, place, lost) for place, config in enumerate(FIT)][:most]
        if factor != 1.0:
            screened = [
                Measurement(m.config, m.outcome, m.time_source, duration_us=m.duration_us and m.duration_us * factor)
                for m in screened
            ]
        for each in screened:
            kept.add_screened(problem, each)
        kept.add_unfit(problem, [config.name for config in BROKEN], Unfit(Outcome.COMPILE_FAILED, "no"))
        if most >= len(FIT):
            told = [TellStep(Refused(UNITS[7], COPIES, Outcome.IDENTICAL))]
            told += [TellStep(Measured(Config.parse(m.config), m.duration_us)) for m in screened if m.duration_us]
            told.append(TellStep(Lost(Config.parse(LOST), lost)))
            kept.add_search(problem, SearchRecord("predicted", None, CONFIGS, (), (AskStep(8, tuple(UNITS)), *told)))
        binaries = [JournalBinary(f"{place:016x}", NEEDS, 0.5 + place) for place in range(len(UNITS))]
        made = {unit.configs[0].name: binary for unit, binary in zip(UNITS, binaries, strict=True)}
        del made[BROKEN[0].name]
        kept.add_binaries(problem, made)
        finals = [final(name, US[name] * 1.0123456789 * factor) for name in (WRONG.name, BEST.name)]
        kept.add_retimed(problem, [*finals, final("vendor", 9.9)])
        kept.add_check(problem, Check(BEST.name, True, 0.0, 0.0, "", "gpu"))
        kept.add_check(problem, Check(WRONG.name, False, 0.5, 0.0, "", "gpu", "wrong"))
    kept.close()
    return read_journal(path)
