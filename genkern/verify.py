"""Results files taken at their word no longer: check their configs again (--compare_wo_tuning), or time them (--benchmark)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pandas as pd
from rich.console import Console

from genkern.check import DeviceChecker, InterpreterChecker
from genkern.config import Config
from genkern.errors import ResultsError
from genkern.files import write_whole
from genkern.formats import aiter_csv, tune_gemm_yaml
from genkern.gemm_entry import GemmDefaults
from genkern.op import check_problem
from genkern.problem import GemmProblem
from genkern.profiling.session import Session
from genkern.records import Candidate, Check
from genkern.target import RunTarget, make_device_checker, make_profiler
from genkern.workshop import Workshop

VENDOR = "vendor"


@dataclass(frozen=True)
class Claim:
    """What a results file says: this config for this problem, on that architecture (None: it does not say)."""

    problem: GemmProblem
    config: Config
    arch: str | None


def read_claims(path: str, defaults: GemmDefaults) -> list[Claim]:
    """The claims of a results file, tune_gemm's YAML or AITER's CSV. Raises ResultsError."""
    if path.lower().endswith(".csv"):
        rows = aiter_csv.read_rows(path, defaults)
        claims = [Claim(row.problem, row.config, row.gfx) for row in rows if row.config is not None]
    else:
        claims = [Claim(row.problem, row.config, row.arch) for row in tune_gemm_yaml.read_winners(path, defaults)]
    if not claims:
        raise ResultsError(f"{path} holds no config of genkern or tune_gemm: nothing to do")
    return claims


def verify(
    path: str, options: argparse.Namespace, target: RunTarget, defaults: GemmDefaults, workshop: Workshop, console: Console
) -> int:
    """Check every config of the file; prints a line each and returns 1 when any is wrong."""
    claims = _fitting(path, defaults, target)
    wrong = []
    for claim, check in _checks(claims, options, target, workshop):
        verdict = "ok" if check.passed else "WRONG"
        size = claim.problem.size
        reduced = f" on {check.problem_size}" if check.problem_size != size else ""
        console.print(
            f"{size}: {verdict}: {claim.config.name}, error ratio {check.error_ratio:.3g}, "
            f"worst row {check.worst_row_error:.3g} ({check.method}{reduced}){' ' if check.message else ''}{check.message}",
        )
        if not check.passed:
            wrong.append(size)
    if wrong:
        console.print(f"{len(wrong)} of {len(claims)} configs in {path} are wrong: {', '.join(wrong)}")
        return 1
    console.print(f"all {len(claims)} configs in {path} are correct")
    return 0


def benchmark(
    path: str, options: argparse.Namespace, target: RunTarget, defaults: GemmDefaults, workshop: Workshop, console: Console
) -> int:
    """Time every config of the file, with tune_gemm's columns and more as CSV; returns 1 when one does not run."""
    claims = _fitting(path, defaults, target)
    rows = []
    index = (target.gpu_ids or (0,))[0]
    profiler = make_profiler(target, options.profiler, index, str(workshop.farm.cache.folder), workshop.module_dir)
    try:
        for claim in claims:
            problem = claim.problem
            with workshop.open(problem, [claim.config], index) as job:
                candidates = list(job.candidates)
                finals = {m.config: m for m in profiler.retime(job.session, candidates)} if candidates else {}
            final, vendor = finals.get(claim.config.name), finals.get(VENDOR)
            us = final.duration_us if final else None
            why = final.message if final else "; ".join(unfit.message for unfit in job.unfit.values())
            vendor_us = vendor.duration_us if vendor else None
            rows.append(
                {
                    "trans": ("T" if problem.row_major_a else "N") + ("T" if problem.row_major_b else "N"),
                    "M": problem.M,
                    "N": problem.N,
                    "K": problem.K,
                    "TFLOPS": us and problem.tflops(us),
                    "us": us,
                    "vendor_us": vendor_us,
                    "time_source": profiler.time_source,
                    "config": claim.config.name,
                }
            )
            said = f"{us:.2f} us, {problem.tflops(us):.1f} TFLOPS" if us else f"did not run: {why}"
            versus = f", {vendor_us / us:.3f}x vendor" if us and vendor_us else ""
            console.print(f"{problem.size}: {claim.config.name} {said}{versus} ({profiler.time_source})")
    finally:
        profiler.close()
    output = options.tuning_results_file if options.gemm_size_file and options.tuning_results_file else None
    output = output or "output/benchmarking_results.csv"
    write_whole(output, pd.DataFrame(rows).to_csv(index=False))
    console.print(f"{len(rows)} times in {output}")
    return 1 if any(row["us"] is None for row in rows) else 0


def _fitting(path: str, defaults: GemmDefaults, target: RunTarget) -> list[Claim]:
    claims = read_claims(path, defaults)
    for claim in claims:
        if claim.arch not in (None, target.arch):
            raise ResultsError(f"{path} holds results for {claim.arch}, this run is for {target.arch}: give --arch {claim.arch}")
        check_problem(claim.problem, target.arch)
    return claims


def _checks(
    claims: Sequence[Claim], options: argparse.Namespace, target: RunTarget, workshop: Workshop
) -> Iterator[tuple[Claim, Check]]:
    if not target.measured:
        checker = InterpreterChecker(options.errRatio)

        def interpret(claim: Claim) -> Check:
            session = Session("", claim.problem, target.arch, 0, workshop.module_dir, workshop.budget)
            return checker.check(session, Candidate(claim.config, ()))

        with ThreadPoolExecutor(options.jobs) as pool:
            yield from zip(claims, pool.map(interpret, claims), strict=True)
        return
    index = target.gpu_ids[0]
    cache_dir, log_dir = str(workshop.farm.cache.folder), workshop.module_dir
    profiler = make_profiler(target, options.profiler, index, cache_dir, log_dir)
    device = make_device_checker(target, profiler, index, cache_dir, log_dir)
    try:
        on_device = DeviceChecker(device.check, options.errRatio)
        for claim in claims:
            with workshop.open(claim.problem, [claim.config], index) as job:
                candidates = list(job.candidates)
                if candidates:
                    yield claim, on_device.check(job.session, candidates[0])
                else:
                    why = "; ".join(unfit.message for unfit in job.unfit.values())
                    yield claim, Check(claim.config.name, False, 1.0, float("inf"), claim.problem.size, "gpu", why)
    finally:
        device.close()
        profiler.close()
