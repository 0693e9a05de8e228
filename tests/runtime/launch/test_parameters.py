"""Tests of genkern.runtime.launch.parameters: a bundle's launches pass what the measured process passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from recording_gpu import FakeGpu
from small_bundle import winners_for
from triton_launcher import arguments_of

from genkern.errors import ResultsError
from genkern.gemm.dtypes import DTYPES
from genkern.kernels.contract.argument import Constant, Descriptor, Integer, Leading, Stride
from genkern.kernels.contract.expression import evaluate
from genkern.kernels.plan import PlannedLaunch
from genkern.ops.op import get_op
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.table import Choice
from genkern.runtime.launch.parameters import Layout, parameters_of, unmet
from genkern.runtime.launch.prepared_call import PreparedCall

# CUtensorMapDataType of cuda.h.
BFLOAT16 = 9


@dataclass(frozen=True)
class Piece:
    """Memory that kernels are passed the address of."""

    address: int

    def data_ptr(self) -> int:
        return self.address


def tensors_of(winner: Result) -> dict[str, torch.Tensor]:
    """Operands that lie without gaps."""
    made = {}
    for operand in get_op(winner.problem.op).operands(winner.problem):
        stored = torch.zeros(operand.stored_shape, dtype=getattr(torch, DTYPES[operand.dtype].torch))
        made[operand.name] = stored if operand.row_major else stored.mT
    return made


def given_by_triton(launch: PlannedLaunch, tensors: Mapping[str, Any], known: Mapping[str, int]) -> list[object]:
    """What the measured process gives Triton's launcher, as that passes it on: maps, then sizes and strides."""
    passed: list[object] = []
    plain = [argument for argument in launch.arguments if not isinstance(argument, (Constant, Descriptor))]
    values = iter(arguments_of(PlannedLaunch("", (1, 1, 1), 1, False, tuple(plain)), tensors, known))
    for argument in launch.arguments:
        if isinstance(argument, Descriptor):
            tensor = tensors[argument.operand]
            matrix = tensor.mT if argument.transposed else tensor
            passed += [("map", tensor.data_ptr()), *matrix.shape, *matrix.stride()]
        elif not isinstance(argument, Constant):
            value = next(values)
            passed.append(value if isinstance(argument, (Integer, Leading)) else value.data_ptr())  # type: ignore[attr-defined]
    return passed


def test_an_operand_that_the_format_has_no_more(bundle: Bundle) -> None:
    """A bundle may be older than a format of someone's own: the library serves then."""
    winner = winners_for(bundle, "sm_90")[0]
    launch, binary = winner.calls[0].plan.launches[0], bundle.contents.binaries[winner.calls[0].binaries[0]]
    with pytest.raises(ResultsError, match="has an operand a,"):
        parameters_of(launch, binary, {}, {"units": 132, "M": 1})


def test_every_launch_passes_what_was_measured(bundle: Bundle) -> None:
    """Address for address, number for number, in the sizes that the binary declares; what is left over is zero."""
    checked = set()
    for winner in bundle.winners:
        for call in winner.calls:
            gpu = FakeGpu()
            gpu.identity = type(gpu.identity)(winner.arch, winner.device, winner.compute_units)
            tensors = tensors_of(winner)
            m, known = winner.problem.M, {"units": winner.compute_units, "M": winner.problem.M}
            layouts = {
                name: Layout.of(tensor.shape, tensor.stride(), tensor.stride(-1) == 1, tensor.element_size())
                for name, tensor in tensors.items()
            }
            prepared = PreparedCall(gpu, Choice("tuned", winner, call, bundle), layouts, m)
            assert prepared(tuple(tensor.data_ptr() for tensor in tensors.values()))
            workspace, counters = gpu.workspaces.take(7, *prepared.memory_bytes)
            own = {"workspace": Piece(workspace), "counters": Piece(counters)}
            assert len(gpu.driver.launched) == len(call.plan.launches)
            for launch, launched in zip(call.plan.launches, gpu.driver.launched, strict=True):
                wanted = given_by_triton(launch, {**tensors, **own}, known)
                for value, parameter in zip(wanted, launched.parameters, strict=False):
                    if isinstance(value, tuple):
                        assert gpu.driver.map_in(parameter).address == value[1]
                    else:
                        assert int.from_bytes(parameter, "little") == value, (launch.symbol, wanted)
                assert not any(b"".join(launched.parameters[len(wanted) :]))
                x, y, z = launch.programs(known)
                assert (launched.grid, launched.cluster) == ((x * launch.cluster, y, z), launch.cluster)
                checked.add(launch.symbol.partition("_B")[0])
    assert len(checked) > 12


