"""Checks the configs of a results file (--compare_wo_tuning), or times them (--benchmark)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from rich.console import Console

from genkern.cli.pace import Pace
from genkern.cli.report import format_text, versus_text
from genkern.cli.setting import Setting
from genkern.cli.target import RunTarget, make_device_checker
from genkern.compile.build_environment import BuildEnvironment
from genkern.errors import BugError, ResultsError, reporting_bugs
from genkern.file_io import is_stream, require_start_or_none, require_writable, shown_path, write_whole
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.tune_gemm_yaml import FP16_ADVICE
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Candidate, Check, Outcome
from genkern.journal.bug_log import BugLog
from genkern.journal.run_files import RunFiles
from genkern.kernels.catalogue import sums_of
from genkern.kernels.legality import legal
from genkern.ops.fields import problem_cells
from genkern.ops.op import check_problem
from genkern.profiling.device_rows import DeviceRows
from genkern.result.device import DeviceKey, same_device
from genkern.result.result import Result
from genkern.screen import put
from genkern.search.select import library_calls
from genkern.timing.libraries import VENDOR, call_name
from genkern.timing.profiler import Profiler
from genkern.timing.session import Session
from genkern.tuning.checkers import DeviceChecker
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
class OwnResults:
    """The results of a file that have a config, and the number of its rows of other libraries or formats of weights."""

    results: tuple[Result, ...]
    foreign: int = 0


def verify(setting: Setting, console: Console) -> int:
    """Check every config of the file that is for this device, and print a line for each.

    Returns 1 if a config is wrong or cannot be checked, 3 if a bug in genkern prevents a check.
    """
    path, results = _fitting(setting, console)
    bug_log = _bug_log(setting)
    wrong, unchecked, bugs = [], [], 0
    with (
        setting.build_environment(console) as build_environment,
        contextlib.closing(_checks(results, setting, build_environment)) as checks,
    ):
        for result, check in checks:
            if isinstance(check, BugError):
                console.print(bug_log.append(result_text(result), check))
                bugs += 1
                continue
            put(console, "check", _check_values(result, check), [check_line(result, check)])
            if check.method == NOT_CHECKED:
                unchecked.append(result.problem.size)
            elif not check.passed:
                wrong.append(result.problem.size)
    for found, what in ((wrong, "are wrong"), (unchecked, "could not be checked here")):
        if found:
            console.print(f"{len(found)} of {len(results)} configs in {path} {what}: {', '.join(dict.fromkeys(found))}")
    if wrong or unchecked or bugs:
        return 3 if bugs else 1
    console.print(f"all {len(results)} configs in {path} are correct")
    return 0


def check_line(result: Result, check: Check) -> str:
    """Return a line about the result of one check."""
    size, name = result.problem.size, result_text(result)
    verdict = "ok" if check.passed else "not checked" if check.method == NOT_CHECKED else "WRONG"
    how = check.how + (f" on {check.problem_size}" if check.problem_size != size else "")
    found = check.message or f"error ratio {check.error_ratio:.3g}, worst row {check.worst_row_error:.3g}"
    how = "" if check.method == NOT_CHECKED else f" ({how})"
    return f"{name}: {verdict}: {found}{how}: {result.known_config.name}"


def _check_values(result: Result, check: Check) -> dict[str, object]:
    """Return what `check_line` says as values for JSON."""
    verdict = "ok" if check.passed else "not checked" if check.method == NOT_CHECKED else "wrong"
    return {
        "size": result.problem.size,
        "problem": result.problem.name,
        "config": result.config_name,
        "verdict": verdict,
        "method": check.how,
        "checked_size": check.problem_size,
        "error_ratio": check.error_ratio,
        "worst_row_error": check.worst_row_error,
        "message": check.message,
    }


def result_text(result: Result) -> str:
    """Return the size with its format, since a results file may have one size in several formats."""
    return f"{result.problem.size} {format_text(result.problem)}"


def benchmark(setting: Setting, console: Console) -> int:
    """Time every config of the file that is for this device, and write CSV with tune_gemm's columns and more.

    Returns 1 if a config does not run, 3 if a bug in genkern is the reason.
    """
    import pandas as pd

    _, results = _fitting(setting, console)
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
        setting.build_environment(console) as build_environment,
        contextlib.closing(setting.profiler(index, build_environment)) as profiler,
        contextlib.ExitStack() as at_end,
    ):
        # Keeps the times if a later size fails.
        at_end.callback(lambda: write() if rows else None)
        for result in results:
            try:
                with reporting_bugs():
                    row = _time(result, build_environment, profiler, index)
            except BugError as bug:
                console.print(bug_log.append(result_text(result), bug))
                bugs += 1
                continue
            rows.append(row)
            put(console, "time", row, [_time_line(result, row)])
            if whole and pace.due:
                write()
    console.print(f"{len(rows)} time{'' if len(rows) == 1 else 's'} in {output}")
    if options.keep:
        console.print(f"modules: {build_environment.kept_dir}")
    return 3 if bugs else 1 if any(row["us"] is None for row in rows) else 0


def _bug_log(setting: Setting) -> BugLog:
    return BugLog(RunFiles(setting.results_path).bug_log, setting.versions, setting.options.command)


def read_own_results(path: str, defaults: GemmDefaults) -> OwnResults:
    """Return the results of a results file. Raises ResultsError."""
    rows = read_results(path, defaults)
    found = tuple(row for row in rows if row.is_genkerns)
    if not found:
        raise ResultsError(f"{shown_path(path)} holds no config of genkern or tune_gemm: nothing to do")
    return OwnResults(found, len(rows) - len(found))


def fitting(results: Sequence[Result], key: DeviceKey, where: str) -> tuple[Result, ...]:
    """Return the results for this device; if there are none, the results for other devices of the architecture, whose
    configs can run here too.

    Raises ResultsError if all results are for other architectures.
    """
    found = [result for result in results if result.arch in ("", key.arch)]
    if not found:
        raise ResultsError(
            f"{where} holds results for {results[0].arch}, this run is for {key.arch}: give --arch {results[0].arch}"
        )
    return tuple(result for result in found if result.is_of(key)) or tuple(found)


def _fitting(setting: Setting, console: Console) -> tuple[str, tuple[Result, ...]]:
    path = setting.options.gemm_size_file or setting.options.tuning_results_file
    where, key = shown_path(path), setting.target.key
    found = read_own_results(path, setting.defaults)
    results = fitting(found.results, key, where)
    for result in results:
        check_problem(result.problem, key.arch)
    if made := made_elsewhere(results, setting.target, setting.versions["triton"]):
        console.print(f"note: {where} was made {made}: its configs may be slower here, or not run")
    if found.foreign:
        console.print(f"note: left out of {where}: {_rows(found.foreign)} of other libraries or formats")
    if others := len(found.results) - len(results):
        console.print(f"note: left out of {where}: {_rows(others)} of other devices")
    if untyped := sum(not result.typed for result in results):
        type_ = next(result.problem.dtype_a for result in results if not result.typed)
        console.print(f"note: {where} does not name the types of {_rows(untyped)}: {type_} is taken{FP16_ADVICE}")
    return where, results


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def made_elsewhere(results: Sequence[Result], target: RunTarget, triton: str) -> str:
    """Return the versions of Triton and the devices of the results that differ from this machine's; or ""."""
    arch, here = target.arch, target.device_name
    tritons = sorted({version for result in results if (version := result.version_of("triton"))} - {triton})
    devices = sorted(
        {result.device for result in results if result.device and not same_device(result.device, here, arch)}
    )
    units = sorted({result.compute_units for result in results if result.compute_units} - {target.gpu.compute_units})
    said = [f"with Triton {', '.join(tritons)} (here {triton})"] if tritons else []
    said += [f"on {', '.join(devices)} (here {here})"] if devices else []
    said += [f"on {', '.join(map(str, units))} compute units (here {target.gpu.compute_units})"] if units else []
    return " ".join(said)


