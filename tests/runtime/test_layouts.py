"""Every layout that is tuned is called: A and B row-major or not, in each format, whichever way a program calls."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from computing_gpu import computing_gpu, planned, planned_row
from layout_cases import HAVE, LAYOUTS, TYPES, K, M, N, laid, operands, problem_of, tuned_layouts
from recording_gpu import FakeGpu
from torch import nn

from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op, op_names
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.linear import patch_model, report_model
from genkern.runtime.process.torch_ops import define

_numbers = itertools.count()


class Served:
    """Calls of a format's rows, of which each that a winner served has one launch."""

    def __init__(self, *problems: GemmProblem, **more: object) -> None:
        bundle, kernels = planned([planned_row(each, **more) for each in problems])
        self.gpu: FakeGpu = computing_gpu(kernels)
        self.context = Context(lambda op: [bundle], lambda index: self.gpu)
        self.gemm = Gemm(problems[0].op, self.context)
        self.gemm.operator = define(self.gemm, f"test_layouts_{next(_numbers)}")

    def launches(self) -> int:
        count = len(self.gpu.driver.launched)
        self.gpu.driver.launched.clear()
        return count


@pytest.mark.parametrize("op", TYPES)
def test_every_layout_of_every_format_is_called(op: str) -> None:
    """By its own winner, with what its kernel reads where it reads it."""
    problems = tuned_layouts(op)
    assert len(problems) == HAVE.get(op, 4)
    implementation = Served(*problems)
    for problem in problems:
        x, weight, scales = operands(problem)
        out = implementation.gemm(x, weight, **scales)
        winner = implementation.context.find(implementation.gpu, problem).winner  # type: ignore[arg-type]
        assert winner is not None
        assert winner.problem == problem
        assert implementation.launches() == 1, problem.name
        if op not in HAVE:
            assert torch.equal(out.double(), (x.double() @ weight.mT.double()).to(out.dtype).double()), problem.name


def test_no_format_is_left_out() -> None:
    """But those whose rows go to one of many weights."""
    assert {op for op in op_names() if get_op(op).groups is None} == set(TYPES)


def test_what_a_slice_lies_like() -> None:
    """M is not the leading dimension of a slice's transpose; one that breaks a promise is the library's, and right."""
    for row_major_b in (True, False):
        problem = problem_of("a16w16", False, row_major_b)
        implementation = Served(problem)
        for gap, launched in ((16, 1), (32, 1), (8, 0), (1, 0)):
            x, weight, _ = operands(problem, gap)
            assert x.stride() == (1, M + gap)
            assert torch.equal(implementation.gemm(x, weight), nn.functional.linear(x, weight))
            assert implementation.launches() == launched
        # Off 16 bytes.
        x, weight, _ = operands(replace(problem, M=M + 1))
        assert torch.equal(implementation.gemm(x[1:], weight), nn.functional.linear(x[1:], weight))
        assert implementation.launches() == 0


def test_an_m_that_nobody_tuned() -> None:
    """Of a column-major x it is a leading dimension: served are multiples of what the kernel was promised, as fast or
    slow as what is tuned for such; every other M is the library's.
    """
    of_64, of_100, of_77 = (problem_of("a16w16", False, True, m) for m in (64, 100, 77))
    for tuned, wanted in (
        (of_64, {8: 1, 24: 1, 40: 1, 48: 1, 64: 1, 7: 0, 36: 0, 60: 0, 63: 0}),
        (of_100, {4: 1, 60: 1, 92: 1, 96: 0, 98: 0, 99: 0}),
        (of_77, {1: 0, 3: 1, 75: 1, 76: 0, 64: 0}),
    ):
        implementation = Served(tuned, vendor_us=1e4)
        for m, launched in wanted.items():
            x, weight, _ = operands(replace(tuned, M=m))
            assert torch.equal(implementation.gemm(x, weight), nn.functional.linear(x, weight)), m
            assert implementation.launches() == launched, (tuned.M, m)
    # Each by its like.
    both = Served(of_64, of_77, vendor_us=1e4)
    choices = [both.context.find(both.gpu, replace(of_64, M=m)) for m in (48, 49, 63, 40)]  # type: ignore[arg-type]
    assert [each.winner and each.winner.problem.M for each in choices] == [64, 77, 77, 64]
    assert both.context.tuned(both.gpu, of_64) == [(each.M, planned_row(each).config.name) for each in (of_64, of_77)]  # type: ignore[arg-type,union-attr]


def test_one_row_lies_both_ways() -> None:
    """A vector, or a weight of one column, is called by the winner of whichever layout was tuned."""
    for row_major_a, row_major_b in LAYOUTS:
        for m, n in ((1, N), (M, 1)):
            problem = replace(problem_of("a16w16", row_major_a, row_major_b), M=m, N=n)
            implementation = Served(problem)
            x, weight, _ = operands(problem)
            for given in (x, x.contiguous()) if m == 1 else (x,):
                of_weight = (weight, weight.contiguous()) if n == 1 else (weight,)
                for each in of_weight:
                    assert torch.equal(implementation.gemm(given, each), nn.functional.linear(given, each))
                    assert implementation.launches() == 1, (problem.name, given.stride(), each.stride())
    # A column of a matrix is one row whose elements lie apart, in the other layout.
    implementation = Served(replace(problem_of("a16w16", False, False), M=1))
    _, weight, _ = operands(problem_of("a16w16", False, False))
    x = torch.randint(-3, 4, (K, 40)).bfloat16()
    for given in (x[:, :1].t(), x[:, 0]):
        assert torch.equal(implementation.gemm(given, weight), nn.functional.linear(given, weight))
        assert implementation.launches() == 1


