"""Tests of benchmarks/mutants.py: faults are faults, what is found is counted, and what is no mutant is not."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import mutants
import pytest
from faults_of_kernels import FAULTS
from mutants import Case, Judged, last_line, mutated, report
from small_gemms import needs_interpreter

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.family import FAMILIES

CASE = Case(GemmProblem(1, 1, 1), Config("tiled", 16, 16, 16))
BAD = Case(CASE.problem, CASE.config, "bias is missing")


@pytest.fixture(scope="module")
def made() -> list[tuple[Case, str]]:
    """Every mutant of every family, as on an H200."""
    return list(mutants.mutants(list(FAMILIES), "sm_90", True))


def test_every_family_has_faults_and_every_fault_a_family(made: list[tuple[Case, str]]) -> None:
    """At least 60 mutants in all; a fault that applies nowhere would be one that is never looked for."""
    assert len(made) >= 60
    # persistent_tma_specialized is for sm_100 only.
    assert {case.config.family for case, _ in made} >= set(FAMILIES) - {"persistent_tma_specialized"}
    assert {case.fault for case, _ in made} == {fault.name for fault in FAULTS}


def test_mutants_are_python(made: list[tuple[Case, str]]) -> None:
    """A fault changes what a kernel computes, not whether it can be read."""
    for case, text in made:
        ast.parse(text, case.fault)


def test_a_fault_that_does_not_apply_is_no_mutant() -> None:
    """A text without the place, or one that stays as it is, is not counted as found."""
    assert mutated("nothing of it", FAULTS[0]) is None


@pytest.mark.parametrize(
    ("judged", "line", "good"),
    [
        ([Judged(BAD, "wrong", ""), Judged(BAD, "hangs", ""), Judged(CASE, "passed", "")], "found 2 of 2", True),
        ([Judged(BAD, "passed", ""), Judged(CASE, "passed", "")], "found 0 of 1", False),
        ([Judged(BAD, "invalid", "does not compile"), Judged(CASE, "passed", "")], "found 0 of 1", False),
        ([Judged(BAD, "wrong", ""), Judged(CASE, "wrong", "C[0, 0]")], "found 1 of 1", False),
        ([], "found 0 of 0", False),
    ],
)
def test_only_all_found_without_an_alarm_is_good(judged: list[Judged], line: str, good: bool) -> None:
    """The last line and the status say the same; nothing judged is nothing shown."""
    alarms = sum(item.outcome != "passed" for item in judged if not item.case.fault)
    assert last_line(judged) == (f"{line}, false alarms {alarms}", good)


def test_the_report_names_what_was_missed() -> None:
    """A mutant that passed and a sound kernel that did not are lines of their own."""
    text = report([Judged(BAD, "passed", ""), Judged(CASE, "wrong", "C[0, 0] is 1")])
    assert "bias is missing: passed" in text
    assert "no fault: wrong C[0, 0] is 1" in text


@needs_interpreter
def test_the_command_finds_the_faults_of_a_family() -> None:
    """Without a GPU it does what the interpreter can, says so in its last line, and ends with 0."""
    argv = [
        sys.executable,
        str(Path(mutants.__file__)),
        "--families",
        "gemv",
        "--faults",
        "bias",
        "--sizes",
        "1",
        "--jobs",
        "2",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, done.stdout + done.stderr
    found, made = last.removeprefix("found ").partition(",")[0].split(" of ")
    assert found == made > "1"
    assert last.endswith("false alarms 0")
