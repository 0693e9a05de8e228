"""`genkern first-run`: tries everything on a new machine in steps, and writes one report and one archive.

It was written for AMD GPUs, on which genkern has never run, and works on any GPU. Each step is a process of its own
with a time limit: if it crashes, hangs or is refused, the report says so and the next step runs. Finished steps are not
repeated when the command is run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from genkern.arguments import Parser, number, underscored
from genkern.cli.new_machine import first_report as report
from genkern.cli.new_machine.calibrating import named_folder
from genkern.cli.new_machine.plan import (
    FirstRunRequest,
    chosen_timer,
    first_steps,
    last_steps,
    machine_step,
    sizes_text,
)
from genkern.cli.new_machine.steps import DONE, Step, StepFolder, StepResult, limit_of
from genkern.cli.options import parse
from genkern.cli.target import RunTarget, choose_target, devices_to_measure
from genkern.errors import GenkernError, InputError
from genkern.file_io import shown_path, write_whole
from genkern.files.file_kind import read_results

_minutes = number("a number of minutes from 1 to 600", 1, 600)
# A step does not begin with less time left than this.
_LEAST_S = 10.0
REPORT, ARCHIVE = "report.md", "first_run.tar.gz"
# Files for the archive: no binaries, nothing large.
_SENT = ("*.md", "*.yaml", "*.csv", "steps/*", "calibration/*.json", "calibration/*.yaml*", "*.journal*")
_MOST_SENT_BYTES = 32 * 2**20


def parse_first_run(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern first-run`. Raises InputError; SystemExit(0) after printing for --help."""
    p = first_run_parser()
    return p.parse_args(underscored(argv, p))


def first_run_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern first-run",
        description="Examine a GPU's machine, check a kernel of each family and format, compare timers,\n"
        "calibrate, and tune twelve sizes beside the library. The report shows what fails;\n"
        "the same command resumes.",
    )
    group = p.add_argument_group("what to do")
    group.add_argument("--quick", action="store_true", help="fewer kernels and sizes: about two minutes")
    group.add_argument(
        "--minutes", type=_minutes, default=30.0, metavar="M", help="time limit of all steps together (default: 30)"
    )
    group.add_argument("--again", action="store_true", help="also repeat finished steps")
    group.add_argument("--gpu_id", metavar="N", help="the GPU (default: the first)")
    group.add_argument("--jobs", metavar="N", help="compile processes (default: one per CPU)")
    group.add_argument("--cache_dir", metavar="DIR", help="folder of compiled kernels (default: as when tuning)")
    group.add_argument("--space", metavar="FILE", help="as when tuning")
    group.add_argument(
        *("-o", "--output"),
        metavar="FOLDER",
        default="output/first_run",
        help=f"for {REPORT} and {ARCHIVE} (default: output/first_run)",
    )
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_first_run(options: argparse.Namespace, console: Console) -> int:
    """Run the steps; returns 1 if a step did not end well. Raises InputError if there is no GPU."""
    passed_on = _passed_on(options)
    devices = devices_to_measure("genkern first-run")
    target = choose_target(parse(["-m", "1", "-n", "1", "-k", "1", *passed_on]), devices)
    if not target.measured:
        raise InputError("genkern first-run measures, and this machine has no GPU that genkern can measure on")
    folder = named_folder(options.output)
    run = _FirstRun(StepFolder(folder), target, console, time.monotonic() + options.minutes * 60, options.again)
    wanted = FirstRunRequest(folder, options.quick, tuple(passed_on))
    write_whole(str(folder / "sizes.yaml"), sizes_text(wanted))
    # The steps' time limits do not depend on the timer.
    last = last_steps(wanted, target.gpu, "auto")
    run.do([machine_step()], [*first_steps(wanted, target.gpu, {}), *last])
    run.do(first_steps(wanted, target.gpu, run.machine), last)
    timer = chosen_timer(target.gpu, [name.removeprefix("time_") for name in run.timed_well])
    run.do(last_steps(wanted, target.gpu, timer), ())
    archive = run.packed()
    console.print(run.text())
    console.print(f"report: {shown_path(str(folder / REPORT))}; to send: {shown_path(str(archive))}")
    return 0 if all(ended.state == DONE for _, ended in run.steps) else 1