def test_more_dimensions() -> None:
    """x [..., K] that is one column-major matrix in memory, and one that is none."""
    implementation = Served(problem_of("a16w16", False, False))
    x, weight, _ = operands(problem_of("a16w16", False, False))
    cube = x.view(2, M // 2, K)
    assert torch.equal(implementation.gemm(cube, weight), nn.functional.linear(cube, weight))
    assert implementation.launches() == 1
    none = torch.randint(-3, 4, (2, K, M // 2)).bfloat16().mT
    assert torch.equal(implementation.gemm(none, weight), nn.functional.linear(none, weight))
    assert implementation.launches() == 0


@torch.no_grad()
def test_patched_compiled_captured_and_functional_calls() -> None:
    """x.t() of a patched layer, of the functional form, in a graph that is captured, and under torch.compile."""
    problem = problem_of("a16w16", False, False)
    implementation = Served(problem)
    x, weight, _ = operands(problem)
    model = nn.Linear(K, N, bias=False).bfloat16()
    model.weight.copy_(weight)
    wanted = nn.functional.linear(x, weight)
    assert "column-major x: tiled_" in str(report_model(model, implementation.context)[0])
    with patch_model(model, implementation.gemm, implementation.context) as patch:
        assert patch.layers == ("",)
        for call in (
            model,
            lambda x: nn.functional.linear(x, model.weight),
            torch.compile(model, backend="aot_eager", fullgraph=True),
        ):
            assert torch.equal(call(x), wanted)
            assert implementation.launches() == 1
        implementation.gpu.driver.capturing = 5
        assert torch.equal(model(x), wanted)
        assert implementation.launches() == 1
        implementation.gpu.driver.capturing = 0
        # Row-major rows have no winner here.
        assert torch.equal(model(x.contiguous()), wanted)
        assert implementation.launches() == 0


def test_the_problem_that_is_recorded_says_how_x_lies() -> None:
    """What nobody tuned is told to those who watch as it was called, in layouts that the format has."""
    seen: list[GemmProblem] = []
    for op, column_major in (("a16w16", True), ("a8w8_bpreshuffle", True), ("a4w4_blockscale", False)):
        problem = problem_of(op, True, False)
        context = Context(
            lambda op: [], lambda index: None, watches=[lambda gpu, problem, choice: seen.append(problem)]
        )
        x, weight, scales = operands(problem)
        Gemm(op, context)(x.mT.contiguous().mT, weight, **scales)
        assert seen.pop() == replace(problem, row_major_a=not column_major)


def gradients(
    implementation: Served, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, call: Any
) -> tuple[Any, ...]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    found = torch.autograd.grad(call(x, weight), (x, weight), grad)
    return (*found, implementation.launches())


TRAINED = ("a16w16", "batched_a16w16")


@pytest.mark.parametrize("op", TRAINED)
def test_gradients_are_called_by_their_winners(op: str) -> None:
    """dX = dY W and dW = dY^T X, where each has a row, whoever serves the product itself; else by the library."""
    forward = problem_of(op, True, False)
    of_x = replace(forward, N=K, K=N, row_major_b=True)
    of_weight = replace(forward, M=N, N=K, K=M, row_major_a=False, row_major_b=True)
    x, weight, _ = operands(forward)
    grad = laid((*x.shape[:-1], N), "bf16", True)
    wanted = grad @ weight, grad.mT @ x
    for rows in (
        (forward,),
        (forward, of_x),
        (forward, of_weight),
        (of_weight,),
        (of_x, of_weight),
        (forward, of_x, of_weight),
    ):
        implementation = Served(*rows)
        for _ in range(2):
            *found, launches = gradients(implementation, x, weight, grad, implementation.gemm)
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
            assert launches == len(rows)
    torch.compiler.reset()
    compiled = torch.compile(implementation.gemm, backend="aot_eager", fullgraph=True, dynamic=False)
    *found, launches = gradients(implementation, x, weight, grad, compiled)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert launches == 3
    # Gradients that nobody asks for are not computed.
    implementation = Served(of_x)
    implementation.gemm(x, weight.detach().requires_grad_()).backward(grad)
    assert implementation.launches() == 0


def test_gradients_are_differentiated_again() -> None:
    """Winners of gradients are operators too."""
    forward = problem_of("a16w16", True, False)
    implementation = Served(forward, replace(forward, N=K, K=N, row_major_b=True))
    x, weight, _ = operands(forward)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    (of_x,) = torch.autograd.grad(implementation.gemm(x, weight).sum(), x, create_graph=True)
    (of_weight,) = torch.autograd.grad(of_x.sum(), weight)
    assert torch.equal(of_weight, torch.full_like(weight, M))