# A result with its check, or with the bug in genkern that prevented the check.
Checked = tuple[Result, Check | BugError]


def _tried(check: Callable[[], Check]) -> Check | BugError:
    try:
        with reporting_bugs():
            return check()
    except BugError as bug:
        return bug


def _checks(
    results: Sequence[Result], setting: Setting, build_environment: BuildEnvironment
) -> Generator[Checked, None, None]:
    legal_results = []
    for result in results:
        if why := legal(result.problem, result.known_config, build_environment.gpu):
            yield (
                result,
                Check(result.known_config.name, False, 1.0, float("inf"), result.problem.size, "legality", why),
            )
        else:
            legal_results.append(result)
    checks = _device_checks if setting.target.measured else _interpreter_checks
    yield from checks(legal_results, setting, build_environment)


def _interpreter_checks(
    results: Sequence[Result], setting: Setting, build_environment: BuildEnvironment
) -> Generator[Checked, None, None]:
    checker = interpreter_checker(setting.options.errRatio, build_environment.module_dir)

    def interpret(result: Result) -> Check | BugError:
        session = Session(
            "", result.problem, build_environment.arch, 0, build_environment.module_dir, build_environment.budget
        )
        return _tried(partial(checker.check, session, Candidate(result.known_config, ())))

    pool = ThreadPoolExecutor(setting.options.jobs)
    try:
        yield from zip(results, pool.map(interpret, results), strict=True)
    finally:
        checker.close()
        pool.shutdown(cancel_futures=True)


