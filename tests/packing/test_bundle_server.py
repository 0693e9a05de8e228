"""Tests of genkern.packing.bundle_server: what is checked and timed is what the dispatcher launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from computing_gpu import Kernel, computing_gpu, planned, planned_row
from layout_cases import TYPES, operands, tuned_layouts
from recording_gpu import FakeGpu, Launched

from genkern.errors import LaunchError, ResultsError
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.packing import bundle_server
from genkern.packing.bundle_server import BundleServer, DispatchedCall, main
from genkern.packing.prover import SERVER, PackedCandidate, Sessions
from genkern.profiling.checking.verdict import Checking, Verdict
from genkern.profiling.loaded_gemm import LoadedGemm
from genkern.profiling.same_bits.row_bits import RowChecking, compared
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.launch.cached_call import CachedBinaries
from genkern.runtime.launch.parameters import Layout
from genkern.runtime.routed.order import order_of, quantized
from genkern.timing.session import Budget

PROBLEM = GemmProblem(64, 96, 128)


def loaded(bundle: Bundle, gpu: FakeGpu, m: int, folder: Path) -> LoadedGemm:
    """The operands of the bundle's first winner for M, on the CPU."""
    session = Sessions("sm_90", 0, folder).of(bundle.winners[0], m, Budget(rotating_mb=0.0))
    return LoadedGemm(session, "cpu", CachedBinaries(gpu, "cuda", 32))


def check(bundle: Bundle, gpu: FakeGpu, m: int, folder: Path) -> Verdict:
    """What a measured process finds of the call for M."""
    gemm = loaded(bundle, gpu, m, folder)
    winner = bundle.winners[0]
    call = winner.call_for(m)
    assert call is not None
    request = PackedCandidate(winner.config_name, "b.genkern", (0, winner.calls.index(call))).request
    subject = BundleServer("cudagraph")._subject(gemm, request)
    problem = gemm.session.problem
    return Checking(problem, get_op(problem.op), "sm_90", gemm.module.reference, gemm.operands).check(subject)


@pytest.fixture
def bundle(monkeypatch: pytest.MonkeyPatch) -> tuple[Bundle, dict[str, Kernel]]:
    """A winner with a masked call, which servers find in any file."""
    made, kernels = planned([planned_row(PROBLEM)])
    monkeypatch.setattr(bundle_server, "_bundle", lambda path: made)
    return made, kernels


def test_a_call_is_proved_on_guarded_memory(bundle: tuple[Bundle, dict[str, Kernel]], tmp_path: Path) -> None:
    """For the winner's own M and for others, in all rounds of a check."""
    for m in (64, 1, 77):
        verdict = check(bundle[0], computing_gpu(bundle[1]), m, tmp_path)
        assert (verdict.message, verdict.rounds) == ("", ("exact", "layout", "random"))


