"""A results file taken at its word no longer: check its configs (--compare_wo_tuning), or time them (--benchmark)."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console

from genkern.command.pace import Pace
from genkern.command.report import format_text
from genkern.command.setting import Setting
from genkern.command.target import NOT_PRESENT, RunTarget, make_device_checker
from genkern.errors import OutputError, ResultsError
from genkern.farm.workshop import Workshop
from genkern.files import is_stream, require_writable, shown_path, write_whole
from genkern.formats import aiter_csv, tune_gemm_yaml
from genkern.formats.gemm_entry import GemmDefaults
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_device
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Candidate, Check
from genkern.gemm.session import VENDOR, Profiler, Session
from genkern.ops.op import check_problem
from genkern.tuning.check import DeviceChecker
from genkern.tuning.interpreter import interpreter_checker

# The first are tune_gemm's columns of --benchmark.
TIME_COLUMNS = (
    *("trans", "M", "N", "K", "TFLOPS", "us", "vendor_us", "time_source", "config", "message"),
    *("op", "dtype_a", "dtype_b", "dtype_c", "bias", "activation"),
)


@dataclass(frozen=True)
class Claim:
    """What a results file says: this config for this problem, on that architecture, device and Triton.

    None where it does not say; AITER's CSV says how many compute units the device has.
    """

    problem: GemmProblem
    config: Config
    arch: str | None
    device: str | None = None
    triton: str | None = None
    compute_units: int | None = None


@dataclass(frozen=True)
class Claims:
    """The claims of a results file, and how many rows of other libraries it has besides."""

    claims: tuple[Claim, ...]
    foreign: int = 0


def verify(setting: Setting, console: Console) -> int:
    """Check every config of the file; prints a line each and returns 1 when any is wrong or cannot be checked."""
    path, claims = _fitting(setting, console)
    wrong, unchecked = [], []
    with setting.workshop() as workshop, contextlib.closing(_checks(claims, setting, workshop)) as checks:
        for claim, check in checks:
            console.print(check_line(claim, check))
            if check.method == NOT_CHECKED:
                unchecked.append(claim.problem.size)
            elif not check.passed:
                wrong.append(claim.problem.size)
    for found, what in ((wrong, "are wrong"), (unchecked, "could not be checked here")):
        if found:
            console.print(f"{len(found)} of {len(claims)} configs in {path} {what}: {', '.join(dict.fromkeys(found))}")
    if wrong or unchecked:
        return 1
    console.print(f"all {len(claims)} configs in {path} are correct")
    return 0


def check_line(claim: Claim, check: Check) -> str:
    """How one check ended, on one line."""
    size, name = claim.problem.size, claim_text(claim)
    verdict = "ok" if check.passed else "not checked" if check.method == NOT_CHECKED else "WRONG"
    how = check.method + (f" on {check.problem_size}" if check.problem_size != size else "")
    found = check.message or f"error ratio {check.error_ratio:.3g}, worst row {check.worst_row_error:.3g}"
    how = "" if check.method == NOT_CHECKED else f" ({how})"
    return f"{name}: {verdict}: {found}{how}: {claim.config.name}"


def claim_text(claim: Claim) -> str:
    """The size with its format, since a results file may have one size in several."""
    return f"{claim.problem.size} {format_text(claim.problem)}"


def benchmark(setting: Setting, console: Console) -> int:
    """Time every config of the file, with tune_gemm's columns and more as CSV; returns 1 when one does not run."""
    _, claims = _fitting(setting, console)
    options = setting.options
    named = options.tuning_results_file if options.gemm_size_file else None
    output = named or "output/benchmarking_results.csv"
    require_writable(output)
    whole = not is_stream(output)
    if whole:
        _refuse_other_content(output)
    rows: list[dict[str, object]] = []
    pace = Pace()

    def write() -> None:
        with pace.writing():
            write_whole(output, pd.DataFrame(rows, columns=list(TIME_COLUMNS)).to_csv(index=False))

    index = setting.device_indices[0]
    with setting.workshop() as workshop, contextlib.closing(setting.profiler(index, workshop)) as profiler:
        try:
            for claim in claims:
                row = _time(claim, workshop, profiler, index)
                rows.append(row)
                console.print(_time_line(claim, row))
                if whole and pace.due:
                    write()
        finally:
            # A later size may have failed.
            if rows:
                write()
    console.print(f"{len(rows)} time{'' if len(rows) == 1 else 's'} in {output}")
    if options.keep:
        console.print(f"modules: {workshop.module_dir}")
    return 1 if any(row["us"] is None for row in rows) else 0


def read_claims(path: str, defaults: GemmDefaults) -> Claims:
    """The claims of a results file, tune_gemm's YAML or AITER's CSV. Raises ResultsError."""
    if path.lower().endswith(".csv"):
        rows = aiter_csv.read_rows(path, defaults)
        found = [
            Claim(row.problem, row.config, row.gfx, compute_units=row.cu_num) for row in rows if row.config is not None
        ]
        claims = Claims(tuple(found), len(rows) - len(found))
    else:
        winners = tune_gemm_yaml.read_winners(path, defaults)
        claims = Claims(
            tuple(Claim(row.problem, row.config, row.arch, row.device, row.versions.get("triton")) for row in winners)
        )
    if not claims.claims:
        raise ResultsError(f"{shown_path(path)} holds no config of genkern or tune_gemm: nothing to do")
    return claims


