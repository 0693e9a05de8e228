"""Tests of launches on copies in the workspace: bundles, calls by C and through ctypes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launch_ways import launch_by
from long_tests import drawn
from recording_gpu import Encoded, FakeGpu
from small_bundle import pack_here, row

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.launch.torch_gpu import TorchGpu

pytest.importorskip("triton")

# K off 16 bytes, and in the second only the rows of B along N, whose product is stored through pointers.
ROWS = [
    row(GemmProblem(100, 200, 523), Config("tiled_tma", 64, 64, 64, 1, 1, 4, 3, realigned=1)),
    row(GemmProblem(100, 331, 512, row_major_b=True), Config("tiled_tma", 64, 64, 64, 1, 1, 4, 3, realigned=1)),
    row(GemmProblem(100, 264, 523), Config("warp_specialized", 64, 96, 64, 1, 1, 4, 3, realigned=1)),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Bundle:
    return read_bundle(pack_here(tmp_path_factory.mktemp("realigned"), ROWS, cache_dir))


def operands(problem: GemmProblem, m: int, longer: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] and the weight [N, K] as a model has them, of rows that are `longer` than the problem's."""
    x = torch.randn(m, problem.K + longer).bfloat16()[:, : problem.K]
    if problem.row_major_b:
        return x, torch.randn(problem.K, problem.N + longer).bfloat16()[:, : problem.N].t()
    return x, torch.randn(problem.N, problem.K + longer).bfloat16()[:, : problem.K]


def number(parameter: bytes) -> int:
    return int.from_bytes(parameter, "little")


@pytest.mark.parametrize("place", drawn(range(len(ROWS)), 3))
@pytest.mark.parametrize("m", [100, 97])
@pytest.mark.parametrize("longer", [0, 5])
def test_calls_copy_and_multiply_the_copies(bundle: Bundle, gpu: FakeGpu, place: int, m: int, longer: int) -> None:
    """Operands at any pitch, of the M that was tuned and of others: copies where the maps of the second launch are."""
    problem = ROWS[place].problem
    if longer and problem.row_major_b:
        # x is loaded where it lies, so that its rows may not.
        longer = 16
    x, weight = operands(problem, m, longer)
    gemm = Gemm("a16w16", Context(lambda op: [bundle], lambda index: gpu))
    for _ in range(2):
        gemm(x, weight)
    copy, main, again, _ = gpu.driver.launched
    assert copy.symbol.startswith("realign_")
    assert main.symbol.startswith("matmul_")
    assert again.parameters == copy.parameters
    copied = copy.symbol.split("_")[1]
    addresses = {"a": x.data_ptr(), "b": weight.data_ptr()}
    pointers, rest = copy.parameters[: len(copied)], copy.parameters[len(copied) :]
    assert [*map(number, pointers)] == [addresses[name] for name in copied]
    workspace, *numbers = map(number, rest)
    stored = {"a": x, "b": weight.t() if problem.row_major_b else weight}
    maps: list[Encoded] = [gpu.driver.map_in(each) for each in main.parameters if len(each) == 128][:2]
    for at, name in enumerate(copied):
        rows, columns, ld, pitch, first = numbers[5 * at : 5 * at + 5]
        assert ((rows, columns), ld) == (tuple(stored[name].shape), stored[name].stride(0))
        (found,) = (each for each in maps if each.address == workspace + 2 * first)
        assert (found.sizes, found.pitch_bytes) == ((columns, rows), 2 * pitch)
        assert (found.address % 128, found.pitch_bytes % 128) == (0, 0)
    whole = {each.address for each in maps} - {workspace + 2 * numbers[5 * at + 4] for at in range(len(copied))}
    assert whole == {addresses[name] for name in "ab" if name not in copied}


def winner_of(bundle: Bundle, place: int) -> Result:
    return next(winner for winner in bundle.winners if winner.problem == ROWS[place].problem)


def test_a_captured_call_copies_into_the_graphs_own_memory(bundle: Bundle, gpu: FakeGpu) -> None:
    """Its maps are of the temporary workspace, whose address is known while the graph is made."""
    problem = ROWS[0].problem
    x, weight = operands(problem, 100)
    gemm = Gemm("a16w16", Context(lambda op: [bundle], lambda index: gpu))
    gemm(x, weight)
    eager = number(gpu.driver.launched[0].parameters[2])
    gpu.driver.launched.clear()
    gpu.driver.capturing = 7
    gemm(x, weight)
    copy, main = gpu.driver.launched
    captured = number(copy.parameters[2])
    assert captured != eager
    # The last number of the copying kernel is where A's copy begins, of the main one's parameters A's map is the first.
    assert gpu.driver.map_in(main.parameters[0]).address == captured + 2 * number(copy.parameters[12])


def test_an_operand_off_16_bytes_is_the_librarys(bundle: Bundle, gpu: FakeGpu) -> None:
    """The copying kernel relies on addresses as all kernels do: only pitches are free."""
    problem = ROWS[0].problem
    x, weight = operands(replace(problem, M=101), 101)
    gemm = Gemm("a16w16", Context(lambda op: [bundle], lambda index: gpu))
    out = gemm(x[1:], weight)
    assert not gpu.driver.launched
    assert torch.equal(out, torch.nn.functional.linear(x[1:], weight))


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["native", "ctypes"])
def test_right_on_a_gpu(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """To the bit, eager and in a graph that is replayed with other contents, for the M that was tuned and another."""
    launch_by(how, monkeypatch)
    identity = TorchGpu(0).identity
    here = [replace(each, device=identity.name, compute_units=identity.compute_units) for each in ROWS]
    packed = read_bundle(pack_here(tmp_path, here, cache_dir))
    gemm = Gemm("a16w16", Context(lambda op: [packed], lambda index: TorchGpu(index) if index >= 0 else None))
    monkeypatch.setattr(Context, "say", lambda self, problem, text: pytest.fail(text))
    for place, m in itertools.product(range(len(ROWS)), (100, 97)):
        problem = ROWS[place].problem
        x, weight = (each.cuda() for each in operands(problem, m))
        if problem.row_major_b:
            weight = weight.t().contiguous().t()
        graph = torch.cuda.CUDAGraph()
        for seed in range(3):
            torch.manual_seed(seed)
            x.copy_(torch.randint(-3, 4, x.shape))
            weight.copy_(torch.randint(-3, 4, weight.shape))
            wanted = (x.double() @ weight.double().T).bfloat16()
            assert torch.equal(gemm(x, weight), wanted), (problem.name, m)
            if seed == 0:
                with torch.cuda.graph(graph):
                    out = gemm(x, weight)
            out.fill_(0)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, wanted), (problem.name, m)