def _device_checks(
    results: Sequence[Result], setting: Setting, build_environment: BuildEnvironment
) -> Generator[Checked, None, None]:
    index = setting.device_indices[0]
    cache_dir, log_dir = str(build_environment.farm.cache.folder), build_environment.module_dir
    with contextlib.ExitStack() as stack:
        profiler = stack.enter_context(contextlib.closing(setting.profiler(index, build_environment)))
        device = make_device_checker(setting.target, profiler, index, cache_dir, log_dir)
        stack.callback(device.close)
        checker = DeviceChecker(device.check, device.check_call, setting.options.errRatio, DeviceRows(device))
        for result in results:
            yield result, _tried(partial(_device_check, result, build_environment, checker, index))


def _device_check(result: Result, build_environment: BuildEnvironment, checker: DeviceChecker, index: int) -> Check:
    reference = reference_of(result.problem, result.order, build_environment.gpu) if result.order else None
    configs = list(dict.fromkeys([result.known_config, *([reference] if reference is not None else [])]))
    with build_environment.open(result.problem, configs, index, [config.name for config in configs]) as builder:
        build, candidates = builder.build, {made.name: made for made in builder.candidates(configs)}
        if (candidate := candidates.get(result.known_config.name)) is not None:
            check = checker.check(build.session, candidate)
            if not (check.passed and result.order):
                return check
            if (now := sums_of(result.problem, result.known_config, build_environment.arch)) != result.order:
                return replace(check, passed=False, message=f"adds up K as {now or 'unknown'}, not {result.order}")
            beside = candidates.get(reference.name) if reference not in (None, result.known_config) else None
            assert checker.rows is not None
            rows = checker.rows.check(build.session, candidate.name, candidate, beside)
            return check if rows.passed else rows
        why = "; ".join(unfit.message for unfit in build.unfit.values())
        return Check(result.known_config.name, False, 1.0, float("inf"), result.problem.size, "gpu", why)


def _time(result: Result, build_environment: BuildEnvironment, profiler: Profiler, index: int) -> dict[str, object]:
    problem = result.problem
    final = vendor = torch = None
    if not (message := legal(problem, result.known_config, build_environment.gpu)):
        with build_environment.open(problem, [result.known_config], index) as builder:
            build, candidates = builder.build, list(builder.candidates([result.known_config]))
            finals = {m.config: m for m in profiler.retime(build.session, candidates)} if candidates else {}
            final, torch = finals.get(result.known_config.name), finals.get(VENDOR)
            vendor = next(iter(library_calls(finals.values(), build_environment.budget)), None)
            if final is not None and final.outcome is Outcome.MEASURED:
                # The finals chose the library's call by its time, which is therefore biased downwards: it is measured
                # again.
                calls = dict.fromkeys(m.config for m in (vendor, torch) if m and m.outcome is Outcome.MEASURED)
                again = {m.config: m for m in profiler.confirm(build.session, candidates, list(calls))}
                final, vendor, torch = (again.get(m.config, m) if m else None for m in (final, vendor, torch))
            message = final.message if final else "; ".join(unfit.message for unfit in build.unfit.values())
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
        "config": result.known_config.name,
        "message": " ".join(message.split()),
        **{name: problem_cells(problem)[name] for name in _FORMAT_COLUMNS},
    }


def _time_line(result: Result, row: dict[str, object]) -> str:
    us = row["us"]
    if not isinstance(us, float):
        return f"{result_text(result)}: did not run: {row['message']}: {result.known_config.name}"
    vendor_us, torch_us = (x if isinstance(x := row[name], float) else None for name in ("vendor_us", "torch_us"))
    versus = versus_text(us, vendor_us, str(row["vendor"] or ""), torch_us)
    said = f"{us:.2f} us, {result.problem.tflops(us):.1f} TFLOPS{versus} ({row['time_source']})"
    return f"{result_text(result)}: {said}: {result.known_config.name}"
