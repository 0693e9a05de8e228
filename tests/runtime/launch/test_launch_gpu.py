"""Bundles on a real GPU: every launch is right, in eager calls, in graphs, on streams, and from threads."""

from __future__ import annotations

import itertools
import threading
from ctypes import byref, c_void_p
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launch_ways import launch_by
from small_bundle import CONFIGS, K, pack_here, problem_of, row, with_varying_sums

from genkern.gemm.problem import GemmProblem
from genkern.runtime.backends import cublaslt, lt_matmul
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.launch.cuda_driver import CudaDriver
from genkern.runtime.launch.torch_gpu import TorchGpu
from genkern.runtime.process.torch_ops import define

pytestmark = pytest.mark.gpu
_numbers = itertools.count()
LIBRARY = torch.nn.functional.linear


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Bundle:
    """A config of each family for this machine's GPU, whatever is its name."""
    identity = TorchGpu(0).identity
    found = [
        replace(row(problem_of(number), config), device=identity.name, compute_units=identity.compute_units)
        for number, config in enumerate(CONFIGS)
    ]
    return read_bundle(pack_here(tmp_path_factory.mktemp("here"), found, cache_dir))


@pytest.fixture(params=["native", "ctypes"])
def gemm(request: pytest.FixtureRequest, here: Bundle, monkeypatch: pytest.MonkeyPatch) -> Gemm:
    launch_by(request.param, monkeypatch)
    return served_by(here)


def served_by(bundle: Bundle) -> Gemm:
    def gpu_of(index: int) -> TorchGpu | None:
        return TorchGpu(index) if index >= 0 else None

    return Gemm("a16w16", Context(lambda op: [bundle], gpu_of))


def operands(m: int, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Integers, so that any order of sums gives the same; and the product, exactly."""
    torch.manual_seed(seed)
    x, weight = (torch.randint(-3, 4, size).to("cuda", torch.bfloat16) for size in ((m, K), (n, K)))
    return x, weight, (x.double() @ weight.double().T).bfloat16()


def sizes() -> list[tuple[int, int]]:
    """Of each family its own M, and others that nobody tuned."""
    return [(m, problem_of(number).N) for number in range(len(CONFIGS)) for m in (100, 7, 129, 1000)]


def test_every_family_is_right(gemm: Gemm) -> None:
    """To the bit, for its own M and for others, twice (counters are left zero)."""
    for m, n in sizes():
        x, weight, wanted = operands(m, n, m)
        for _ in range(2):
            assert torch.equal(gemm(x, weight), wanted), (m, n)


def test_graphs_streams_and_threads(gemm: Gemm) -> None:
    """Captured and replayed with other contents, on streams that run at once, and from several threads."""
    for m, n in sizes()[::4]:
        x, weight, wanted = operands(m, n)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            gemm(x, weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = [gemm(x, weight) for _ in range(3)]
        for seed in range(3):
            other, _, wanted = operands(m, n, seed)
            x.copy_(other)
            wanted = (x.double() @ weight.double().T).bfloat16()
            graph.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(each, wanted) for each in out)
    failures: list[str] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream() if number % 2 else torch.cuda.default_stream()):
            for m, n in sizes():
                x, weight, wanted = operands(m, n, number)
                if not torch.equal(gemm(x, weight), wanted):
                    failures.append(f"{m}x{n} in thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_streams_that_end(gemm: Gemm) -> None:
    """Of somebody else's, whose handles come back while their work goes on: each product is right, little is kept."""
    driver = TorchGpu(0).driver
    assert isinstance(driver, CudaDriver)
    found, handles = [], set()
    for number in range(40):
        stream = c_void_p()
        assert driver.library.cuStreamCreate(byref(stream), 1) == 0
        handles.add(stream.value)
        with torch.cuda.stream(torch.cuda.ExternalStream(int(stream.value or 0))):
            for m, n in sizes()[number % 4 :: 4]:
                x, weight, wanted = operands(m, n, number)
                found.append((gemm(x, weight), wanted))
        assert driver.library.cuStreamDestroy_v2(stream) == 0
    torch.cuda.synchronize()
    assert all(torch.equal(out, wanted) for out, wanted in found)
    ((_, kept),) = gemm._context.workspaces()
    print(f"{len(handles)} handles of 40 streams, {kept}")
    assert kept.bytes <= kept.most_bytes


def test_the_first_call_may_be_captured(gemm: Gemm) -> None:
    """A kernel that nobody has called is loaded while the graph is captured."""
    x, weight, wanted = operands(100, problem_of(0).N)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gemm(x, weight)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)


