"""Checks the configs of a results file (--compare_wo_tuning), or times them (--benchmark)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from rich.console import Console

from genkern.command.pace import Pace
from genkern.command.report import format_text, versus_text
from genkern.command.screen import put
from genkern.command.setting import Setting
from genkern.command.target import RunTarget, make_device_checker
from genkern.errors import BugError, ResultsError, bugs_told
from genkern.farm.workshop import Workshop
from genkern.files import is_stream, require_start_or_none, require_writable, shown_path, write_whole
from genkern.formats.gemm_entry import GemmDefaults
from genkern.formats.kind import read_results
from genkern.formats.tune_gemm_yaml import FP16_ADVICE
from genkern.formats.tuned_row import DeviceKey, TunedRow, same_device
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Candidate, Check, Outcome
from genkern.journal.bug_log import BugLog
from genkern.journal.run_files import RunFiles
from genkern.kernels.catalogue import sums_of
from genkern.kernels.legality import legal
from genkern.ops.fields import problem_cells
from genkern.ops.op import check_problem
from genkern.profiling.same_bits.device_rows import DeviceRows
from genkern.search.select import library_calls
from genkern.timing.libraries import VENDOR, call_name
from genkern.timing.profiler import Profiler
from genkern.timing.session import Session
from genkern.tuning.check import DeviceChecker
from genkern.tuning.interpreter import interpreter_checker
from genkern.tuning.invariant.reference import reference_of

# Columns of a problem other than `trans`, M, N and K.
_FORMAT_COLUMNS = tuple(name for name in problem_cells(GemmProblem(1, 1, 1)) if len(name) > 1 and "Major" not in name)
# tune_gemm's columns of --benchmark come first.
TIME_COLUMNS = (
    *("trans", "M", "N", "K", "TFLOPS", "us", "vendor_us", "vendor", "torch_us"),
    *("time_source", "config", "message"),
    *_FORMAT_COLUMNS,
)


@dataclass(frozen=True)
class Claim:
    """A row of a results file: a config for a problem, on an architecture, device and Triton.

    Fields are None if the row does not have them; AITER's CSV has the number of compute units. `typed` is False if the
    types of the problem are assumed. `order` is the order of sums that is common to all M; "" if the row is not
    batch-invariant.
    """

    problem: GemmProblem
    config: Config
    arch: str | None
    device: str | None = None
    triton: str | None = None
    compute_units: int | None = None
    typed: bool = True
    order: str = ""

    @classmethod
    def of(cls, row: TunedRow) -> Claim:
        """Return the claim of a row with a config."""
        assert row.config is not None
        said = row.arch, row.device, row.versions.get("triton"), row.compute_units, row.typed
        return cls(row.problem, row.config, *said, row.sums if row.batch_invariant else "")

    def is_of(self, key: DeviceKey) -> bool:
        """Return True unless the row names another architecture, device or number of compute units."""
        return key.fits(self.arch, self.device, self.compute_units)


@dataclass(frozen=True)
class Claims:
    """The claims of a results file, and the number of its rows that other libraries or formats of weights have won."""

    claims: tuple[Claim, ...]
    foreign: int = 0


def verify(setting: Setting, console: Console) -> int:
    """Check every config of the file that is for this device, and print a line for each.

    Returns 1 if a config is wrong or cannot be checked, 3 if a bug in genkern prevents a check.
    """
    path, claims = _fitting(setting, console)
    bug_log = _bug_log(setting)
    wrong, unchecked, bugs = [], [], 0
    with setting.workshop(console) as workshop, contextlib.closing(_checks(claims, setting, workshop)) as checks:
        for claim, check in checks:
            if isinstance(check, BugError):
                console.print(bug_log.append(claim_text(claim), check))
                bugs += 1
                continue
            put(console, "check", _check_values(claim, check), [check_line(claim, check)])
            if check.method == NOT_CHECKED:
                unchecked.append(claim.problem.size)
            elif not check.passed:
                wrong.append(claim.problem.size)
    for found, what in ((wrong, "are wrong"), (unchecked, "could not be checked here")):
        if found:
            console.print(f"{len(found)} of {len(claims)} configs in {path} {what}: {', '.join(dict.fromkeys(found))}")
    if wrong or unchecked or bugs:
        return 3 if bugs else 1
    console.print(f"all {len(claims)} configs in {path} are correct")
    return 0


def check_line(claim: Claim, check: Check) -> str:
    """Return a line about the result of one check."""
    size, name = claim.problem.size, claim_text(claim)
    verdict = "ok" if check.passed else "not checked" if check.method == NOT_CHECKED else "WRONG"
    how = check.how + (f" on {check.problem_size}" if check.problem_size != size else "")
    found = check.message or f"error ratio {check.error_ratio:.3g}, worst row {check.worst_row_error:.3g}"
    how = "" if check.method == NOT_CHECKED else f" ({how})"
    return f"{name}: {verdict}: {found}{how}: {claim.config.name}"


def _check_values(claim: Claim, check: Check) -> dict[str, object]:
    """Return what `check_line` says as values for JSON."""
    verdict = "ok" if check.passed else "not checked" if check.method == NOT_CHECKED else "wrong"
    return {
        "size": claim.problem.size,
        "problem": claim.problem.name,
        "config": claim.config.name,
        "verdict": verdict,
        "method": check.how,
        "checked_size": check.problem_size,
        "error_ratio": check.error_ratio,
        "worst_row_error": check.worst_row_error,
        "message": check.message,
    }


def claim_text(claim: Claim) -> str:
    """Return the size with its format, since a results file may have one size in several formats."""
    return f"{claim.problem.size} {format_text(claim.problem)}"


def benchmark(setting: Setting, console: Console) -> int:
    """Time every config of the file that is for this device, and write CSV with tune_gemm's columns and more.

    Returns 1 if a config does not run, 3 if a bug in genkern is the reason.
    """
    import pandas as pd

    _, claims = _fitting(setting, console)
    options = setting.options
    named = options.tuning_results_file if options.gemm_size_file else None
    output = named or "output/benchmarking_results.csv"
    require_writable(output)
    require_start_or_none(output, "trans,M,N,K", "times of --benchmark")
    whole = not is_stream(output)
    rows: list[dict[str, object]] = []
    bugs, bug_log, pace = 0, _bug_log(setting), Pace()

    def write() -> None:
        with pace.writing():
            write_whole(output, pd.DataFrame(rows, columns=list(TIME_COLUMNS)).to_csv(index=False))

    index = setting.device_indices[0]
    with (
        setting.workshop(console) as workshop,
        contextlib.closing(setting.profiler(index, workshop)) as profiler,
        contextlib.ExitStack() as at_end,
    ):
        # Keeps the times if a later size fails.
        at_end.callback(lambda: write() if rows else None)
        for claim in claims:
            try:
                with bugs_told():
                    row = _time(claim, workshop, profiler, index)
            except BugError as bug:
                console.print(bug_log.append(claim_text(claim), bug))
                bugs += 1
                continue
            rows.append(row)
            put(console, "time", row, [_time_line(claim, row)])
            if whole and pace.due:
                write()
    console.print(f"{len(rows)} time{'' if len(rows) == 1 else 's'} in {output}")
    if options.keep:
        console.print(f"modules: {workshop.kept_dir}")
    return 3 if bugs else 1 if any(row["us"] is None for row in rows) else 0


def _bug_log(setting: Setting) -> BugLog:
    return BugLog(RunFiles(setting.results_path).bug_log, setting.versions, setting.options.command)


def read_claims(path: str, defaults: GemmDefaults) -> Claims:
    """Return the claims of a results file. Raises ResultsError."""
    rows = read_results(path, defaults)
    found = tuple(Claim.of(row) for row in rows if row.is_genkerns)
    if not found:
        raise ResultsError(f"{shown_path(path)} holds no config of genkern or tune_gemm: nothing to do")
    return Claims(found, len(rows) - len(found))


def fitting(claims: Sequence[Claim], key: DeviceKey, where: str) -> tuple[Claim, ...]:
    """Return the claims for this device; if there are none, the claims for other devices of the architecture, whose
    configs can run here too.

    Raises ResultsError if all claims are for other architectures.
    """
    found = [claim for claim in claims if claim.arch in (None, key.arch)]
    if not found:
        raise ResultsError(
            f"{where} holds results for {claims[0].arch}, this run is for {key.arch}: give --arch {claims[0].arch}"
        )
    return tuple(claim for claim in found if claim.is_of(key)) or tuple(found)


def _fitting(setting: Setting, console: Console) -> tuple[str, tuple[Claim, ...]]:
    path = setting.options.gemm_size_file or setting.options.tuning_results_file
    where, key = shown_path(path), setting.target.key
    found = read_claims(path, setting.defaults)
    claims = fitting(found.claims, key, where)
    for claim in claims:
        check_problem(claim.problem, key.arch)
    if made := made_elsewhere(claims, setting.target, setting.versions["triton"]):
        console.print(f"note: {where} was made {made}: its configs may be slower here, or not run")
    if found.foreign:
        console.print(f"note: left out of {where}: {_rows(found.foreign)} of other libraries or formats")
    if others := len(found.claims) - len(claims):
        console.print(f"note: left out of {where}: {_rows(others)} of other devices")
    if untyped := sum(not claim.typed for claim in claims):
        type_ = next(claim.problem.dtype_a for claim in claims if not claim.typed)
        console.print(f"note: {where} does not name the types of {_rows(untyped)}: {type_} is taken{FP16_ADVICE}")
    return where, claims


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def made_elsewhere(claims: Sequence[Claim], target: RunTarget, triton: str) -> str:
    """Return the versions of Triton and the devices of the claims, as far as they differ from this machine's; or ""."""
    arch, here = target.arch, target.device_name
    tritons = sorted({claim.triton for claim in claims if claim.triton} - {triton})
    devices = sorted({claim.device for claim in claims if claim.device and not same_device(claim.device, here, arch)})
    units = sorted({claim.compute_units for claim in claims if claim.compute_units} - {target.gpu.compute_units})
    said = [f"with Triton {', '.join(tritons)} (here {triton})"] if tritons else []
    said += [f"on {', '.join(devices)} (here {here})"] if devices else []
    said += [f"on {', '.join(map(str, units))} compute units (here {target.gpu.compute_units})"] if units else []
    return " ".join(said)