class _FirstRun:
    """The steps of a first run so far; the report is rewritten after each step."""

    def __init__(self, kept: StepFolder, target: RunTarget, console: Console, until_s: float, again: bool) -> None:
        self.steps: list[tuple[Step, StepResult]] = []
        self._kept, self._target, self._console = kept, target, console
        self._until_s, self._again = until_s, again

    @property
    def machine(self) -> dict[str, Any]:
        """The facts about the machine; empty if that step did not end well."""
        with contextlib.suppress(ValueError):
            found = json.loads(self._kept.output("machine"))
            return found if isinstance(found, dict) else {}
        return {}

    @property
    def timed_well(self) -> list[str]:
        """The names of the timers' steps that timed everything."""
        return [step.name for step, ended in self.steps if step.name.startswith("time_") and ended.status == 0]

    @property
    def _timers(self) -> list[str]:
        return [step.name for step, _ in self.steps if step.name.startswith("time_")]

    def do(self, steps: Sequence[Step], later: Sequence[Step]) -> None:
        """Run the steps that are not done, and write the report after each; time is reserved for the `later` steps."""
        for place, step in enumerate(steps, start=1):
            self._do(step, [*steps[place:], *later])

    def _do(self, step: Step, later: Sequence[Step]) -> None:
        left_s = self._until_s - time.monotonic()
        before = None if self._again else self._kept.ended(step)
        if before is not None and before.state == DONE:
            ended, how = before, "done before"
        elif left_s < _LEAST_S:
            ended = self._kept.leave_out(step, "the time of --minutes is over")
            how = ended.state
        else:
            self._console.print(f"{step.name}: {step.title} ...")
            ended = self._kept.run(step, limit_of(step, left_s, later))
            how = f"{ended.state} after {ended.seconds:.0f} s" + (f": {ended.said}" if ended.state != DONE else "")
        self._console.print(f"{step.name}: {how}")
        self.steps.append((step, ended))
        write_whole(str(self._kept.folder / REPORT), self.text())

    def text(self) -> str:
        """Return the report."""
        gpu = self._target.gpu
        return report.report_text(
            f"First run on {self._target.device_name} ({gpu.arch})",
            self.steps,
            {step.name: self._section(step, ended) for step, ended in self.steps},
            dict.fromkeys(self._timers[-1:], "Timers compared"),
        )

    def packed(self) -> Path:
        """Write all small files to one archive, atomically, and return its path."""
        folder = self._kept.folder
        archive, partly = folder / ARCHIVE, folder / f".{ARCHIVE}.{os.getpid()}"
        files = sorted({path for pattern in _SENT for path in folder.glob(pattern) if path.is_file()})
        try:
            with tarfile.open(partly, "w:gz") as tar:
                for path in files:
                    if path.stat().st_size <= _MOST_SENT_BYTES:
                        tar.add(path, arcname=f"first_run/{path.relative_to(folder)}")
            os.replace(partly, archive)
        finally:
            partly.unlink(missing_ok=True)
        return archive

    def _section(self, step: Step, ended: StepResult) -> list[str]:
        try:
            found = self._found(step)
        except (OSError, ValueError, LookupError, TypeError, GenkernError):
            # A step that was interrupted leaves incomplete files.
            found = []
        return [*found, *report.failure_lines(ended, self._kept.output(step.name) + self._kept.errors(step.name))]

    def _found(self, step: Step) -> list[str]:
        folder = self._kept.folder
        if step.name == "machine":
            return report.machine_lines(self.machine)
        if step.name == "prove":
            return report.proof_lines(self._kept.output("prove"), self._kept.output("compile"))
        if step.name in self._timers[-1:]:
            timers = [name.removeprefix("time_") for name in self._timers]
            files = {name: folder / f"times_{name}.csv" for name in timers}
            return report.timer_lines({name: path.read_text() for name, path in files.items() if path.exists()})
        if step.name == "calibrate":
            return report.calibration_lines((folder / "calibration" / "calibration.json").read_text())
        if step.name == "tune":
            return report.tuned_lines(read_results(str(folder / "tuned.yaml")))
        if step.name == "aiter":
            return report.peer_lines(self._kept.output("aiter"))
        return []


def _passed_on(options: argparse.Namespace) -> list[str]:
    """Return the options of tuning that all steps get."""
    given = {"--gpu_ids": options.gpu_id, "--jobs": options.jobs, "--cache_dir": options.cache_dir}
    return [word for name, value in (given | {"--space": options.space}).items() if value for word in (name, value)]