def _fitting(setting: Setting, console: Console) -> tuple[str, tuple[Claim, ...]]:
    path = setting.options.gemm_size_file or setting.options.tuning_results_file
    arch, where = setting.target.arch, shown_path(path)
    found = read_claims(path, setting.defaults)
    for claim in found.claims:
        if claim.arch not in (None, arch):
            raise ResultsError(
                f"{where} holds results for {claim.arch}, this run is for {arch}: give --arch {claim.arch}"
            )
        check_problem(claim.problem, arch)
    if made := made_elsewhere(found.claims, setting.target, setting.versions["triton"]):
        console.print(f"note: {where} was made {made}: its configs may be slower here, or not run")
    if found.foreign:
        console.print(f"note: {found.foreign} rows of other libraries in {where} are left out")
    return where, found.claims


def made_elsewhere(claims: Sequence[Claim], target: RunTarget, triton: str) -> str:
    """With which Triton and on which device, where that is not what is here; empty when it is, or nothing is said."""
    tritons = sorted({claim.triton for claim in claims if claim.triton} - {triton})
    devices = sorted({claim.device for claim in claims if claim.device and not _is_here(claim.device, target)})
    units = sorted({claim.compute_units for claim in claims if claim.compute_units} - {target.gpu.compute_units})
    said = [f"with Triton {', '.join(tritons)} (here {triton})"] if tritons else []
    said += [f"on {', '.join(devices)} (here {target.device_name})"] if devices else []
    said += [f"on {', '.join(map(str, units))} compute units (here {target.gpu.compute_units})"] if units else []
    return " ".join(said)


def _is_here(device: str, target: RunTarget) -> bool:
    """Whether results of `device` are of the device of this run; of the same model where one of both is predicted."""
    name = device.removesuffix(NOT_PRESENT)
    if target.measured and name == device:
        return device == target.device_name
    here = gpu_for_device(target.device_name.removesuffix(NOT_PRESENT), target.arch)
    return gpu_for_device(name, target.arch).name == here.name


def _checks(
    claims: Sequence[Claim], setting: Setting, workshop: Workshop
) -> Generator[tuple[Claim, Check], None, None]:
    if setting.target.measured:
        return _device_checks(claims, setting, workshop)
    return _interpreter_checks(claims, setting, workshop)


def _interpreter_checks(
    claims: Sequence[Claim], setting: Setting, workshop: Workshop
) -> Generator[tuple[Claim, Check], None, None]:
    checker = interpreter_checker(setting.options.errRatio, workshop)

    def interpret(claim: Claim) -> Check:
        session = Session("", claim.problem, workshop.arch, 0, workshop.module_dir, workshop.budget)
        return checker.check(session, Candidate(claim.config, ()))

    pool = ThreadPoolExecutor(setting.options.jobs)
    try:
        yield from zip(claims, pool.map(interpret, claims), strict=True)
    finally:
        checker.close()
        pool.shutdown(cancel_futures=True)


def _device_checks(
    claims: Sequence[Claim], setting: Setting, workshop: Workshop
) -> Generator[tuple[Claim, Check], None, None]:
    index = setting.device_indices[0]
    cache_dir, log_dir = str(workshop.farm.cache.folder), workshop.module_dir
    with contextlib.ExitStack() as stack:
        profiler = stack.enter_context(contextlib.closing(setting.profiler(index, workshop)))
        device = make_device_checker(setting.target, profiler, index, cache_dir, log_dir)
        stack.callback(device.close)
        checker = DeviceChecker(device.check, setting.options.errRatio)
        for claim in claims:
            with workshop.open(claim.problem, [claim.config], index) as job:
                candidates = list(job.candidates)
                if candidates:
                    yield claim, checker.check(job.session, candidates[0])
                else:
                    why = "; ".join(unfit.message for unfit in job.unfit.values())
                    yield claim, Check(claim.config.name, False, 1.0, float("inf"), claim.problem.size, "gpu", why)


def _time(claim: Claim, workshop: Workshop, profiler: Profiler, index: int) -> dict[str, object]:
    problem = claim.problem
    with workshop.open(problem, [claim.config], index) as job:
        candidates = list(job.candidates)
        finals = {m.config: m for m in profiler.retime(job.session, candidates)} if candidates else {}
        final, vendor = finals.get(claim.config.name), finals.get(VENDOR)
        us = final.duration_us if final else None
        message = final.message if final else "; ".join(unfit.message for unfit in job.unfit.values())
    return {
        "trans": ("T" if problem.row_major_a else "N") + ("T" if problem.row_major_b else "N"),
        "M": problem.M,
        "N": problem.N,
        "K": problem.K,
        "TFLOPS": us and problem.tflops(us),
        "us": us,
        "vendor_us": vendor.duration_us if vendor else None,
        "time_source": profiler.time_source,
        "config": claim.config.name,
        "message": " ".join(message.split()),
        **{name: getattr(problem, name) for name in ("op", "dtype_a", "dtype_b", "dtype_c", "bias", "activation")},
    }


def _time_line(claim: Claim, row: dict[str, object]) -> str:
    us, vendor_us = row["us"], row["vendor_us"]
    if not isinstance(us, float):
        return f"{claim_text(claim)}: did not run: {row['message']}: {claim.config.name}"
    versus = f", {vendor_us / us:.3f}x vendor" if isinstance(vendor_us, float) else ""
    said = f"{us:.2f} us, {claim.problem.tflops(us):.1f} TFLOPS{versus} ({row['time_source']})"
    return f"{claim_text(claim)}: {said}: {claim.config.name}"


def _refuse_other_content(path: str) -> None:
    """Raise OutputError rather than write over a file that is no list of times."""
    try:
        with open(path, encoding="utf-8") as file:
            head = file.readline()
    except (OSError, ValueError):
        head = "?" if Path(path).is_file() else ""
    if head and not head.startswith("trans,M,N,K"):
        raise OutputError(f"{shown_path(path)} is there and holds no times of --benchmark: give another -o")