# A claim with its check, or with the bug in genkern that prevented the check.
Checked = tuple[Claim, Check | BugError]


def _tried(check: Callable[[], Check]) -> Check | BugError:
    try:
        with bugs_told():
            return check()
    except BugError as bug:
        return bug


def _checks(claims: Sequence[Claim], setting: Setting, workshop: Workshop) -> Generator[Checked, None, None]:
    legal_claims = []
    for claim in claims:
        if why := legal(claim.problem, claim.config, workshop.gpu):
            yield claim, Check(claim.config.name, False, 1.0, float("inf"), claim.problem.size, "legality", why)
        else:
            legal_claims.append(claim)
    checks = _device_checks if setting.target.measured else _interpreter_checks
    yield from checks(legal_claims, setting, workshop)


def _interpreter_checks(
    claims: Sequence[Claim], setting: Setting, workshop: Workshop
) -> Generator[Checked, None, None]:
    checker = interpreter_checker(setting.options.errRatio, workshop.module_dir)

    def interpret(claim: Claim) -> Check | BugError:
        session = Session("", claim.problem, workshop.arch, 0, workshop.module_dir, workshop.budget)
        return _tried(partial(checker.check, session, Candidate(claim.config, ())))

    pool = ThreadPoolExecutor(setting.options.jobs)
    try:
        yield from zip(claims, pool.map(interpret, claims), strict=True)
    finally:
        checker.close()
        pool.shutdown(cancel_futures=True)


