"""Tests of cli/new_machine/steps.py: whatever a step's process does, its end is told and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from genkern.cli.new_machine.steps import DONE, FAILED, LATE, LEFT_OUT, Step, StepFolder


def step(code: str, name: str = "one", may_fail_by_one: bool = True) -> Step:
    return Step(name, "A step", ("-c", code), 20.0, may_fail_by_one)


@pytest.mark.parametrize(
    ("code", "may_fail", "state", "said"),
    [
        ("print('fine')", True, DONE, ""),
        ("import sys; sys.exit(1)", True, DONE, "exit code 1"),
        ("import sys; sys.exit(1)", False, FAILED, "exit code 1"),
        ("import sys; sys.exit('no GPU here')", False, FAILED, "exit code 1; no GPU here"),
        ("import os; os.kill(os.getpid(), 11)", True, FAILED, "killed by SIGSEGV"),
        ("import os; os._exit(3)", True, FAILED, "exit code 3"),
    ],
)
def test_how_a_process_ended_is_told_and_kept(
    code: str, may_fail: bool, state: str, said: str, hostile_path: Path
) -> None:
    """With its exit status, or the signal that killed it, and the last line that it said."""
    folder = StepFolder(hostile_path)
    ended = folder.run(step(code, may_fail_by_one=may_fail), 20.0)
    assert (ended.state, ended.said) == (state, said)
    assert folder.ended(step(code)) == ended


def test_a_step_that_hangs_is_ended(tmp_path: Path) -> None:
    """At its limit; what it had said is there."""
    folder = StepFolder(tmp_path)
    ended = folder.run(step("import time; print('begun', flush=True); time.sleep(600)"), 1.5)
    assert (ended.state, folder.output("one")) == (LATE, "begun\n")
    assert ended.said.startswith("timed out after")


def test_a_step_that_reads_other_files_is_another(tmp_path: Path) -> None:
    """A longer list of sizes under the same arguments is to be done; the same text again is not."""
    folder, sizes = StepFolder(tmp_path), tmp_path / "sizes.yaml"
    reading = Step("one", "A step", ("-c", "print(1)"), 20.0, reads=(str(sizes),))
    folder.run(reading, 20.0)
    assert folder.ended(reading) is not None
    sizes.write_text("- 1\n")
    assert folder.ended(reading) is None
    ended = folder.run(reading, 20.0)
    sizes.write_text("- 1\n")
    assert folder.ended(reading) == ended


def test_sizes_share_the_time_of_their_step(tmp_path: Path) -> None:
    """Each search has its part, whatever that is in this run: the step stays the same one."""
    printing = Step("one", "A step", ("-c", "import sys; print(*sys.argv[1:])"), 20.0, sizes=4)
    folder = StepFolder(tmp_path)
    ended = folder.run(printing, 20.0)
    option, seconds = folder.output("one").split()
    assert option == "--budget"
    assert 1.0 < float(seconds.removesuffix("s")) < 5.0
    assert folder.ended(printing) == ended


def test_another_step_of_that_name_was_not_run(tmp_path: Path) -> None:
    """What was done with other arguments, was left out or left a damaged file, is to be done."""
    folder = StepFolder(tmp_path)
    folder.run(step("print(1)"), 20.0)
    assert folder.ended(step("print(2)")) is None
    left = folder.leave_out(step("print(1)"), "no time")
    assert (left.state, folder.ended(step("print(1)"))) == (LEFT_OUT, None)
    for damaged in ("", "[]", "{}", json.dumps({"name": "one"})):
        (tmp_path / "steps" / "one.json").write_text(damaged)
        assert folder.ended(step("print(1)")) is None
    assert (folder.output("never"), folder.errors("never")) == ("", "")
