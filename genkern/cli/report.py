"""The text that users read: a line per finished size, the table of winners, the counts of outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS, TIE, Outcome
from genkern.kernels.catalogue import is_deterministic, sums_of
from genkern.ops.op import gb_per_s
from genkern.result.result import Proof, Result
from genkern.screen import fitted
from genkern.timing.libraries import TORCH, library_of

if TYPE_CHECKING:
    # `genkern status` does not need the modules that tune.
    from genkern.tuning.tune import Report

_LEFT_ALIGNED = ("size", "vendor", "format", "check", "source", "deterministic", "winner")


def percent_of_peak(winner: Result, gpu: Gpu) -> float | None:
    """Return the share of the device's dense matrix peak for A's type, in percent; None if the peak is unknown."""
    peak = gpu.peak_tflops.get(DTYPES[winner.problem.dtype_a].peak)
    return None if peak is None else 100 * winner.problem.tflops(winner.known_us) / peak


def percent_of_roofline(winner: Result, gpu: Gpu) -> float | None:
    """Return the larger share, in percent: of the device's matrix peak, or of its memory bandwidth. None without a
    peak."""
    peak = percent_of_peak(winner, gpu)
    memory = gb_per_s(winner.problem, winner.known_us) / (gpu.memory_tb_per_s * 1e3) * 100
    return None if peak is None else max(peak, memory)


def format_text(problem: GemmProblem) -> str:
    """Return op, types and fields without their default value.

    Examples: `OP bf16`, `OP fp8e4m3fn->bf16 A column-major, bias, scales per_token`.
    """
    types = problem.dtype_a
    if problem.dtype_b != problem.dtype_a:
        types += f"*{problem.dtype_b}"
    if problem.dtype_c != problem.dtype_a:
        types += f"->{problem.dtype_c}"
    extras = [
        *([] if problem.row_major_a else ["A column-major"]),
        *(["B row-major"] if problem.row_major_b else []),
        *(["bias"] if problem.bias else []),
        *([problem.activation] if problem.activation != "none" else []),
        *(f"{name} {value}" for name, value in problem.own),
    ]
    return f"{problem.op} {types}" + (f" {', '.join(extras)}" if extras else "")


def winners_table(winners: Sequence[Result], gpu: Gpu, columns: int | None, *, errors: bool = False) -> list[str]:
    """Return the lines of the table of winners, with a title; `errors` adds the figures of the checks.

    Empty columns are left out, and a format that all sizes share is in the title. If a line would be longer than
    `columns` (None: no limit), the winners' names, and if necessary the columns before them, are on lines of their own.
    """
    formats = {format_text(winner.problem) for winner in winners}
    title = f"{gpu.name} ({gpu.arch})" + (f", {formats.pop()}" if len(formats) == 1 else "")
    cells: dict[str, Callable[[Result], str]] = {
        "size": lambda w: w.problem.size,
        "us": lambda w: f"{w.known_us:.2f}",
        **({"80 %": _interval_cell} if any(winner.predicted_interval_us for winner in winners) else {}),
        "TFLOPS": lambda w: f"{w.problem.tflops(w.known_us):.1f}",
        "% peak": lambda w: _percent(percent_of_peak(w, gpu)),
        "% roof": lambda w: _percent(percent_of_roofline(w, gpu)),
        "source": lambda w: w.time_source,
    }
    if formats:
        cells["format"] = lambda w: format_text(w.problem)
    if any(winner.vendor_us for winner in winners):
        cells["vs vendor"] = lambda w: "tie " * (w.choice == TIE) + _times(w.vendor_us, w)
    if any(winner.vendor not in ("", TORCH) for winner in winners):
        cells["vendor"] = lambda w: library_of(w.vendor) if w.vendor else "-"
        cells["vs torch"] = lambda w: _times(w.torch_us, w)
    if any(winner.check for winner in winners):
        cells["check"] = lambda w: _check_cell(w.check)
        if errors:
            cells["error ratio"] = lambda w: _error(w.check.error_ratio if w.check else None)
            cells["worst row"] = lambda w: _error(w.check.worst_row_error if w.check else None)
    if not all(is_deterministic(winner.problem, winner.known_config) for winner in winners):
        cells["deterministic"] = lambda w: "yes" if is_deterministic(w.problem, w.known_config) else "no"
    cells["winner"] = lambda w: w.config_name
    rows = [list(cells), *([cell(winner) for cell in cells.values()] for winner in winners)]
    right = [name for name in cells if name not in _LEFT_ALIGNED]
    return [title, *fitted(rows, right, columns)]


def invariant_table(winners: Sequence[Result], gpu: Gpu, columns: int | None) -> list[str]:
    """Return the lines of a table of winners in one order of sums for all M: what is called, and what the order
    costs."""
    rows = [["size", "us", "loss", "vs torch", "called", "sums"]]
    for winner in winners:
        us = winner.known_us if winner.choice == CONFIG_WINS else winner.vendor_us or winner.known_us
        loss = "-" if winner.invariant_loss is None else f"{100 * winner.invariant_loss:.1f} %"
        torch = f"{winner.torch_us / us:.3f}x" if winner.torch_us else "-"
        called = winner.config_name if winner.choice == CONFIG_WINS else library_of(winner.vendor)
        sums = sums_of(winner.problem, winner.known_config, winner.arch)
        rows.append([winner.problem.size, f"{us:.2f}", loss, torch, called, sums])
    title = f"{gpu.name} ({gpu.arch}), one order of sums for all M"
    return [title, *fitted(rows, ("us", "loss", "vs torch"), columns)]


def size_line(report: Report) -> str:
    """Return a line about how one size ended."""
    size, winner = report.problem.size, report.winner
    if winner is None:
        return f"{size}: no winner: {report.message}"
    tie = winner.choice == TIE
    versus = versus_text(winner.known_us, winner.vendor_us, winner.vendor, winner.torch_us, tie)
    checked = ""
    if winner.check is not None:
        reduced = f" on {winner.check.problem_size}" if winner.check.problem_size != size else ""
        stand_in = f" in {winner.check.stand_in}" if winner.check.stand_in else ""
        checked = f", {winner.check.method} check ok{stand_in}{reduced}"
    elif report.unchecked:
        checked = f", not checked here: {report.unchecked}"
    if not is_deterministic(report.problem, winner.known_config):
        checked += ", not deterministic"
    tflops = report.problem.tflops(winner.known_us)
    before, earlier = report.incumbent, ""
    if before is not None and before.config != winner.config_name:
        how = f"{before.duration_us:.2f} us" if before.outcome is Outcome.MEASURED else before.outcome.value
        earlier = f"; before: {how}: {before.config}"
    return (
        f"{size}: {winner.known_us:.2f} us{_interval_text(winner)}, {tflops:.1f} TFLOPS{versus} "
        f"({winner.time_source}){checked}: "
        f"{winner.config_name}{earlier}"
    )


def size_values(report: Report) -> dict[str, object]:
    """Return what `size_line` says as values for JSON. Times are in microseconds, and `time_source` names their
    source."""
    winner = report.winner
    values: dict[str, object] = {"size": report.problem.size, "problem": report.problem.name}
    if winner is None:
        return {**values, "config": None, "message": report.message}
    return {
        **values,
        "config": winner.config_name,
        "choice": winner.choice,
        "us": winner.duration_us,
        "time_source": winner.time_source,
        "predicted_interval_us": winner.predicted_interval_us,
        "tflops": report.problem.tflops(winner.known_us),
        "vendor": winner.vendor,
        "vendor_us": winner.vendor_us,
        "torch_us": winner.torch_us,
        "check": winner.check.method if winner.check else None,
        "arch": winner.arch,
        "device": winner.device,
    }


def _interval_cell(winner: Result) -> str:
    ends = winner.predicted_interval_us
    return "-" if ends is None else f"{ends[0]:.2f}-{ends[1]:.2f}"


def _interval_text(winner: Result) -> str:
    """Return a prediction's 80 % interval, such as ` (11.30 to 14.10)`; "" for a measured time."""
    if (ends := winner.predicted_interval_us) is None:
        return ""
    return f" ({ends[0]:.2f} to {ends[1]:.2f})"


