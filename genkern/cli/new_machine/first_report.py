"""The report of a first run: a page of Markdown from the outputs of its steps."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from genkern.cli.new_machine.steps import DONE, LEFT_OUT, Step, StepResult
from genkern.result.result import Result

_PROOF = re.compile(r"^\S+ .*?: (ok|not checked|WRONG): ")
_TAIL_LINES = 12


def report_text(
    title: str,
    steps: Sequence[tuple[Step, StepResult]],
    sections: Mapping[str, Sequence[str]],
    heads: Mapping[str, str],
) -> str:
    """Return the page: a table of how each step ended, then the sections of the steps.

    The head of a section is in `heads`, or else the step's title. Steps without lines in `sections` have no section.
    """
    total_s = sum(ended.seconds for _, ended in steps)
    lines = [
        f"# {title}",
        "",
        f"{total_s / 60:.1f} minutes. All times were measured on this machine, and none is an average with times",
    ]
    lines += [
        "of another machine. The archive beside this page is for the project; look through it before you send it,"
    ]
    lines += ["since journals contain the host's name and folders.", ""]
    lines += ["| step | what | ended | seconds |", "|---|---|---|---|"]
    for step, ended in steps:
        said = f": {ended.said}" if ended.said and ended.state != DONE else ""
        lines.append(f"| {step.name} | {step.title} | {_cell(ended.state + said)} | {ended.seconds:.0f} |")
    for step, _ in steps:
        if found := sections.get(step.name):
            lines += ["", f"## {heads.get(step.name, step.title)}", "", *found]
    return "\n".join(lines) + "\n"


def machine_lines(machine: Mapping[str, Any]) -> list[str]:
    """Return a line for each property of the machine, with the reason if it is missing."""
    return [f"- {name}: {_said(value)}" for name, value in machine.items()]


def proof_lines(output: str, compiled: str) -> list[str]:
    """Return the number of kernels that are right, and the kernels that are not right or were not compiled."""
    found = [(match[1], line) for line in output.splitlines() if (match := _PROOF.match(line))]
    right = sum(verdict == "ok" for verdict, _ in found)
    refused = [
        line
        for line in compiled.splitlines()
        if line.startswith(("not compiled: ", "left out: ")) or ": left out" in line
    ]
    lines = [f"{right} of {len(found)} kernels are right to the bit."]
    lines += [f"- {_cell(line)}" for verdict, line in found if verdict != "ok"]
    return lines + [f"- {_cell(line)}" for line in refused]


def timer_lines(tables: Mapping[str, str]) -> list[str]:
    """Return a table of times of the same kernels by several timers (CSV of --benchmark), relative to the first
    timer."""
    times = {timer: _times_of(text) for timer, text in tables.items()}
    times = {timer: found for timer, found in times.items() if found}
    if not times:
        return ["No timer gave a time."]
    first = next(iter(times))
    lines = ["| size | " + " | ".join(f"{timer}, us" for timer in times) + " |", "|---" * (len(times) + 1) + "|"]
    for size in dict.fromkeys(size for found in times.values() for size in found):
        cells = []
        for timer, found in times.items():
            us, base_us = found.get(size), times[first].get(size)
            over = f" ({us / base_us:.3f})" if us and base_us and timer != first else ""
            cells.append(f"{us:.2f}{over}" if us else "none")
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return [*lines, "", f"In brackets: relative to {first}."]


def tuned_lines(rows: Iterable[Result]) -> list[str]:
    """Return a table of tuned sizes, with the times of the library's best call and of PyTorch relative to the winner's.

    Below it is the geometric mean of the library's ratios.
    """
    lines = ["| size | us | library / us | PyTorch / us | checked | winner |", "|---|---|---|---|---|---|"]
    ratios: list[float] = []
    for row in rows:
        vendor, torch = (_over(each, row.duration_us) for each in (row.vendor_us, row.torch_us))
        if row.vendor_us and row.duration_us:
            ratios.append(math.log(row.vendor_us / row.duration_us))
        name = row.config_name if row.config else row.choice
        time_us = f"{row.duration_us:.2f}" if row.duration_us else "none"
        lines.append(f"| {row.problem.size} | {time_us} | {vendor} | {torch} | {row.proved_by or 'none'} | {name} |")
    if ratios:
        mean = math.exp(sum(ratios) / len(ratios))
        lines += [
            "",
            f"Time of the library's best call over genkern's: {mean:.3f} in geometric mean, {len(ratios)} sizes.",
        ]
    return lines


def calibration_lines(text: str) -> list[str]:
    """Return a table of how well the shipped and the fitted constants rank each size's kernels; then the constants.

    text: the contents of calibration.json
    """
    said = json.loads(text)
    on = said["fitted_on"]
    lines = [
        "| size | kernels | constants | rank correlation | place of the best | best of the first 10 |",
        "|---" * 6 + "|",
    ]
    for size, by_name in on["orders"].items():
        for name, order in by_name.items():
            numbers = " | ".join(f"{order[key]:.3f}" for key in ("rank_correlation", "best_place", "best_of_ten"))
            lines.append(f"| {size} | {order['kernels']} | {name} | {numbers} |")
    kept = "kept, and used from now on" if on["is_better"] else "not kept: no better on sizes that were not fitted on"
    constants = ", ".join(f"{name} {value:.3g}" for name, value in on["fitted"].items())
    return [*lines, "", f"Fitted constants ({kept}): {constants}. The last size was never fitted on."]


def peer_lines(output: str) -> list[str]:
    """Return the number of AITER's calls that are right, and a line for each call that is wrong or was left out."""
    found = [line for line in output.splitlines() if ": " in line]
    called = [line for line in found if not line.startswith("left out: ")]
    right = sum(line.endswith(": right") for line in called)
    lines = [f"{right} of {len(called)} calls are right; tuning times these."] if called else []
    return lines + [f"- {_cell(line)}" for line in found if not line.endswith(": right")]


def failure_lines(ended: StepResult, output: str) -> list[str]:
    """Return the last lines of the output of a step that failed."""
    if ended.state in (DONE, LEFT_OUT):
        return []
    return ["```", *(line[:300] for line in output.splitlines()[-_TAIL_LINES:]), "```"]


def _times_of(text: str) -> dict[str, float]:
    found = {}
    for row in csv.DictReader(io.StringIO(text)):
        try:
            found[f"{row['M']}x{row['N']}x{row['K']}"] = float(row["us"])
        except (KeyError, TypeError, ValueError):
            continue
    return {size: us for size, us in found.items() if math.isfinite(us) and us > 0}


def _over(us: float | None, own_us: float | None) -> str:
    return f"{us / own_us:.3f}" if us and own_us else ""


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(each)}" for name, each in value.items())
    if isinstance(value, list):
        return "; ".join(map(_said, value)) or "none"
    return _cell(str(value))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:400]