def test_a_masked_kernel_that_writes_beyond_its_rows(
    bundle: tuple[Bundle, dict[str, Kernel]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is found for an M that nobody tuned, though the winner itself is right."""
    right = Kernel._matrix

    def wrong(self: Kernel, address: int, pitch: int, step: int, shape: tuple[int, int], *more: Any) -> Any:
        found = right(self, address, pitch, step, shape, *more)
        if shape[0] % 64 and shape[1] == PROBLEM.N:
            right(self, address, pitch, step, (shape[0] + 1, shape[1]), *more)[:, -1, 0] = 1
        return found

    monkeypatch.setattr(Kernel, "_matrix", wrong)
    assert check(bundle[0], computing_gpu(bundle[1]), 64, tmp_path).passed
    verdict = check(bundle[0], computing_gpu(bundle[1]), 65, tmp_path)
    assert verdict.message == "exact inputs: writes outside C at row 65, column 0"


def test_what_the_dispatcher_would_not_launch(bundle: tuple[Bundle, dict[str, Kernel]], tmp_path: Path) -> None:
    """Another device, and a kernel that cannot be loaded, are the answer; the server goes on."""
    made, kernels = bundle
    gpu = computing_gpu(kernels)
    gemm = loaded(made, gpu, 64, tmp_path)
    request = PackedCandidate("c", "b.genkern", (0, 0)).request
    gpu.identity = replace(gpu.identity, compute_units=78)
    with pytest.raises(LaunchError, match="with 132 units"):
        BundleServer("cudagraph")._subject(gemm, request)
    gpu.identity = replace(gpu.identity, compute_units=132)
    winner = made.winners[0]
    call = DispatchedCall(gpu, made, winner, winner.calls[0], 64)
    with pytest.raises(ResultsError, match="beyond 32-bit offsets"):
        call.prepared({name: Layout(64, 128, 2**30, 2) for name in "abc"})


def test_rows_of_a_call_are_compared(bundle: tuple[Bundle, dict[str, Kernel]], tmp_path: Path) -> None:
    """As a run's are: with themselves in another batch, launched as the dispatcher launches them; and their bits are
    those of the same rows for another M.
    """
    bits = []
    for m in (64, 40, 3):
        gemm = loaded(bundle[0], computing_gpu(bundle[1]), m, tmp_path)
        call = bundle[0].winners[0].calls.index(bundle[0].winners[0].call_for(m))  # type: ignore[arg-type]
        request = PackedCandidate("c", "b.genkern", (0, call)).request
        problem = gemm.session.problem
        checking = RowChecking(problem, get_op(problem.op), gemm.operands)
        found = compared(checking, {"command": "rows", **request}, partial(BundleServer("cudagraph")._subject, gemm))
        assert found["message"] == ""
        bits.append(found["row_bits"])
    assert bits[0] == bits[1]
    assert bits[0].startswith(bits[2])


def test_a_call_is_timed_with_cold_weights(bundle: tuple[Bundle, dict[str, Kernel]], tmp_path: Path) -> None:
    """As configs of a run are: one call, with the copy of the weights that is asked for."""
    made, kernels = bundle
    gpu = computing_gpu(kernels)
    session = Sessions("sm_90", 0, tmp_path).of(made.winners[0], 64, Budget(rotating_mb=0.05))
    gemm = LoadedGemm(session, "cpu", CachedBinaries(gpu, "cuda", 32))
    call = BundleServer("cudagraph")._bound(gemm, PackedCandidate("c", "b.genkern", (0, 0)).request)
    for copy in range(2):
        call(copy)
    weights = [int.from_bytes(launched.parameters[1], "little") for launched in gpu.driver.launched]
    assert weights == [gemm.operands_of(copy)["b"].data_ptr() for copy in range(2)]
    assert weights[0] != weights[1]


def without_addresses(launched: Launched) -> Launched:
    return replace(launched, parameters=tuple(each for each in launched.parameters if len(each) != 8))


@pytest.mark.parametrize("op", TYPES)
def test_a_call_is_launched_as_the_dispatcher_launches_it(op: str) -> None:
    """With the same numbers in the same places, in every layout of every format: the memory alone is another."""
    for problem in tuned_layouts(op):
        made, kernels = planned([planned_row(problem)])
        gpu = computing_gpu(kernels)
        x, weight, scales = operands(problem)
        Gemm(op, Context(lambda op, made=made: [made], lambda index, gpu=gpu: gpu))(x, weight, **scales)  # type: ignore[misc]
        (dispatched,) = gpu.driver.launched
        of_a, of_b, of_c, *others = get_op(op).operands(problem)
        c = torch.empty(of_c.tensor_shape, dtype=torch.bfloat16)
        # As the check has them: as they are stored.
        tensors = {"a": x, "b": (weight.view(of_b.storage_shape) if of_b.together > 1 else weight).mT, "c": c}
        for each in others:
            stored = torch.empty(each.storage_shape, dtype=scales[each.name].dtype)
            tensors[each.name] = stored if each.row_major or stored.dim() < 2 else stored.mT
        layouts = {
            each.name: Layout.of(tensor.shape, tensor.stride(), each.row_major, tensor.element_size())
            for each, tensor in zip((of_a, of_b, of_c, *others), tensors.values(), strict=True)
        }
        winner = made.winners[0]
        call = DispatchedCall(gpu, made, winner, winner.calls[0], problem.M)
        spaces = {"workspace": torch.empty(16), "counters": torch.empty(16)}
        addresses = call.addresses({**tensors, **spaces})
        assert call.prepared(layouts).launch(7, addresses)
        assert without_addresses(gpu.driver.launched[-1]) == without_addresses(dispatched), problem.name


@pytest.fixture
def experts(monkeypatch: pytest.MonkeyPatch) -> HostGpu:
    """A GPU that is none, and a bundle whose winner is one of a mixture of experts, which servers find in any file."""
    gpu = HostGpu(0)
    made, _ = planned([planned_row(PROBLEM)])
    own = ("experts", 8), ("top_k", 2), ("scales", "blocks")
    problem = GemmProblem(16, 128, 256, "fused_moe", "fp8e4m3fn", "fp8e4m3fn", "bf16", own=own)
    winners = (replace(made.winners[0], problem=problem),)
    bundle = replace(made, contents=replace(made.contents, winners=winners))
    monkeypatch.setattr(bundle_server, "_DEVICE", "cpu")
    monkeypatch.setattr(bundle_server, "_bundle", lambda path: bundle)
    monkeypatch.setattr(bundle_server, "_GuardedGpu", lambda index: gpu)
    return gpu


def rows_request(name: str) -> dict[str, Any]:
    return {"command": "row_kernel", "config": name, "bundle": "b.genkern", "winner": 0}


class HostGpu(bundle_server._GuardedGpu):
    """Its memory is the host's."""

    @property
    def _device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cpu")


def sorted_by(gpu: HostGpu, fault: str) -> Callable[..., Any]:
    """What stands for a kernel: PyTorch's result in the GPU's memory, with a fault of this kind."""

    def order_by(context: Context, op: str, ids: torch.Tensor, experts: int) -> Callable[[torch.Tensor], Any]:
        def made(ids: torch.Tensor) -> Any:
            ends, slots = order_of(ids, experts)
            if fault == "not launched":
                return ends, slots
            found = [gpu.empty(each.shape, (1,), each.dtype).copy_(each) for each in (ends, slots)]
            if fault == "wrong":
                found[1][-1] += 1
            elif fault == "outside":
                gpu.made[0].bits[gpu.made[0].start + experts] = 1
            return tuple(found)

        return made

    return order_by


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("", ""),
        ("wrong", "1 tokens of 1 experts: other bits than PyTorch's"),
        ("outside", "1 tokens of 1 experts: writes outside its output"),
        ("not launched", "it is not launched"),
    ],
)
def test_kernels_beside_products(experts: HostGpu, monkeypatch: pytest.MonkeyPatch, fault: str, said: str) -> None:
    """Each is told from what PyTorch's calls make of the same, from writes beside its output, and from no launch."""
    monkeypatch.setattr(bundle_server, "order_by", sorted_by(experts, fault))
    server = BundleServer("cudagraph")
    monkeypatch.setattr(server, "_failed", lambda name, error: {"config": name, "error": str(error)})
    answer = server._answer(rows_request("order_int64"), lambda told: None)
    assert answer["config"] == "order_int64"
    if fault == "not launched":
        assert said in answer["error"]
    else:
        assert (answer["passed"], answer["message"]) == (not said, said)