def versus_text(us: float, vendor_us: float | None, vendor: str, torch_us: float | None, tie: bool = False) -> str:
    """Return the ratios of the libraries' times to `us`: `, 1.050x vendor (cublaslt), 1.081x torch`.

    The vendor's best call comes first. PyTorch's own is named if it is not the best. A tie with the best is marked.
    Empty if no library was timed.
    """
    named = f" ({library_of(vendor)})" if vendor not in ("", TORCH) else ""
    best = f", {vendor_us / us:.3f}x vendor{named}{', a tie' * tie}" if vendor_us else ""
    return best + (f", {torch_us / us:.3f}x torch" if torch_us and (named or not best) else "")


def detail_lines(report: Report) -> list[str]:
    """Return a line with the outcomes of one size's candidates, the time of each stage, the clock of the finals and the
    searched share; then the candidates that failed the check or were not checked, the winner's order of sums, and the
    message of the library's calls, if any."""
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.stage_s.items())
    told = (Outcome.WRONG, Outcome.UNCHECKED)
    wrong = [f"  {m.outcome.value}: {name}: {m.message}" for name, m in report.candidates.items() if m.outcome in told]
    outcomes = outcome_text(report.outcomes, report.time_source)
    final = next((m for m in report.candidates.values() if m.usual_mhz is not None), None)
    clock = "" if final is None else f"; finals at {final.usual_mhz:.0f} MHz"
    clock += "" if final is None or final.watts is None else f", {final.watts:.0f} W"
    vendor = report.vendor
    library = [f"  vendor library: {vendor.outcome.value}: {vendor.message}"] if vendor and vendor.message else []
    winner = report.winner
    sums = sums_of(winner.problem, winner.known_config, winner.arch) if winner else ""
    order = [f"  sums: {sums}"] if sums else []
    return [f"  {outcomes}; {times}{clock}{_searched(report)}", *wrong, *order, *library]


