"""Tests of mutants.py: faults are faults, what is found is counted, and what is no mutant is not."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from forms import CUTE_FORMS, FORMS
from small_gemms import needs_interpreter

from benchmarks.checking import mutant_cases
from benchmarks.checking.faults_of_kernels import FAULTS, Fault
from benchmarks.checking.judges import Judged
from benchmarks.checking.mutant_cases import Case, kinds_of, mutated, sound
from benchmarks.checking.mutants import Verdicts, key_lines, last_line, report
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import CUTE, FAMILIES, traits_of
from genkern.kernels.generate import generate

ROOT = Path(__file__).resolve().parents[3]
CASE = Case(GemmProblem(1, 1, 1), Config("tiled", 16, 16, 16))
BAD = Case(CASE.problem, CASE.config, "bias is missing")


@pytest.fixture(scope="module")
def made() -> list[Case]:
    """Every mutant of all kernels, as on an H200."""
    return mutant_cases.mutants(kinds_of(FAMILIES), "sm_90", True)


def test_all_kernels_have_faults_and_every_fault_has_kernels(made: list[Case]) -> None:
    """At least 60 mutants in all; a fault that applies nowhere would be one that is never looked for."""
    assert len(made) >= 60
    # persistent_tma_specialized is for sm_100 only, and kernels in CuTe DSL are no part of the modules that are edited.
    assert {case.kind for case in made} >= set(FORMS) - {"persistent_tma_specialized", *CUTE_FORMS}
    assert {case.fault for case in made} == {mutant_cases.FAST_SUMS, *(fault.name for fault in FAULTS)}


def test_every_entry_of_a_fault_applies_somewhere(made: list[Case]) -> None:
    """Also where several have one name: an edit of a text that is gone would look like one that is judged."""
    texts = {generate(case.problem, [case.config], "sm_90").text for case in made if case.fault}
    assert not [fault for fault in FAULTS if not any(mutated(text, fault) for text in texts)]


def test_kernels_in_cute_dsl_are_judged_with_a_split_and_without() -> None:
    """These are two kernels; the faults of those that split are in the one that adds up."""
    kinds = [kind for kind in kinds_of(CUTE) if kind.form.splits_k]
    assert kinds
    cases = sound(kinds, "sm_90", 2, True)
    assert {case.kind for case in cases} == {kind.name for kind in kinds}
    assert {case.kind.endswith("_split") for case in cases if case.config.SPLIT_K > 1} == {True}
    made = mutant_cases.mutants(kinds, "sm_90", True)
    assert {case.kind for case in made} == {kind.name for kind in kinds if kind.splits}


def test_mutants_are_python(made: list[Case]) -> None:
    """A fault changes what a kernel computes, not whether it can be read."""
    # Most of a text is that of all the others.
    for chunk, fault in {chunk: case.fault for case in made for chunk in case.text.split("\n\n\n")}.items():
        ast.parse(chunk, fault)


def test_all_kernels_come_early(made: list[Case]) -> None:
    """What is judged before a limit is of all kernels: each kind comes once before any comes twice."""
    for cases in (made, sound(kinds_of(FAMILIES), "sm_90", 2, True)):
        kinds = [case.kind for case in cases]
        first = kinds[: len(set(kinds))]
        assert sorted(first) == sorted(set(kinds))


def test_faults_have_room_to_show(made: list[Case]) -> None:
    """Each program's ring comes round twice where nobody waits for a free buffer; tiles have an order, on both sides;
    a split is long enough for the check to tell fast sums, and of a tile that wgmma takes, where the family has one.
    """
    for case in made:
        problem, config, cluster_k = case.problem, case.config, traits_of(case.config).cluster_k
        blocks = -(-problem.K // config.BLOCK_SIZE_K)
        if case.fault == "nobody waits for a free buffer":
            assert blocks // (cluster_k * config.SPLIT_K) >= 2 * config.num_stages, case.config.name
        if case.fault == "tiles in another order":
            assert problem.M > config.BLOCK_SIZE_M, case.config.name
            assert problem.N > config.BLOCK_SIZE_N, case.config.name
        if case.fault == mutant_cases.FAST_SUMS:
            assert problem.K // (cluster_k * config.SPLIT_K) >= 384, case.config.name
            assert (config.BLOCK_SIZE_M, config.BLOCK_SIZE_N) == (64, 64), case.config.name


def test_a_fault_that_does_not_apply_is_no_mutant() -> None:
    """A text without the place, or one that stays as it is, is not counted as found."""
    assert mutated("nothing of it", FAULTS[0]) is None
    assert mutated("x", Fault("", "x", "y", unless="z")) == "y"
    assert mutated("x z", Fault("", "x", "y", unless="z")) is None


@pytest.mark.parametrize(
    ("judged", "line", "good"),
    [
        ([Judged(BAD, "wrong", ""), Judged(BAD, "hang", ""), Judged(CASE, "passed", "")], "found 2 of 2", True),
        ([Judged(BAD, "fault", ""), Judged(BAD, "refused", "")], "found 2 of 2", True),
        ([Judged(BAD, "passed", ""), Judged(CASE, "passed", "")], "found 0 of 1", False),
        ([Judged(BAD, "invalid", "does not compile"), Judged(CASE, "passed", "")], "found 0 of 1", False),
        ([Judged(BAD, "wrong", ""), Judged(CASE, "wrong", "C[0, 0]")], "found 1 of 1", False),
        ([], "found 0 of 0", False),
    ],
)
def test_only_all_found_without_an_alarm_is_good(judged: list[Judged], line: str, good: bool) -> None:
    """The last line and the status say the same; nothing judged is nothing shown."""
    alarms = sum(item.outcome != "passed" for item in judged if not item.case.fault)
    assert last_line([item.case for item in judged], judged) == (f"{line}, false alarms {alarms}", good)


def test_what_was_not_judged_is_not_found() -> None:
    """A run that a limit ended is not good, though all that it judged was found."""
    assert last_line([BAD, BAD, CASE], [Judged(BAD, "wrong", "")]) == ("found 1 of 2, false alarms 0", False)
    assert last_line([BAD, CASE], [Judged(BAD, "wrong", "")]) == ("found 1 of 1, false alarms 0", False)


def test_keys_are_of_what_was_judged() -> None:
    """A GPU's verdicts count faults and kernels without; those of the interpreter have a key of their own."""
    judged = [Judged(BAD, "wrong", ""), Judged(BAD, "passed", ""), Judged(CASE, "wrong", "C[0, 0]")]
    found = dict(line.split(": ") for line in key_lines(judged, on_gpu=True))
    assert found == {"mutants_made": "2", "mutants_found": "1", "sound_judged": "1", "false_alarms": "1"}
    assert key_lines(judged, on_gpu=False) == ["mutants_interpreted: 1"]