def test_rows_in_8_bits(experts: HostGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their scales, which lie column by column where they are of blocks."""

    def quantize_by(
        context: Context, op: str, device: int, rows: int, k: int, types: tuple[str, str], scales: str
    ) -> Callable[[torch.Tensor], Any]:
        def made(x: torch.Tensor) -> Any:
            found, of_x = quantized(x, torch.float8_e4m3fn, scales)
            column_by_column = experts.empty(of_x.shape, (1, of_x.shape[0]), of_x.dtype).copy_(of_x)
            return experts.empty(found.shape, (k, 1), found.dtype).copy_(found), column_by_column

        return made

    monkeypatch.setattr(bundle_server, "quantize_by", quantize_by)
    answer = BundleServer("cudagraph")._answer(rows_request("quantize_blocks_bf16_fp8e4m3fn"), lambda told: None)
    assert (answer["passed"], answer["message"]) == (True, "")


@pytest.mark.parametrize("fault", ["", "wrong", "not launched"])
def test_gated_rows(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The gate's half before up's and behind it."""
    gpu, bundle = HostGpu(0), planned([planned_row(PROBLEM)])[0]
    monkeypatch.setattr(bundle_server, "_DEVICE", "cpu")
    monkeypatch.setattr(bundle_server, "_bundle", lambda path: bundle)
    monkeypatch.setattr(bundle_server, "_GuardedGpu", lambda index: gpu)
    seen: list[int] = []

    def row_call(
        context: Any, op: str, device: int, kernel: Any, grid: tuple[int, int], numbers: dict[str, int]
    ) -> Any:
        if fault == "not launched":
            return None

        def launch(addresses: tuple[int, ...]) -> bool:
            x = matrix(addresses[0], grid[0], numbers["pitch"])
            parts = [x[:, numbers[name] :][:, : numbers["columns"]] for name in ("gate", "up")]
            found = torch.nn.functional.silu(parts[0]) * parts[1]
            matrix(addresses[2], grid[0], numbers["columns"]).copy_(found + 1 if fault else found)
            seen.append(numbers["gate"])
            return True

        return gpu, launch

    monkeypatch.setattr(bundle_server, "row_call", row_call)
    server = BundleServer("cudagraph")
    monkeypatch.setattr(server, "_failed", lambda name, error: {"config": name, "error": str(error)})
    answer = server._answer(rows_request("gate_bf16"), lambda told: None)
    if fault == "not launched":
        assert "it is not launched" in answer["error"]
    else:
        assert answer["passed"] is (fault == "")
        assert seen[:2] == ([0, 48] if not fault else [0])


def matrix(address: int, rows: int, columns: int) -> Any:
    memory = (ctypes.c_char * (rows * columns * 2)).from_address(address)
    return torch.frombuffer(memory, dtype=torch.bfloat16).view(rows, columns)


def test_the_process_serves_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that a prover starts times with what it is told, by this server."""
    served: list[tuple[str, object]] = []
    monkeypatch.setattr(bundle_server, "serve_parent", lambda source, make: served.append((source, make)))
    main(["--serve", "cudagraph"])
    assert served == [("cudagraph", BundleServer)]
    assert SERVER[-1] == bundle_server.__name__
