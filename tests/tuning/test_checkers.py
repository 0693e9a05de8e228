"""Tests of genkern.tuning.checkers: reduced sizes keep every overhang, and wrong kernels are found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_tests import drawn
from small_gemms import TILED, needs_interpreter, variants_of

import genkern.tuning.checkers
from genkern.gemm.config import Config
from genkern.gemm.problem import MAX_DIMENSION, GemmProblem
from genkern.gemm.records import NOT_CHECKED, Candidate, Check, Outcome
from genkern.kernels.generate import generate
from genkern.timing.session import Budget, Session
from genkern.tuning.checkers import DeviceChecker, InterpreterChecker, reduced_problem

SIZES = st.integers(1, 10_000) | st.sampled_from([1, 16, 4096, 4097, MAX_DIMENSION])
BLOCKS = st.sampled_from([16, 32, 64, 128, 256])
CONFIGS = st.builds(Config, st.just("tiled"), BLOCKS, BLOCKS, BLOCKS, st.integers(1, 32), st.integers(1, 64))


@given(m=SIZES, n=SIZES, k=SIZES, config=CONFIGS)
def test_reduced_sizes_overhang_where_the_problem_does(m: int, n: int, k: int, config: Config) -> None:
    """A reduced size runs the same kernels, with the same remainder in each dimension, and is no larger."""
    problem = GemmProblem(m, n, k, bias=True)
    small = reduced_problem(problem, config)
    assert variants_of(small, config) == variants_of(problem, config)
    assert dataclasses.replace(small, M=m, N=n, K=k) == problem
    for whole, size, block in (
        (m, small.M, "BLOCK_SIZE_M"),
        (n, small.N, "BLOCK_SIZE_N"),
        (k, small.K, "BLOCK_SIZE_K"),
    ):
        assert size <= whole
        assert size % getattr(config, block) == whole % getattr(config, block)


@given(m=SIZES, n=SIZES, k=SIZES, config=CONFIGS)
def test_reduced_sizes_finish(m: int, n: int, k: int, config: Config) -> None:
    """At most two tiles each way, and blocks of K for every second split: seconds under the interpreter."""
    small = reduced_problem(GemmProblem(m, n, k), config)
    assert small.M <= 2 * config.BLOCK_SIZE_M
    assert small.N <= 2 * config.BLOCK_SIZE_N
    k_blocks = 3 * max(1, config.SPLIT_K // 2) + 1
    assert k_blocks * config.BLOCK_SIZE_K >= small.K


@given(m=SIZES, n=SIZES, k=SIZES, config=CONFIGS)
def test_reduced_sizes_keep_the_kernel_text(m: int, n: int, k: int, config: Config) -> None:
    """What is checked is the text that was compiled, unless the size needs 64-bit offsets."""
    problem = GemmProblem(m, n, k)
    if max(m * k, k * n, m * n * config.SPLIT_K) >= 2**31:
        return
    small = reduced_problem(problem, config)
    assert generate(small, [config], "any").source_sha256 == generate(problem, [config], "any").source_sha256


def session_for(problem: GemmProblem, folder: Path, arch: str = "gfx942") -> Session:
    """A session on no device; `module_path` is of no use to the interpreter."""
    return Session("", problem, arch, 0, str(folder), Budget())


@needs_interpreter
@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (
            GemmProblem(4096, 4096, 4097),
            Config("tiled", 32, 32, 32, 8, 4, 4, 2, waves_per_eu=2, matrix_instr_nonkdim=16, kpack=2),
        ),
        (
            GemmProblem(17, 4096, 8192, "a8w8", "fp8e4m3fnuz", "fp8e4m3fnuz", "bf16"),
            Config("tiled", 16, 32, 64, 8, 1, 4, 2, waves_per_eu=2, matrix_instr_nonkdim=16, kpack=2),
        ),
    ],
)
def test_a_right_kernel_passes(
    hostile_path: Path, problem: GemmProblem, config: Config, request: pytest.FixtureRequest
) -> None:
    """The check passes, says on which size and in which types it was made, and leaves no file."""
    if problem.op == "a8w8":
        # The other one has a process of its own.
        request.getfixturevalue("fast_checks")
    check = InterpreterChecker(err_ratio=0.0).check(session_for(problem, hostile_path), Candidate(config, ()))
    assert check.passed, check
    assert (check.config, check.method, check.message) == (config.name, "interpreter", "")
    assert check.problem_size == reduced_problem(problem, config).size != problem.size
    # The interpreter does not multiply bf16, nor the CPU the fnuz encodings.
    assert check.stand_in == {"bf16": "fp16", "fp8e4m3fnuz": "fp8e4m3fn"}[problem.dtype_a]
    assert list(hostile_path.iterdir()) == []


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes the checker see a module in which one text is replaced."""

    def break_it(old: str, new: str) -> None:
        def broken(*arguments: object) -> object:
            module = generate(*arguments)  # type: ignore[arg-type]
            assert module.text.count(old) == 1
            return dataclasses.replace(module, render=lambda: module.text.replace(old, new))

        monkeypatch.setattr(genkern.tuning.checkers, "generate", broken)

    return break_it


