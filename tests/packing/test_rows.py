"""Tests of genkern.packing.rows: what of results is packed, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_gemms import GEMV, TILED, WARP_SPECIALIZED_SWAPPED

from genkern.errors import InputError
from genkern.gemm.gpus import gpu_of_product
from genkern.gemm.problem import MAX_DIMENSION, GemmProblem
from genkern.packing.rows import rows_of, without_kernels
from genkern.result.result import Proof, Result
from genkern.search.guided.predicted_times import predicted_times

PROBLEM = GemmProblem(100, 200, 512)
ROW = Result(
    PROBLEM,
    TILED,
    arch="sm_90",
    device="NVIDIA H200",
    duration_us=10.0,
    time_source="cudagraph",
    vendor_us=12.0,
    check=Proof("gpu"),
    versions=(("triton", "3.6.0"),),
)


def test_a_row_becomes_a_winner() -> None:
    """With its times, device, check and versions, and its config for every M up to its neighbours'."""
    found = rows_of([replace(ROW, problem=replace(PROBLEM, M=m)) for m in (100, 16, 400)], None, False)
    first = next(row for row in found.packed if row.winner.problem.M == 100)
    assert (first.winner.duration_us, first.winner.vendor_us, first.winner.proved_by) == (10.0, 12.0, "gpu")
    assert (first.winner.device, first.winner.compute_units) == ("NVIDIA H200", 132)
    assert first.winner.versions == (("triton", "3.6.0"),)
    reaches = {row.winner.problem.M: [(w.reach.least_m, w.reach.most_m) for w in row.wanted] for row in found.packed}
    # 100 overhangs a tile of 64, so that one set of kernels serves all; so does 400.
    assert reaches[16] == [(1, 99)]
    assert reaches[100] == [(17, 399)]
    assert reaches[400][0][0] == 101
    assert 10**6 < reaches[400][0][1] <= MAX_DIMENSION


def test_a_size_without_overhang_has_two_calls() -> None:
    """Its own kernels, which were measured, and those with masks for its neighbours."""
    (row,) = rows_of([replace(ROW, problem=replace(PROBLEM, M=128))], None, False).packed
    assert [(w.reach.least_m, w.reach.kernels_of.M) for w in row.wanted] == [(128, 128), (1, 129)]


def test_lower_tiles_serve_what_its_own_do_not() -> None:
    """The call for its own M comes first; every M up to its neighbours is served by one call."""
    rows = [replace(ROW, problem=replace(PROBLEM, M=17)), replace(ROW, config=WARP_SPECIALIZED_SWAPPED)]
    row = next(row for row in rows_of(rows, None, False).packed if row.winner.problem.M == 100)
    reaches = [(w.reach.least_m, w.reach.most_m, w.config.BLOCK_SIZE_M) for w in row.wanted]
    assert reaches[0][0] == 97
    assert reaches[0][1] > 10**6
    assert reaches[1:] == [(18, 32, 32), (33, 48, 48), (49, 64, 64), (65, 80, 80), (81, 96, 96)]


def test_the_library_needs_no_kernels() -> None:
    """A row that it won is packed without a call."""
    (row,) = rows_of([replace(ROW, choice="vendor")], None, False).packed
    assert (row.winner.choice, row.wanted) == ("vendor", ())


def test_a_winner_whose_kernels_cannot_be_had() -> None:
    """The library's measured call is in its place, by its own time; nothing is where none was measured."""
    (row,) = rows_of([replace(ROW, vendor="torch")], None, False).packed
    left = without_kernels(row.winner)
    assert left is not None
    assert (left.problem, left.choice, left.vendor, left.duration_us, left.calls) == (
        PROBLEM,
        "vendor",
        "torch",
        12.0,
        (),
    )
    (alone,) = rows_of([replace(ROW, vendor_us=None)], None, False).packed
    assert without_kernels(alone.winner) is None


def test_a_config_that_beats_pytorchs_call_serves_other_m() -> None:
    """Where the library's best wins by an algorithm of this M, which is not called for another."""
    for choice, torch_us, served in (("vendor", 11.0, 1), ("vendor", 9.0, 0), ("tie", 11.0, 1), ("tie", 9.0, 0)):
        (row,) = rows_of([replace(ROW, choice=choice, vendor_us=8.0, torch_us=torch_us)], None, False).packed
        assert (row.winner.choice, row.winner.torch_us, len(row.wanted)) == (choice, torch_us, served)


