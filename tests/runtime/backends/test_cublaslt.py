"""Tests of runtime/backends/cublaslt.py: from a problem to its algorithm, now and by what a result keeps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from lt_problems import WORKSPACE_BYTES, expected_of, operands_of, pointers_of, variable

from genkern.gemm.problem import GemmProblem
from genkern.runtime.backends import cublaslt, cublaslt_library
from genkern.runtime.backends.cublaslt_api import Api
from genkern.runtime.backends.lt_matmul import Algorithm
from genkern.timing.libraries import StoredAlgorithm, stored_algorithm

PLAIN = GemmProblem(5, 7, 9)


@pytest.fixture(autouse=True)
def library(fake: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    cublaslt_library.load.cache_clear()
    monkeypatch.setattr(cublaslt_library, "find", lambda: (fake.path, ""))
    yield fake
    cublaslt_library.load.cache_clear()


def test_from_a_problem_to_its_product() -> None:
    """Every candidate computes it, those that enumeration finds beyond the heuristic's too."""
    operands = operands_of(PLAIN)
    matmul, pointers = cublaslt.BACKEND.prepare(PLAIN, 0), pointers_of(operands)
    workspace = torch.empty(64 << 20, dtype=torch.uint8)
    found = cublaslt.BACKEND.candidates(matmul, pointers, 27)
    assert [algorithm.source for algorithm in found] == ["heuristic"] * 7 + ["enumerated"] * 20
    for algorithm in found:
        operands["c"].fill_(float("nan"))
        matmul.bind(algorithm, pointers, workspace.data_ptr(), len(workspace))(0)
        assert torch.equal(operands["c"], expected_of(PLAIN, operands).bfloat16())


def test_what_is_not_supported_has_no_candidates(library: Api) -> None:
    """Neither the heuristic nor enumeration has any, and nothing is settled."""
    nothing = variable(library, "fake_supports_nothing")
    nothing.value = 1
    try:
        matmul, pointers = cublaslt.BACKEND.prepare(PLAIN, 0), pointers_of(operands_of(PLAIN))
        assert cublaslt.BACKEND.candidates(matmul, pointers, 27) == []
        assert cublaslt.BACKEND.settled(matmul, pointers, None) is None
    finally:
        nothing.value = 0


def test_a_kept_algorithm_is_found_again() -> None:
    """By its name in a result, to the bit, with the workspace that it needs; it is not raced again."""
    matmul, pointers = cublaslt.BACKEND.prepare(PLAIN, 0), pointers_of(operands_of(PLAIN))
    chosen = cublaslt.BACKEND.candidates(matmul, pointers, 7)[6]
    name = cublaslt.BACKEND.kept(matmul, chosen).name
    found = cublaslt.BACKEND.settled(matmul, pointers, stored_algorithm(name), time_us=_nobody)
    assert found is not None
    assert (found.data, found.workspace_bytes, found.source) == (chosen.data, 4 << 20, "kept")


def test_an_algorithm_of_another_version_is_looked_up_anew() -> None:
    """By a race of the heuristic's first four, or as its first where no times can be taken."""
    matmul, pointers = cublaslt.BACKEND.prepare(PLAIN, 0), pointers_of(operands_of(PLAIN))
    known = cublaslt.BACKEND.candidates(matmul, pointers, 7)
    raced: list[Algorithm] = []

    def time_us(algorithm: Algorithm) -> float:
        raced.append(algorithm)
        return 10.0 - len(raced) if len(raced) < 4 else 20.0

    other = StoredAlgorithm(131001, known[6].data)
    found = cublaslt.BACKEND.settled(matmul, pointers, other, time_us)
    assert raced == known[:4]
    assert found == known[2]
    assert cublaslt.BACKEND.settled(matmul, pointers, other) == known[0]
    assert cublaslt.BACKEND.settled(matmul, pointers, None) == known[0]


@pytest.mark.parametrize("data", [bytes(64), b"short"])
def test_a_kept_algorithm_that_does_not_run_is_looked_up_anew(data: bytes) -> None:
    """Of another problem, say, or damaged: the library's check decides, and nothing of it is launched."""
    matmul, pointers = cublaslt.BACKEND.prepare(PLAIN, 0), pointers_of(operands_of(PLAIN))
    found = cublaslt.BACKEND.settled(matmul, pointers, StoredAlgorithm(131000, data))
    assert found == cublaslt.BACKEND.candidates(matmul, pointers, 7)[0]


def test_a_workspace_that_is_too_small_is_respected() -> None:
    """A kept algorithm that needs more than the caller has is another's."""
    matmul, pointers = cublaslt.BACKEND.prepare(PLAIN, 0), pointers_of(operands_of(PLAIN))
    hungry = cublaslt.BACKEND.candidates(matmul, pointers, 7)[6]
    found = cublaslt.BACKEND.settled(
        matmul, pointers, cublaslt.BACKEND.kept(matmul, hungry), workspace_bytes=WORKSPACE_BYTES // 8
    )
    assert found is not None
    assert found.workspace_bytes == 0


def test_the_backend_imports_no_pytorch() -> None:
    """Addresses and streams are numbers; importing PyTorch takes seconds."""
    code = "import sys, genkern.runtime.backends.cublaslt; print([m for m in ('torch', 'triton') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"


def _nobody(algorithm: Algorithm) -> float:
    raise AssertionError("nobody is to be timed")