def _device_checks(claims: Sequence[Claim], setting: Setting, workshop: Workshop) -> Generator[Checked, None, None]:
    index = setting.device_indices[0]
    cache_dir, log_dir = str(workshop.farm.cache.folder), workshop.module_dir
    with contextlib.ExitStack() as stack:
        profiler = stack.enter_context(contextlib.closing(setting.profiler(index, workshop)))
        device = make_device_checker(setting.target, profiler, index, cache_dir, log_dir)
        stack.callback(device.close)
        checker = DeviceChecker(device.check, device.check_call, setting.options.errRatio, DeviceRows(device))
        for claim in claims:
            yield claim, _tried(partial(_device_check, claim, workshop, checker, index))


def _device_check(claim: Claim, workshop: Workshop, checker: DeviceChecker, index: int) -> Check:
    reference = reference_of(claim.problem, claim.order, workshop.gpu) if claim.order else None
    configs = list(dict.fromkeys([claim.config, *([reference] if reference is not None else [])]))
    with workshop.open(claim.problem, configs, index, [config.name for config in configs]) as bench:
        job, candidates = bench.job, {made.name: made for made in bench.candidates(configs)}
        if (candidate := candidates.get(claim.config.name)) is not None:
            check = checker.check(job.session, candidate)
            if not (check.passed and claim.order):
                return check
            if (now := sums_of(claim.problem, claim.config, workshop.arch)) != claim.order:
                return replace(check, passed=False, message=f"adds up K as {now or 'unknown'}, not {claim.order}")
            beside = candidates.get(reference.name) if reference not in (None, claim.config) else None
            assert checker.rows is not None
            rows = checker.rows.check(job.session, candidate.name, candidate, beside)
            return check if rows.passed else rows
        why = "; ".join(unfit.message for unfit in job.unfit.values())
        return Check(claim.config.name, False, 1.0, float("inf"), claim.problem.size, "gpu", why)


