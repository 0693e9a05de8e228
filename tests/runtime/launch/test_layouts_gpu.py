"""Every layout on a real GPU: what is called is the layout's winner, and its result is right to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from computing_gpu import CONFIG
from layout_cases import TYPES, K, M, N, laid, operands, problem_of, tuned_layouts
from small_bundle import pack_here, row
from small_gemms import (
    FEW_ROWS,
    ON_COPIES,
    SEMAPHORE,
    SPLIT,
    SWAPPED,
    TILED,
    TILED_TMA_SPLIT,
    TMA,
    TMA_SWAPPED,
    WARP_SPECIALIZED,
    WARP_SPECIALIZED_ON_COPIES,
    WARP_SPECIALIZED_SPLIT,
)

from benchmarks.serving.layouts_called import LEFT, lines
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.legality import legal
from genkern.runtime.backends import cublaslt, lt_matmul
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.bundles.untuned_m import nearest_winner
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.launch.torch_gpu import TorchGpu
from genkern.runtime.process.torch_ops import define

pytestmark = pytest.mark.gpu
_numbers = itertools.count()
CONFIGS = (
    *(TILED, SPLIT, SEMAPHORE, SWAPPED, TMA, TILED_TMA_SPLIT, TMA_SWAPPED, WARP_SPECIALIZED, WARP_SPECIALIZED_SPLIT),
    *(ON_COPIES, WARP_SPECIALIZED_ON_COPIES, replace(FEW_ROWS, SPLIT_K=1)),
)


class Here:
    """Calls of one format on this machine's GPU, by rows of these problems."""

    def __init__(self, folder: Path, cache: Path, rows: Iterable[tuple[GemmProblem, Config]]) -> None:
        identity = TorchGpu(0).identity
        # However slow, the library is slower: so another M is served wherever kernels reach.
        slow = {"vendor_us": 1e6, "device": identity.name, "compute_units": identity.compute_units}
        found = [replace(row(problem, config), **slow) for problem, config in rows]  # type: ignore[arg-type]
        bundle = read_bundle(pack_here(folder, found, cache))
        self.gpu, self.bundles = TorchGpu(0), [bundle]
        self.context = Context(lambda op: self.bundles, lambda index: self.gpu if index >= 0 else None, nearest_winner)
        self.gemm = Gemm(found[0].problem.op, self.context)
        self.gemm.operator = define(self.gemm, f"test_layouts_gpu_{next(_numbers)}")

    def check(self, problem: GemmProblem, gap: int = 0, *, by_winner: bool = True) -> None:
        """Right twice in eager calls, then in a graph that is replayed; by a winner all the way, or by the library."""
        with lines() as told:
            self._check(problem, gap)
        assert by_winner is not any(LEFT in line for line in told), told

    def _check(self, problem: GemmProblem, gap: int) -> None:
        x, weight, scales = operands(problem, gap)
        wanted = Gemm(problem.op, Context(lambda op: [], lambda index: None))(x, weight, **scales)
        # The same strides: what lies between rows is copied too.
        on_gpu = [
            torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="cuda") for each in (x, weight)
        ]
        for there, here in zip(on_gpu, (x, weight), strict=True):
            there.copy_(here)
        more = {name: scale.cuda() for name, scale in scales.items()}
        for _ in range(2):
            assert torch.equal(self.gemm(*on_gpu, **more).cpu(), wanted), problem.name
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.gemm(*on_gpu, **more)
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out.cpu(), wanted), problem.name

    def winner_of(self, problem: GemmProblem) -> GemmProblem | None:
        choice = self.context.find(self.gpu, problem)
        return choice.winner.problem if choice.winner is not None and choice.call is not None else None


@pytest.mark.parametrize("op", TYPES)
def test_every_layout_of_every_format(op: str, tmp_path: Path, cache_dir: Path) -> None:
    """By its own winner, and right."""
    problems = tuned_layouts(op)
    if op == "a8w8" and torch.cuda.get_device_capability() >= (8, 9):
        # As calls ask for it that do not say otherwise.
        full = (("accumulate", "full"),)
        problems += [replace(each, dtype_a="fp8e4m3fn", dtype_b="fp8e4m3fn", own=full) for each in problems]
    here = Here(tmp_path, cache_dir, ((each, CONFIG) for each in problems))
    for problem in problems:
        assert here.winner_of(problem) == problem
        here.check(problem)


