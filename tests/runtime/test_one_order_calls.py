"""Tests of calls that must be batch invariant: who serves them, in every way of calling, and what is refused."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from computing_gpu import CONFIG, computing_gpu, planned, planned_row
from recording_gpu import FakeGpu
from torch import nn
from torch.nn import functional

import genkern
from genkern.errors import InputError, InvarianceError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of
from genkern.runtime.backends import lt
from genkern.runtime.backends.lt_matmul import Algorithm
from genkern.runtime.calls.configuration import OFF, STRICT, WARN
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.linear import patch_model, report_model
from genkern.runtime.process import default_context
from genkern.runtime.process.default_context import Process
from genkern.runtime.process.torch_ops import define
from genkern.timing.libraries import StoredAlgorithm

N, K = 128, 256
LOW = replace(CONFIG, BLOCK_SIZE_M=128, num_warps=8)
SPLIT = replace(CONFIG, SPLIT_K=4, reduce="semaphore")
SUMS = "wgmma k16"


def marked(m: int, config: Config = CONFIG, **more: object):  # type: ignore[no-untyped-def]
    problem = GemmProblem(m, N, K)
    return planned_row(problem, config, sums=sums_of(problem, config, "sm_90"), batch_invariant=True, **more)


BUNDLE, KERNELS = planned(
    [
        marked(16),
        marked(64, duration_us=11.0),
        marked(512, LOW, duration_us=20.0),
        # Faster, and of nobody's order.
        planned_row(GemmProblem(100, N, K), CONFIG, duration_us=1.0),
        planned_row(GemmProblem(100, 2 * N, K), CONFIG),
    ]
)


@pytest.fixture
def gpu() -> FakeGpu:
    return computing_gpu(KERNELS)


@pytest.fixture
def context(gpu: FakeGpu) -> Context:
    return Context(lambda op: [BUNDLE], lambda index: gpu, batch_invariant=STRICT)


@pytest.fixture
def gemm(context: Context) -> Gemm:
    return Gemm("a16w16", context)


def operands(m: int, n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(m, K).bfloat16(), torch.randn(n, K).bfloat16()


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x.double() @ weight.double().mT).bfloat16()


def test_every_m_is_launched(gemm: Gemm, gpu: FakeGpu) -> None:
    """Tuned or not, from one row to more than any was tuned for, by kernels of the layer's order of sums."""
    assert sums_of(GemmProblem(1, N, K), CONFIG, "sm_90") == sums_of(GemmProblem(1, N, K), LOW, "sm_90") == SUMS
    for m in (1, 2, 16, 17, 63, 64, 65, 100, 511, 512, 513, 1000):
        x, weight = operands(m)
        gpu.driver.launched.clear()
        for _ in range(2):
            assert torch.equal(gemm(x, weight), product(x, weight))
        assert len(gpu.driver.launched) == 2


def test_an_m_without_a_row_of_its_order_is_recorded(gpu: FakeGpu) -> None:
    """Whoever watches is told which sizes to tune: those without a row of their own, also where a faster one is."""
    asked = {}
    context = Context(
        *(lambda op: [BUNDLE], lambda index: gpu),
        watches=[lambda gpu, problem, choice: asked.update({problem.M: choice is not None and choice.exact})],
        batch_invariant=STRICT,
    )
    for m in (16, 17, 100):
        Gemm("a16w16", context)(*operands(m))
    assert asked == {16: True, 17: False, 100: False}


def test_what_has_no_order_is_refused(gemm: Gemm, gpu: FakeGpu) -> None:
    """In one line that says which N, K and format, and what to do; every time; a CPU is no GPU of a bundle."""
    for x, weight in (operands(100, 2 * N), operands(100, 64)):
        for _ in range(2):
            with pytest.raises(InvarianceError) as error:
                gemm(x, weight)
            assert f"100x{weight.shape[0]}x{K} a16w16" in str(error.value)
            assert "--batch_invariant" in str(error.value)
            assert "\n" not in str(error.value)
    with pytest.raises(InvarianceError, match="no GPU"):
        Gemm("a16w16", Context(lambda op: [BUNDLE], lambda index: None, batch_invariant=STRICT))(*operands(16))
    assert not gpu.driver.launched
    # Of no rows there is nothing to add up.
    assert gemm(*operands(0, 64)).shape == (0, 64)


def test_a_warning_is_enough_by_choice(gpu: FakeGpu, caplog: pytest.LogCaptureFixture) -> None:
    """The library serves what has no order, and it is said once; the rest is served as ever."""
    gemm = Gemm("a16w16", Context(lambda op: [BUNDLE], lambda index: gpu, batch_invariant=WARN))
    x, weight = operands(100, 64)
    for _ in range(3):
        assert torch.equal(gemm(x, weight), functional.linear(x, weight))
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "not batch invariant" in said.message
    gemm(*operands(100))
    assert len(gpu.driver.launched) == 1