def _time(claim: Claim, workshop: Workshop, profiler: Profiler, index: int) -> dict[str, object]:
    problem = claim.problem
    final = vendor = torch = None
    if not (message := legal(problem, claim.config, workshop.gpu)):
        with workshop.open(problem, [claim.config], index) as bench:
            job, candidates = bench.job, list(bench.candidates([claim.config]))
            finals = {m.config: m for m in profiler.retime(job.session, candidates)} if candidates else {}
            final, torch = finals.get(claim.config.name), finals.get(VENDOR)
            vendor = next(iter(library_calls(finals.values(), workshop.budget)), None)
            if final is not None and final.outcome is Outcome.MEASURED:
                # The finals chose the library's call by its time, which is therefore biased downwards: it is measured
                # again.
                calls = dict.fromkeys(m.config for m in (vendor, torch) if m and m.outcome is Outcome.MEASURED)
                again = {m.config: m for m in profiler.confirm(job.session, candidates, list(calls))}
                final, vendor, torch = (again.get(m.config, m) if m else None for m in (final, vendor, torch))
            message = final.message if final else "; ".join(unfit.message for unfit in job.unfit.values())
    us = final.duration_us if final else None
    return {
        "trans": problem.layout,
        "M": problem.M,
        "N": problem.N,
        "K": problem.K,
        "TFLOPS": us and problem.tflops(us),
        "us": us,
        "vendor_us": vendor.duration_us if vendor else None,
        "vendor": call_name(vendor.config) if vendor and vendor.duration_us else None,
        "torch_us": torch.duration_us if torch else None,
        "time_source": profiler.time_source,
        "config": claim.config.name,
        "message": " ".join(message.split()),
        **{name: problem_cells(problem)[name] for name in _FORMAT_COLUMNS},
    }


def _time_line(claim: Claim, row: dict[str, object]) -> str:
    us = row["us"]
    if not isinstance(us, float):
        return f"{claim_text(claim)}: did not run: {row['message']}: {claim.config.name}"
    vendor_us, torch_us = (x if isinstance(x := row[name], float) else None for name in ("vendor_us", "torch_us"))
    versus = versus_text(us, vendor_us, str(row["vendor"] or ""), torch_us)
    said = f"{us:.2f} us, {claim.problem.tflops(us):.1f} TFLOPS{versus} ({row['time_source']})"
    return f"{claim_text(claim)}: {said}: {claim.config.name}"