def _searched(report: Report) -> str:
    """Return the searched share and the expected loss: `; 3.1 % of the binaries, expected loss 0.2 %`."""
    share, loss = report.confidence.searched_share, report.confidence.expected_loss
    searched = "" if share is None else f"; {100 * share:.3g} % of the binaries"
    return searched + ("" if loss is None else f"{', ' if searched else '; '}expected loss {100 * loss:.2g} %")


def outcome_text(outcomes: Counter[Outcome], time_source: str) -> str:
    """Return counts such as `measured 672, compile_failed 3, pruned 131,328`; every candidate has exactly one outcome.

    If times are predicted, the text says so: `predicted 672`.
    """
    order = [outcome for outcome in reversed(Outcome) if outcomes[outcome]]
    return ", ".join(f"{outcome.said_of(time_source)} {outcomes[outcome]:,}" for outcome in order)


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _check_cell(check: Proof | None) -> str:
    if check is None:
        return "none"
    return f"ok ({check.stand_in})" if check.stand_in else "ok"


def _times(library_us: float | None, winner: Result) -> str:
    return f"{library_us / winner.known_us:.3f}x" if library_us else "-"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def lost_line(device_index: int, error: Exception, left: int) -> str:
    """Return the line that a device is used no more, and why; its sizes go to `left` other devices."""
    others = f"{left} other device{'s' if left > 1 else ''}"
    return f"device {device_index} is lost, its sizes go to the {others}: {' '.join(str(error).split())}"