def test_operands_that_no_kernel_takes_are_copied(gemm: Gemm, gpu: FakeGpu) -> None:
    """Off their alignment, with gaps that kernels were not promised, column by column: never the library."""
    x, weight = operands(20)
    flat = torch.empty(20 * K + 3).bfloat16()
    off = flat[3:].view(20, K).copy_(x)
    wide = torch.empty(20, K + 3).bfloat16()[:, :K].copy_(x)
    of_columns = x.t().contiguous().t()
    wide_weight = torch.empty(N, K + 1).bfloat16()[:, :K].copy_(weight)
    # A weight that lies column by column is another layer, with or without gaps.
    with pytest.raises(InvarianceError):
        gemm(x, torch.empty(K, N + 1).bfloat16()[:, :N].mT.copy_(weight))
    for given, by in ((off, weight), (wide, weight), (of_columns, weight), (x, wide_weight), (wide, wide_weight)):
        gpu.driver.launched.clear()
        for _ in range(2):
            assert torch.equal(gemm(given, by), product(x, weight))
        assert len(gpu.driver.launched) == 2


@pytest.mark.parametrize("taken", [True, False])
def test_an_algorithm_is_the_one_that_was_tested(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, taken: bool) -> None:
    """For its own M alone; where the library would take another for operands that lie so, kernels serve."""
    name, launched = StoredAlgorithm(130000, bytes(64)).name, []
    problem = GemmProblem(64, N, K)
    rows = [marked(16), marked(64, choice="vendor", vendor=name, vendor_sums=SUMS)]
    bundle, kernels = planned(rows)
    gpu.driver.kernels = kernels

    def launch(*given: object) -> None:
        launched.append(given)

    matmul = SimpleNamespace(launch=launch, native=lambda *given: None)
    found = Algorithm(bytes(64) if taken else bytes([1] * 64), 0)
    answers = {"prepare": matmul, "settled": found, "finds_again": True}
    backend = SimpleNamespace(**{name: lambda *given, answer=answer: answer for name, answer in answers.items()})
    monkeypatch.setitem(lt.BACKENDS, "cublaslt", backend)
    monkeypatch.setattr(gpu, "empty", lambda shape, strides, dtype: on_boundary(torch.empty(shape, dtype=dtype)))
    here = {"cublaslt": "130000"}
    gemm = Gemm(
        "a16w16", Context(lambda op: [bundle], lambda index: gpu, here=lambda arch: here, batch_invariant=STRICT)
    )
    for m in (problem.M, 65, 63):
        x, weight = operands(m)
        gemm(on_boundary(x), on_boundary(weight))
    assert (len(launched), len(gpu.driver.launched)) == ((1, 2) if taken else (0, 3))


def on_boundary(x: torch.Tensor) -> torch.Tensor:
    """The same values at a multiple of 256 bytes, as PyTorch's allocator has them on a GPU."""
    room = torch.empty(x.numel() + 256, dtype=x.dtype)
    offset = -room.data_ptr() // x.element_size() % 128
    return room[offset : offset + x.numel()].view(x.shape).copy_(x)


def test_a_launch_that_fails_is_refused(gemm: Gemm, gpu: FakeGpu) -> None:
    """Eager ones and those after it; a binary that cannot be loaded too."""
    x, weight = operands(16)
    gemm(x, weight)
    gpu.driver.fails = True
    for _ in range(3):
        with pytest.raises(InvarianceError, match="launch failed"):
            gemm(x, weight)


def test_a_switch_changes_who_serves(gpu: FakeGpu) -> None:
    """At once, back and forth; what was found before is found again, without another look."""
    context = Context(lambda op: [BUNDLE], lambda index: gpu)
    gemm = Gemm("a16w16", context)
    x, weight = operands(100, 64)
    assert torch.equal(gemm(x, weight), functional.linear(x, weight))
    context.switch(STRICT)
    with pytest.raises(InvarianceError):
        gemm(x, weight)
    tuned = operands(100)
    gemm(*tuned)
    (of_one_order,) = gpu.driver.launched
    context.switch(OFF)
    gemm(*tuned)
    assert len(gpu.driver.launched) == 2
    # Another tile's grid: the faster row has no order.
    loads = list(gpu.driver._by_handle)
    for mode in (STRICT, OFF, STRICT, OFF):
        context.switch(mode)
        gemm(*tuned)
    assert list(gpu.driver._by_handle) == loads
    assert gpu.driver.launched[2].parameters[-1] == of_one_order.parameters[-1]
    assert torch.equal(gemm(x, weight), functional.linear(x, weight))


def test_a_graph_is_captured_with_one_order(gpu: FakeGpu) -> None:
    """Though its warm-up was served by another, in the mode of before."""
    context = Context(lambda op: [BUNDLE], lambda index: gpu)
    gemm = Gemm("a16w16", context)
    x, weight = operands(100, 2 * N)
    gemm(x, weight)
    context.renew()
    context.switch(STRICT)
    gpu.driver.capturing = 1
    with pytest.raises(InvarianceError):
        gemm(x, weight)
    tuned = operands(100)
    assert torch.equal(gemm(*tuned), product(*tuned))