@pytest.mark.parametrize("multiple_of", [2, 4, 8, 16])
def test_what_kernels_were_promised_of_pitches(multiple_of: int) -> None:
    """Rows, and matrices of a batch, may lie further apart by what the promise divides, and by no less."""
    for argument, lies in (
        (Leading("lda", "a", multiple_of), lambda apart: Layout(10, 16, apart, 2)),
        (Stride("a_step", "a", multiple_of), lambda apart: Layout(10, 16, 16, 2, batch=3, step=apart)),
    ):
        assert unmet(argument, {"a": lies(160 + multiple_of)}) == ""
        assert f"no multiple of {multiple_of}" in unmet(argument, {"a": lies(160 + multiple_of // 2)})
        assert unmet(replace(argument, multiple_of=1), {"a": lies(161)}) == ""


def test_boxes_fit_their_swizzle(bundle: Bundle) -> None:
    """A map's box has the argument's rows, and at most as many bytes in a row as its swizzle spans."""
    spans = {0: 512, 1: 32, 2: 64, 3: 128}
    seen = set()
    for winner in winners_for(bundle, "sm_90"):
        for call in winner.calls:
            for launch, sha256 in zip(call.plan.launches, call.binaries, strict=True):
                encodings = bundle.contents.binaries[sha256].encodings
                descriptors = [argument for argument in launch.arguments if isinstance(argument, Descriptor)]
                for argument, encoding in zip(descriptors, encodings, strict=True):
                    rows, columns = (evaluate(size, {}) for size in argument.box)
                    assert (encoding.element_type, encoding.element_bytes) == (BFLOAT16, 2)
                    assert encoding.box == (rows, min(columns, spans[encoding.swizzle] // 2))
                    seen.add(encoding.swizzle)
    assert {1, 2, 3} <= seen


def test_a_format_that_stores_an_operand_in_another_way_is_refused(bundle: Bundle) -> None:
    """In one line that says how it is now: its kernels would misread it, whatever its name."""
    winner = winners_for(bundle, "sm_90")[0]
    a, b, c = winner.operands
    layouts = {name: Layout(100, 512, 512, 2) for name in "abc"}
    for operands in ((a, replace(b, row_major=True), c), (a, replace(b, dtype="fp16"), c), (a, b), ()):
        older = Choice(
            "tuned", replace(winner, package=replace(winner.package, operands=operands)), winner.calls[0], bundle
        )
        with pytest.raises(ResultsError, match=r"a16w16 now has a bf16, row-major; b bf16, column-major; c.*again"):
            PreparedCall(FakeGpu(), older, layouts, 100)


def test_a_binary_with_other_parameters_is_refused(bundle: Bundle) -> None:
    """A plan and a binary that do not belong together are never launched."""
    first, second = winners_for(bundle, "sm_90")[:2]
    binary = bundle.contents.binaries[second.calls[0].binaries[-1]]
    layouts = {name: Layout(100, 512, 512, 2) for name in "abc"}
    with pytest.raises(ResultsError, match="takes parameters of"):
        parameters_of(first.calls[0].plan.launches[0], binary, layouts, {"units": 1, "M": 100})


LAYOUTS = {
    ((3, 8), (8, 1), True): Layout(3, 8, 8, 2),
    ((3, 8), (16, 1), True): Layout(3, 8, 16, 2),
    ((1, 8), (999, 1), True): Layout(1, 8, 8, 2),
    ((8, 3), (1, 8), False): Layout(3, 8, 8, 2),
    ((8, 1), (1, 1), False): Layout(1, 8, 8, 2),
    ((3, 1), (5, 7), True): Layout(3, 1, 5, 2),
    ((8,), (1,), True): Layout(1, 8, 8, 2),
}


@pytest.mark.parametrize(("shape", "strides", "row_major"), LAYOUTS)
def test_layouts(shape: tuple[int, ...], strides: tuple[int, ...], row_major: bool) -> None:
    """Rows, columns and pitch as the operand is stored; strides of dimensions of 1 say nothing."""
    assert Layout.of(shape, strides, row_major, 2) == LAYOUTS[shape, strides, row_major]


@pytest.mark.parametrize(
    ("shape", "strides", "row_major"), [((3, 8), (1, 3), True), ((3, 8), (8, 2), True), ((3, 8), (0, 1), True)]
)
def test_what_has_no_rows_is_refused(shape: tuple[int, ...], strides: tuple[int, ...], row_major: bool) -> None:
    """Rows whose elements lie apart, or that overlap, are no layout of ours."""
    with pytest.raises(ResultsError):
        Layout.of(shape, strides, row_major, 2)