@needs_interpreter
@pytest.mark.parametrize(
    ("old", "new", "message"),
    drawn(
        [
            # A block of K is left out.
            ("in range(0, K, BLOCK_SIZE_K)", "in range(BLOCK_SIZE_K, K, BLOCK_SIZE_K)", ""),
            # Elements are not written: the NaN that they were filled with stays.
            (
                "tl.store(c_ptrs, c, mask=(offs_m[:, None] < M)",
                "tl.store(c_ptrs, c, mask=(offs_m[:, None] < M - 1)",
                "",
            ),
            # The kernel does not run at all.
            ("acc = tl.dot(a, b, acc)", "acc = tl.dot(a, a, acc)", "the interpreter failed: "),
        ],
        1,
    ),
)
def test_a_wrong_kernel_fails(
    breaking: Callable[[str, str], None],
    hostile_path: Path,
    old: str,
    new: str,
    message: str,
    request: pytest.FixtureRequest,
) -> None:
    """Wrong values, missing values and a crash each fail the check, and no file is left."""
    if not message:
        request.getfixturevalue("fast_checks")
    breaking(old, new)
    candidate = Candidate(TILED, ())
    check = InterpreterChecker(err_ratio=0.05).check(session_for(GemmProblem(100, 33, 97), hostile_path), candidate)
    assert not check.passed
    assert check.message.startswith(message)
    assert "\n" not in check.message
    assert check.worst_row_error > 0.1 or message
    assert list(hostile_path.iterdir()) == []


def test_a_hung_interpreter_fails(
    monkeypatch: pytest.MonkeyPatch, breaking: Callable[[str, str], None], tmp_path: Path
) -> None:
    """A kernel that never ends costs its time-out and is not taken for right."""
    breaking("import argparse\n", "import argparse\n\nwhile True:\n    pass\n")
    monkeypatch.setattr(genkern.tuning.checkers, "_INTERPRETER_TIMEOUT_S", 1.0)
    check = InterpreterChecker(0.05).check(session_for(GemmProblem(64, 64, 64), tmp_path), Candidate(TILED, ()))
    assert not check.passed
    assert "no result after 1 s" in check.message
    assert (check.method, check.lost) == (NOT_CHECKED, Outcome.TIMED_OUT)


def test_an_interpreter_that_is_killed_says_nothing(breaking: Callable[[str, str], None], tmp_path: Path) -> None:
    """By the out-of-memory killer, say: the config is not called wrong."""
    breaking("import argparse\n", "import argparse\nimport os\n\nos.kill(os.getpid(), 9)\n")
    check = InterpreterChecker(0.05).check(session_for(GemmProblem(64, 64, 64), tmp_path), Candidate(TILED, ()))
    assert (check.passed, check.method, check.lost) == (False, NOT_CHECKED, Outcome.CRASHED)
    assert "killed by SIGKILL" in check.message


def test_an_error_ratio_is_an_extra_limit(tmp_path: Path) -> None:
    """It fails what passed, saves nothing that failed, and is no limit unless one is given."""
    problem, candidate = GemmProblem(64, 64, 64), Candidate(TILED, ())
    session = session_for(problem, tmp_path)
    for passed, ratio, limit, wanted in (
        (True, 0.0, 0.0, True),
        (True, 0.02, 0.01, False),
        (True, 0.9, 1.0, True),
        (False, 0.0, 1.0, False),
    ):
        check = Check(TILED.name, passed, ratio, 0.0, problem.size, "gpu", "" if passed else "C[0, 0]")
        checker = DeviceChecker(lambda *_, check=check: check, lambda *_, check=check: check, limit)
        found = checker.check(session, candidate)
        assert checker.check_call(session, "cublaslt") == found
        assert (found.passed, found.method) == (wanted, "gpu")
        assert ("--errRatio 0.01" in found.message) is (limit == 0.01)


@needs_interpreter
@pytest.mark.usefixtures("fast_checks")
@pytest.mark.parametrize(("atol", "rtol"), [(0.01, 0.01), (0.0, 0.01), (0.01, 0.0), (0.0, 0.0)])
def test_a_tolerance_refuses_and_saves_nothing(atol: float, rtol: float, tmp_path: Path) -> None:
    """The interpreter counts by the tolerance that was asked for: C is rounded, so that none at all refuses it."""
    session = session_for(GemmProblem(32, 32, 64, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16"), tmp_path)
    asked = dataclasses.replace(session, budget=dataclasses.replace(session.budget, atol=atol, rtol=rtol))
    found = InterpreterChecker(0.0).check(asked, Candidate(Config("tiled", 16, 16, 32), ()))
    assert found.passed is (atol + rtol > 0)
    assert ("--errRatio 0 with --atol 0 --rtol 0" in found.message) is not found.passed
    assert InterpreterChecker(1.0).check(asked, Candidate(Config("tiled", 16, 16, 32), ())).passed
    sent = Session.from_json(asked.to_json()).budget
    assert (sent.atol, sent.rtol) == (atol, rtol)


def test_gluon_kernels_are_not_called_wrong(tmp_path: Path) -> None:
    """Without a GPU a config that the interpreter cannot run is told apart from a wrong one, and cannot win."""
    checker = InterpreterChecker(0.05)
    config = Config("warp_specialized", 128, 160, 64)
    session = Session("", GemmProblem(256, 1280, 4096), "sm_90", 0, str(tmp_path), Budget())
    check = checker.check(session, Candidate(config, ()))
    assert not checker.can_check(config)
    assert checker.can_check(TILED)
    assert (check.passed, check.method) == (False, NOT_CHECKED)