def test_calls_are_none_of_aiters() -> None:
    """In its place stands PyTorch's call, or the config where that is the faster one; it is left out by name."""
    for torch_us, choice in ((11.0, "config"), (9.0, "vendor")):
        won = replace(ROW, choice="vendor", vendor="aiter ck", vendor_us=8.0, torch_us=torch_us)
        found = rows_of([won], None, False)
        (row,) = found.packed
        assert (row.winner.choice, row.winner.vendor, row.winner.vendor_us) == (choice, "torch", torch_us)
        assert bool(row.wanted) is (choice == "config")
        assert [*found.left_out] == ["calls of AITER's kernels (genkern's or PyTorch's serve instead)"]


def test_what_is_left_out_is_counted() -> None:
    """Other libraries' rows, predictions unless asked for, what is not legal, and the slower of two."""
    rows = [
        ROW,
        replace(ROW, duration_us=9.0),
        replace(ROW, duration_us=11.0),
        replace(ROW, problem=replace(PROBLEM, M=7), config=None, library="asm"),
        replace(ROW, problem=replace(PROBLEM, M=8), time_source="predicted"),
        replace(ROW, problem=replace(PROBLEM, M=9), config=GEMV),
    ]
    found = rows_of(rows, None, False)
    assert [row.winner.duration_us for row in found.packed] == [9.0]
    assert found.left_out.pop("duplicates (the better proved or faster one is packed)") == 2
    assert found.left_out.pop("of other libraries") == 1
    assert any(reason.startswith("predicted") for reason in found.left_out)
    assert any(reason.startswith("not legal") for reason in found.left_out)
    assert len(rows_of(rows, None, True).packed) == 2


def test_a_proved_row_stays() -> None:
    """Whatever the times: of two for one problem a proof, a measurement, and an idle GPU count first."""
    for worse in (
        replace(ROW, check=None, duration_us=1.0),
        replace(ROW, check=Proof("interpreter"), duration_us=1.0),
        replace(ROW, time_source="predicted", duration_us=1.0),
        replace(ROW, time_source="cudagraph_shared", duration_us=1.0),
    ):
        for order in ([ROW, worse], [worse, ROW]):
            found = rows_of(order, None, True)
            assert [row.winner.duration_us for row in found.packed] == [10.0]


def test_a_predicted_row_stands_in_nobodys_way() -> None:
    """It is packed for its own M alone; measured ones are called beyond it, and replace it where they are of its M."""
    of_model = {"check": None, "time_source": "predicted", "device": "NVIDIA H200 (not present)"}
    predicted = replace(ROW, problem=replace(PROBLEM, M=48), **of_model)
    rows = [replace(ROW, problem=replace(PROBLEM, M=16)), ROW, predicted]
    found = {row.winner.problem.M: row for row in rows_of(rows, None, True).packed}
    reaches = {m: [(w.reach.least_m, w.reach.most_m) for w in row.wanted] for m, row in found.items()}
    assert reaches[48] == [(48, 48)]
    assert reaches[16] == [(1, 99)]
    assert found[48].winner.is_predicted
    both = rows_of([predicted, replace(ROW, problem=predicted.problem, check=None)], None, True).packed
    assert [row.winner.time_source for row in both] == ["cudagraph"]


def test_an_architecture_must_be_known() -> None:
    """tune_gemm's files do not say it."""
    row = replace(ROW, arch="", device="")
    with pytest.raises(InputError, match="--arch"):
        rows_of([row], None, False)
    (packed,) = rows_of([row], "gfx942", False).packed
    assert (packed.winner.arch, packed.winner.compute_units) == ("gfx942", 304)


def test_a_predicted_row_of_another_gpu_is_left_out() -> None:
    """The model predicts another time for the GPU that the row names."""
    (time,) = predicted_times(PROBLEM, [TILED], gpu_of_product("h200"))
    row = replace(
        ROW, duration_us=time.us, time_source="predicted", predicted_interval_us=time.interval_us, vendor_us=None
    )
    assert len(rows_of([row], None, True).packed) == 1
    found = rows_of([replace(row, device="NVIDIA H100 (not present)")], None, True)
    assert found.packed == ()
    assert any("NVIDIA H100" in why for why in found.left_out)


def test_a_measurement_that_beats_the_memory_of_its_gpu_is_in_doubt() -> None:
    """Of an H200's, whose memory is 1.4 times as fast as an H100's."""
    row = replace(ROW, problem=GemmProblem(1, 28672, 8192), duration_us=107.0)
    assert not rows_of([row], None, False).in_doubt
    found = rows_of([replace(row, device="NVIDIA H100 80GB HBM3")], None, False)
    assert len(found.packed) == 1
    assert any("NVIDIA H100" in why for why in found.in_doubt)