def test_a_server_found_during_a_switch_is_not_kept(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever switches while a call looks for its server: calls after that are of the new mode."""
    context = Context(lambda op: [BUNDLE], lambda index: gpu)
    gemm = Gemm("a16w16", context)
    find, x, weight = Context.find, *operands(100)

    def switching(self: Context, *given: object, **more: object) -> object:
        found = find(self, *given, **more)  # type: ignore[arg-type]
        monkeypatch.setattr(Context, "find", find)
        thread = threading.Thread(target=context.switch, args=(STRICT,))
        thread.start()
        thread.join()
        return found

    monkeypatch.setattr(Context, "find", switching)
    gemm(x, weight)
    assert context.mode.name == STRICT
    assert not any(found.kept or found.known for found in gemm._by_mode.values())
    gemm(x, weight)
    assert [name for name, found in gemm._by_mode.items() if found.known] == [STRICT]


def test_transforms_and_gradients(gemm: Gemm) -> None:
    """What torch.func transforms is the library's, and refused; a gradient without rows is PyTorch's as ever."""
    x, weight = operands(16)
    gemm.operator = define(gemm, "gemm_invariant_test")
    with pytest.raises(InvarianceError, match=r"torch\.func"):
        torch.func.vmap(lambda each: gemm(each, weight))(x[None])
    trained = x.clone().requires_grad_()
    gemm(trained, weight).sum().backward()
    assert trained.grad is not None


@torch.no_grad()
def test_compiled_calls_choose_by_m_at_run_time(context: Context, gpu: FakeGpu) -> None:
    """One compiled program for all M, in the mode in which it runs."""
    gemm = Gemm("a16w16", context)
    operator = define(gemm, "gemm_invariant_compiled")
    gemm.operator = operator
    weight = operands(1)[1]
    compiled = torch.compile(lambda x: gemm(x, weight) + 1, dynamic=True, fullgraph=True, backend="eager")
    for m in (16, 17, 512, 600):
        x = operands(m)[0]
        gpu.driver.launched.clear()
        assert torch.equal(compiled(x), product(x, weight) + 1)
        assert len(gpu.driver.launched) == 1
    other = operands(1, 64)[1]
    of_other = torch.compile(lambda x: gemm(x, other), dynamic=True, backend="eager")
    with pytest.raises(InvarianceError):
        of_other(x)
    context.switch(OFF)
    assert torch.equal(of_other(x), functional.linear(x, other))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tuned = nn.Linear(K, N, bias=False).bfloat16()
        self.other = nn.Linear(K, 64, bias=False).bfloat16()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.tuned(x), self.other(x), functional.linear(x, self.tuned.weight)


@torch.no_grad()
def test_no_layer_of_a_patched_model_is_passed_over(gpu: FakeGpu) -> None:
    """Whether the mode or the patch came first; what has no order is refused, and the library's again afterwards."""
    context, model, x = Context(lambda op: [BUNDLE], lambda index: gpu), Model(), torch.randn(100, K).bfloat16()
    with patch_model(model, Gemm("a16w16", context), context) as patch:
        assert patch.layers == ("tuned",)
        wanted = model(x)
        context.switch(STRICT)
        with pytest.raises(InvarianceError, match="100x64x256"):
            model(x)
        assert torch.equal(model.tuned(x), wanted[0])
        with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(InvarianceError, match="autocast"):
            model.tuned(x)
        context.switch(OFF)
        assert "forward" not in vars(model.other)
        model(x)
        context.switch(STRICT)
    assert torch.equal(model(x)[1], functional.linear(x, model.other.weight))
    with patch_model(model, Gemm("a16w16", context), context) as patch:
        assert patch.layers == ("tuned", "other")


def test_a_report_says_the_order(context: Context) -> None:
    """Of each layer that has one, and its winners of that order alone."""
    tuned, other = report_model(Model(), context)
    assert (tuned.sums, other.sums, other.winners) == (SUMS, "", ())
    assert [m for m, _ in tuned.winners] == [16, 64, 512]
    assert f"batch invariant ({SUMS})" in str(tuned)
    context.switch(OFF)
    tuned, _ = report_model(Model(), context)
    assert tuned.sums == ""
    assert [m for m, _ in tuned.winners] == [16, 64, 100, 512]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu) -> Process:
    made = Process({}, lambda index: gpu)
    monkeypatch.setattr(default_context, "_made", made)
    return made


def test_the_switch_of_a_process(process: Process) -> None:
    """From the call on, or until a block ends, one in another; the environment begins with it."""
    modes = []
    with genkern.batch_invariant():
        modes.append(process.context.mode.name)
        with genkern.batch_invariant("warn"):
            modes.append(process.context.mode.name)
            with genkern.batch_invariant(False):
                modes.append(process.context.mode.name)
        modes.append(process.context.mode.name)
    assert modes == [STRICT, WARN, OFF, STRICT]
    assert process.context.mode.name == OFF
    genkern.batch_invariant()
    assert process.context.mode.name == STRICT
    with pytest.raises(InputError, match="sometimes"):
        genkern.batch_invariant("sometimes")
    for text, mode in (("1", STRICT), ("on", STRICT), ("warn", WARN), ("0", OFF), ("", OFF), ("yess", STRICT)):
        said = Process({"GENKERN_BATCH_INVARIANT": text}, lambda index: None)
        assert said.context.mode.name == mode