def test_the_report_names_what_was_missed() -> None:
    """A mutant that passed and a sound kernel that did not are lines of their own; each form has a row."""
    swapped = replace(BAD, config=replace(CASE.config, swapped=1, reduce="semaphore"))
    text = report([Judged(BAD, "passed", ""), Judged(swapped, "wrong", ""), Judged(CASE, "wrong", "C[0, 0] is 1")])
    assert "bias is missing: passed" in text
    assert "no fault: wrong C[0, 0] is 1" in text
    assert "| tiled | 1 | 0 | 0 | 0 | 0 | 0 | 1 | 1 |" in text
    assert "| tiled_swapped | 1 | 1 | 1 | 0 | 0 | 0 | 0 | 0 |" in text


def test_verdicts_are_read_back(tmp_path: Path) -> None:
    """Those of the same setting and text, in a file whose last line a kill has cut, to which more can be added."""
    path = tmp_path / "verdicts.jsonl"
    Verdicts(str(path), "here").add(Judged(BAD, "hang", "no answer"))
    with path.open("a") as file:
        file.write('[1]\n{"key": "ab')
    again = Verdicts(str(path), "here")
    assert again.of(BAD) == Judged(BAD, "hang", "no answer")
    assert again.of(CASE) is None
    assert again.of(replace(BAD, text="of other code")) is None
    assert Verdicts(str(path), "elsewhere").of(BAD) is None
    again.add(Judged(CASE, "passed", ""))
    assert Verdicts(str(path), "here").of(CASE) == Judged(CASE, "passed", "")


@needs_interpreter
def test_the_command_finds_the_faults_of_a_family(tmp_path: Path) -> None:
    """Without a GPU it does what the interpreter can, keeps each verdict, and goes on from those it has."""
    path = tmp_path / "verdicts.jsonl"
    argv = [sys.executable, "-m", "benchmarks.checking.mutants", "--families", "gemv", "--faults", "bias"]
    argv += ["--sizes", "1", "--jobs", "1", "-o", str(path)]

    def run() -> tuple[int, list[str]]:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        return done.returncode, done.stdout.splitlines()

    status, lines = run()
    assert status == 0, lines
    found, made = lines[-1].removeprefix("found ").partition(",")[0].split(" of ")
    assert found == made > "1"
    assert lines[-1].endswith("false alarms 0")
    kept = path.read_text()
    assert {json.loads(line)["outcome"] for line in kept.splitlines()} == {"wrong", "passed"}
    again, said = run()
    assert (again, said[-1], path.read_text()) == (0, lines[-1], kept)