def test_graph_trees_of_torch_compile(gemm: Gemm) -> None:
    """mode="reduce-overhead" warms up in its graphs' own memory, and refuses what stays alive there; results are right
    in warm-up, recording and replays, with several calls in one graph and with other contents.
    """
    gemm.operator = define(gemm, f"{gemm.__name__}_gpu_{next(_numbers)}")
    made = [operands(m, n) for m, n in sizes()[::4]]

    def model(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [gemm(x, weight) * 1 for x, (_, weight, _) in zip(xs, made, strict=True)]

    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for seed in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            xs = [operands(x.shape[0], weight.shape[0], seed)[0] for x, weight, _ in made]
            for out, x, (_, weight, _) in zip(compiled(xs), xs, made, strict=True):
                assert torch.equal(out, (x.double() @ weight.double().T).bfloat16()), (seed, weight.shape)


def test_nothing_of_ours_stays_in_a_graphs_pool(gemm: Gemm) -> None:
    """First calls and captures leave their outputs alone in the pool that they were made in."""
    made = [operands(m, n) for m, n in sizes()[::4]]
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        out = [gemm(x, weight) for x, weight, _ in made]
    torch.cuda.synchronize()
    kept = {tensor.untyped_storage().data_ptr() for tensor in out}
    alive = {
        block["address"]
        for segment in pool.snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert alive <= kept


@pytest.mark.usefixtures("gemm")
def test_deterministic_algorithms(here: Bundle) -> None:
    """Atomic sums are the library's then, also of a call that was launched before."""
    winner = next(each for each in here.winners if each.calls)
    gemm = served_by(with_varying_sums(here, winner))
    torch.manual_seed(0)
    x, weight = (torch.randn(size, device="cuda").bfloat16() for size in ((100, K), (winner.problem.N, K)))
    gemm(x, weight)
    torch.use_deterministic_algorithms(True)
    try:
        assert all(torch.equal(gemm(x, weight), LIBRARY(x, weight)) for _ in range(3))
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_first_call_of_an_algorithm_may_be_captured(here: Bundle, gemm: Gemm) -> None:
    """The library's handle, and its kernel, are made while the graph is captured; and eager calls are right."""
    problem = GemmProblem(129, 320, K)
    matmul = cublaslt.BACKEND.prepare(problem, 0)
    pointers = lt_matmul.Pointers(256, 256, 256)
    first, *_ = cublaslt.BACKEND.candidates(matmul, pointers, most=4)
    won = replace(
        here.winners[0],
        problem=problem,
        choice="vendor",
        vendor=cublaslt.BACKEND.kept(matmul, first).name,
        package=None,
    )
    bundle = replace(here, contents=replace(here.contents, winners=(won,)))
    own = Gemm("a16w16", Context(lambda op: [bundle], lambda index: TorchGpu(index)))
    x, weight, wanted = operands(129, 320)
    handles = dict(lt_matmul._handles)
    lt_matmul._handles.clear()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = own(x, weight)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, wanted)
        for _ in range(3):
            assert torch.equal(own(x, weight), wanted)
    finally:
        lt_matmul._handles.update(handles)


def test_slices_and_offsets(gemm: Gemm) -> None:
    """Operands that are parts of larger ones are right, by our kernels or the library's."""
    x, weight, wanted = operands(100, problem_of(2).N)
    for columns in (1, 8, 16):
        wide = torch.zeros(100, K + columns, dtype=torch.bfloat16, device="cuda")
        wide[:, :K] = x
        assert torch.equal(gemm(wide[:, :K], weight), wanted)
        assert torch.equal(gemm(wide[:, columns:], weight), LIBRARY(wide[:, columns:], weight))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices(gemm: Gemm) -> None:
    """A call runs where its operands are, whichever device is current."""
    x, weight, wanted = operands(100, problem_of(0).N)
    out = gemm(x.to("cuda:1"), weight.to("cuda:1"))
    assert out.device.index == 1
    assert torch.equal(out.cpu(), wanted.cpu())