@pytest.mark.parametrize("row_major_b", [True, False])
def test_families_of_a_column_major_a(row_major_b: bool, tmp_path: Path, cache_dir: Path) -> None:
    """Each for its own M, for others that it is promised to serve, and for slices that lie as it was promised."""
    gpu = gpu_for_arch("sm_90")
    rows = []
    for number, config in enumerate(CONFIGS):
        # One with copies needs rows that TMA cannot load, and a family for few rows few.
        m = 97 if "realigned" in config.values else 4 if config.family == "skinny" else 104
        problem = GemmProblem(m, 128 + 64 * number, 512, row_major_a=False, row_major_b=row_major_b)
        if not legal(problem, config, gpu):
            rows.append((problem, config))
    assert len(rows) >= 8
    here = Here(tmp_path, cache_dir, rows)
    for problem, config in rows:
        here.check(problem)
        for gap in (16, 32):
            here.check(problem, gap)
        for m in (8, 40, 64, 120, 1000) if problem.M == 104 else (3, 75, 99, 1001) if problem.M == 97 else ():
            there = replace(problem, M=m)
            assert here.winner_of(there) == problem, (config.name, m)
            here.check(there)
        if problem.M == 104:
            assert here.winner_of(replace(problem, M=100)) is None
    # Of an M or a pitch that breaks a promise kernels are not launched.
    for problem, _ in rows:
        if problem.M == 104:
            here.check(replace(problem, M=102), by_winner=False)
            here.check(problem, 1, by_winner=False)


@pytest.mark.parametrize("op", ["a16w16", "batched_a16w16"])
def test_gradients(op: str, tmp_path: Path, cache_dir: Path) -> None:
    """Of a product and both its gradients, eager and compiled, by winners, right to the bit."""
    forward = problem_of(op, True, False)
    of_x = replace(forward, N=K, K=N, row_major_b=True)
    of_weight = replace(forward, M=N, N=K, K=M, row_major_a=False, row_major_b=True)
    here = Here(tmp_path, cache_dir, ((each, CONFIG) for each in (forward, of_x, of_weight)))
    x, weight, _ = operands(forward)
    grad = laid((*x.shape[:-1], N), "bf16", True)
    wanted = [(grad.double() @ weight.double()).bfloat16(), (grad.double().mT @ x.double()).bfloat16()]
    x, weight, grad = x.cuda().requires_grad_(), weight.cuda().requires_grad_(), grad.cuda()
    calls: list[Any] = [here.gemm, here.gemm, torch.compile(here.gemm, fullgraph=True, dynamic=False)]
    for call in calls:
        found = torch.autograd.grad(call(x, weight), (x, weight), grad)
        assert all(torch.equal(one.cpu(), other) for one, other in zip(found, wanted, strict=True))


def test_an_algorithm_that_won(tmp_path: Path, cache_dir: Path) -> None:
    """Of cuBLASLt, for x that lies column-major, also as a slice, eager and captured."""
    here = Here(tmp_path, cache_dir, [(problem_of("a16w16", True, False), CONFIG)])
    for row_major_b in (True, False):
        problem = problem_of("a16w16", False, row_major_b)
        matmul = cublaslt.BACKEND.prepare(problem, 0)
        first, *_ = cublaslt.BACKEND.candidates(matmul, lt_matmul.Pointers(256, 256, 256), most=4)
        (bundle,) = here.bundles
        name = cublaslt.BACKEND.kept(matmul, first).name
        won = replace(bundle.winners[0], problem=problem, choice="vendor", vendor=name, package=None)
        here.bundles[:] = [replace(bundle, contents=replace(bundle.contents, winners=(won,)))]
        here.context.renew()
        here.check(problem)
        here.check(problem, 32)


def test_a_transpose_is_compiled(tmp_path: Path, cache_dir: Path) -> None:
    """Inductor leaves x.t() as it lies, and graphs of reduce-overhead replay its winner."""
    problem = problem_of("a16w16", False, False)
    here = Here(tmp_path, cache_dir, [(problem, CONFIG)])
    x, weight, _ = operands(problem)
    wanted = (x.double() @ weight.double().T).bfloat16()
    stored, weight = x.mT.contiguous().cuda(), weight.cuda()
    compiled = torch.compile(
        lambda stored, weight: here.gemm(stored.t(), weight) * 1, mode="reduce-overhead", fullgraph=True
    )
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            assert torch.equal(compiled(stored, weight).cpu(), wanted)
