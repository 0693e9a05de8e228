"""Tests of runtime/backends/hipblaslt*.py against a library that computes on the host: the contract of hipblaslt.h."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lt_problems import WORKSPACE_BYTES, expected_of, leading_of, operands_of, pointers_of, variable

from genkern.gemm.problem import GemmProblem
from genkern.runtime.backends import hipblaslt_library
from genkern.runtime.backends.hipblaslt import ASKED, BACKEND, beyond, evenly
from genkern.runtime.backends.hipblaslt_api import ALGORITHM_BYTES, DIALECT, Api, HeuristicResult
from genkern.runtime.backends.hipblaslt_library import find
from genkern.runtime.backends.lt import backend_of
from genkern.runtime.backends.lt_api import LtError
from genkern.runtime.backends.lt_matmul import Algorithm, Matmul
from genkern.runtime.backends.lt_operation import NotCovered, operation_of, refusal
from genkern.timing.libraries import StoredAlgorithm, library_of, stored_algorithm

PLAIN = GemmProblem(5, 7, 9)
FNUZ = GemmProblem(16, 32, 64, dtype_a="fp8e4m3fnuz", dtype_b="fp8e4m3fnuz", op="a8w8")


@pytest.fixture(autouse=True)
def library(fake_hip: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    hipblaslt_library.load.cache_clear()
    monkeypatch.setattr(hipblaslt_library, "find", lambda: (fake_hip.path, ""))
    yield fake_hip
    hipblaslt_library.load.cache_clear()


def product(library: Api, problem: GemmProblem, padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """C by the heuristic's first solution, and what it has to be."""
    operands = operands_of(problem, padding)
    matmul = Matmul(library, operation_of(problem, DIALECT, leading_of(operands)), 0)
    pointers = pointers_of(operands)
    algorithm = matmul.heuristic(pointers, WORKSPACE_BYTES, ASKED)[0]
    matmul.launch(algorithm, pointers, 0, 0, 7)
    return operands["c"], expected_of(problem, operands).to(operands["c"].dtype)


def test_structures_have_the_headers_sizes() -> None:
    """hipblasLtMatmulAlgo_t has 24 bytes, hipblasLtMatmulHeuristicResult_t 56, with the state behind the workspace."""
    assert ALGORITHM_BYTES == 24
    assert ctypes.sizeof(HeuristicResult) == 56
    assert (HeuristicResult.workspace_size.offset, HeuristicResult.state.offset) == (24, 32)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(
    "problem",
    [
        PLAIN,
        replace(PLAIN, row_major_a=False, row_major_b=True, dtype_c="fp32"),
        replace(PLAIN, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16", bias=True, activation="relu"),
        GemmProblem(6, 8, 16, dtype_a="int8", dtype_b="int8", dtype_c="int32"),
        FNUZ,
        replace(FNUZ, own=(("scales", "per_token"),)),
    ],
)
def test_what_is_described_is_the_problem(library: Api, problem: GemmProblem, padding: int) -> None:
    """By the library's numbers of operations, types and attributes, on rows with gaps too, AMD's own fp8 included."""
    found, expected = product(library, problem, padding)
    assert torch.equal(found, expected)


def test_from_a_problem_to_its_product(library: Api) -> None:
    """The heuristic's first, then solutions from all over the library's list; every one computes it."""
    operands = operands_of(PLAIN)
    matmul, pointers = BACKEND.prepare(PLAIN, 0), pointers_of(operands)
    workspace = torch.empty(64 << 20, dtype=torch.uint8)
    found = BACKEND.candidates(matmul, pointers, 60)
    heuristics = [index for index in range(40, 56) if index % 7]
    indices = [int.from_bytes(algorithm.data[:4], "little") for algorithm in found]
    assert indices[: len(heuristics)] == heuristics
    assert len({*indices}) == len(indices) == 60
    assert max(indices) > 250
    assert not any(index % 7 == 0 for index in indices)
    for algorithm in found:
        operands["c"].fill_(float("nan"))
        matmul.bind(algorithm, pointers, workspace.data_ptr(), len(workspace))(0)
        assert torch.equal(operands["c"], expected_of(PLAIN, operands).bfloat16())
    assert variable(library, "fake_vectors").value == 0
    everything = BACKEND.candidates(matmul, pointers, 1000)
    assert len(everything) == 300 - 300 // 7
    none_that_needs_memory = beyond(matmul, pointers, [], 1000, workspace_bytes=0)
    assert all(algorithm.workspace_bytes == 0 for algorithm in none_that_needs_memory)


def test_a_library_without_the_names_has_its_heuristic(old_hip: Api) -> None:
    """No solution beyond that; one that is kept is found among those, and another is not launched."""
    operands = operands_of(PLAIN)
    matmul, pointers = Matmul(old_hip, operation_of(PLAIN, DIALECT), 0), pointers_of(operands)
    found = BACKEND.candidates(matmul, pointers, 60)
    assert {algorithm.source for algorithm in found} == {"heuristic"}
    kept = BACKEND.kept(matmul, found[3])
    again = BACKEND.found(matmul, pointers, kept)
    assert again is not None
    assert (again.data, again.source) == (found[3].data, "kept")
    other = replace(kept, data=(7).to_bytes(4, "little") + kept.data[4:])
    assert BACKEND.found(matmul, pointers, other) is None
    per_row = replace(FNUZ, own=(("scales", "per_token"),))
    with pytest.raises(LtError, match="hipblasLtMatmulDescSetAttribute: invalid value"):
        product(old_hip, per_row)


def test_a_kept_solution_is_found_again(library: Api) -> None:
    """By its name in a result, which says the index; of another version, another library, or damaged, it is not."""
    matmul, pointers = BACKEND.prepare(PLAIN, 0), pointers_of(operands_of(PLAIN))
    chosen = BACKEND.candidates(matmul, pointers, 60)[50]
    kept = BACKEND.kept(matmul, chosen)
    assert kept.name == f"hipblaslt 100202 {chosen.data.hex()}"
    assert stored_algorithm(kept.name) == kept
    assert kept.solution == int.from_bytes(chosen.data[:4], "little")
    assert library_of(kept.name) == "hipblaslt"
    settled = BACKEND.settled(matmul, pointers, kept)
    assert settled is not None
    assert (settled.data, settled.source) == (chosen.data, "kept")
    for other in (
        replace(kept, version=100203),
        replace(kept, data=bytes(24)),
        replace(kept, data=b"short"),
        StoredAlgorithm(100202, bytes(64)),
    ):
        found = BACKEND.settled(matmul, pointers, other)
        assert found is not None
        assert found.source == "heuristic"
    assert stored_algorithm(kept.name[:-2]) is stored_algorithm(f"cublaslt 131000 {'00' * 24}") is None
    assert StoredAlgorithm(131000, bytes(64)).solution is None


def test_handles_and_memory_are_given_back(library: Api) -> None:
    """Asking for the version leaves no handle; a refusal names the function and the library's word."""
    before = variable(library, "fake_handles").value
    assert Api(library.path).version == 100202
    assert variable(library, "fake_handles").value == before
    matmul, operands = BACKEND.prepare(PLAIN, 0), operands_of(PLAIN)
    with pytest.raises(LtError, match="hipblasLtMatmul: not supported"):
        matmul.launch(Algorithm(bytes(24), 0), pointers_of(operands), 0, 0, 0)
    nothing = variable(library, "fake_supports_nothing")
    nothing.value = 1
    try:
        assert BACKEND.candidates(matmul, pointers_of(operands), 60) == []
    finally:
        nothing.value = 0


def test_what_the_library_does_not_compute_is_refused() -> None:
    """Scales of blocks it has none yet; NVIDIA's library has none of AMD's fp8."""
    blocks = GemmProblem(128, 128, 512, dtype_a="fp8e4m3fnuz", dtype_b="fp8e4m3fnuz", op="a8w8_blockscale")
    with pytest.raises(NotCovered, match="no scales of these operands"):
        operation_of(blocks, DIALECT)
    assert refusal(FNUZ, DIALECT) == ""
    assert "no product of fp8e4m3fnuz" in refusal(FNUZ, backend_of("nvidia").dialect)
    assert backend_of("amd") is BACKEND


def test_every_prefix_is_spread_over_the_list() -> None:
    """All items once, whatever their number."""
    for count in (0, 1, 5, 64, 300):
        items = [index.to_bytes(2, "little") for index in range(count)]
        assert sorted(evenly(items)) == sorted(items)
    first = [int.from_bytes(item, "little") for item in evenly([i.to_bytes(2, "little") for i in range(300)])][:10]
    assert max(first) > 250


def test_the_library_is_pytorchs_or_rocms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that this process has loaded before any other; without ROCm there is a reason."""
    maps = tmp_path / "maps"
    maps.write_text(
        "7f0 r-xp 0 08:01 1  /opt/rocm/lib/libhipblaslt.so.1.2\n7f1 r-xp 0 08:01 1  /x/libhipblaslt.so.txt\n"
    )
    assert find(str(maps)) == ("/opt/rocm/lib/libhipblaslt.so.1.2", "")
    maps.write_text("")
    path, why = find(str(maps))
    assert (path, "not built with ROCm" in why) == ("", True)
    site = tmp_path / "torch"
    (site / "lib").mkdir(parents=True)
    (site / "version.py").write_text("cuda: str | None = None\nhip: str | None = '7.0.2'\n")
    spec = type("Spec", (), {"origin": str(site / "__init__.py")})()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    assert find(str(maps)) == ("libhipblaslt.so", "")
    for folder in (tmp_path / "rocm" / "lib", site / "lib"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "libhipblaslt.so.1").touch()
        assert find(str(maps)) == (str(folder / "libhipblaslt.so.1"), "")
