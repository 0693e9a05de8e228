"""Tests of genkern.packing.models.tuned_sizes: what need not be tuned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from computing_gpu import planned, planned_row
from proving import written
from small_gemms import TILED

from genkern.gemm.problem import GemmProblem
from genkern.packing.models.tuned_sizes import TunedSizes
from genkern.result.device import DeviceKey
from genkern.runtime.bundles.bundle import Bundle

H200 = DeviceKey("sm_90", "NVIDIA H200", 132)
WANTED = [GemmProblem(m, 256, 512) for m in (1, 16, 64)]
ROW = (
    "- {'M': %d, 'N': 256, 'K': 512, 'rowMajorA': 'T', 'rowMajorB': 'N', 'BLOCK_SIZE_M': 16, 'BLOCK_SIZE_N': 32, "
    "'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 1, 'SPLIT_K': 1, 'num_warps': 4, 'num_stages': 2, 'time_us': 10.0, "
    "'vendor_us': 12.0, 'time_source': '%s', 'arch': 'sm_90', 'device': '%s', 'compute_units': 132, 'check': 'gpu'}\n"
)


def results(folder: Path, m: int, source: str = "cudagraph", device: str = "NVIDIA H200") -> str:
    path = folder / f"{m}_{source}_{device}.yaml"
    path.write_text(ROW % (m, source, device))
    return str(path)


def as_file(bundle: Bundle, folder: Path) -> str:
    return str(written(bundle, folder / "winners.genkern"))


def of_orders(folder: Path, **orders: str) -> str:
    """Rows by their M, of these orders of sums; "" is an ordinary one."""
    path = folder / f"{'_'.join(orders.values())}.yaml"
    text = ""
    for m, sums in orders.items():
        more = f", 'sums': '{sums}', 'batch_invariant': true}}" if sums else "}"
        text += (ROW % (int(m[1:]), "cudagraph", "NVIDIA H200")).replace("}", more)
    path.write_text(text)
    return str(path)


def test_rows_of_this_device_are_done(tmp_path: Path) -> None:
    """Not those of another device, nor what nobody measured, nor what the model has not."""
    done = TunedSizes(WANTED, H200)
    assert done.add(results(tmp_path, 1)) == 1
    assert done.add(results(tmp_path, 16, device="NVIDIA H100 80GB HBM3")) == 0
    assert done.add(results(tmp_path, 16, source="predicted")) == 0
    assert done.add(results(tmp_path, 333)) == 0
    assert done.missing() == WANTED[1:]
    assert [row.problem.M for row in done.rows] == [1]


def test_predicted_rows_are_done_where_they_are_wanted(tmp_path: Path) -> None:
    """On a machine without a GPU, for the device that is predicted for."""
    done = TunedSizes(WANTED, replace(H200, device="NVIDIA H200 (not present)"), predicted=True)
    assert done.add(results(tmp_path, 16, source="predicted")) == 1
    assert done.identity.name == "NVIDIA H200"


def test_winners_of_bundles_are_taken_once(tmp_path: Path) -> None:
    """With their kernels alone, and not where a results file has the row already."""
    bundle, _ = planned([planned_row(problem, replace(TILED, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64)) for problem in WANTED])
    done = TunedSizes(WANTED, H200)
    done.add(results(tmp_path, 1))
    assert done.add(as_file(bundle, tmp_path)) == 2
    (taken,) = done.taken
    assert [winner.problem.M for winner in taken.winners] == [16, 64]
    used = {sha256 for winner in taken.winners for call in winner.calls for sha256 in call.binaries}
    assert set(taken.contents.binaries) == used
    assert done.add(as_file(bundle, tmp_path)) == 0
    assert done.missing() == []


def test_rows_of_one_order_are_done_together(tmp_path: Path) -> None:
    """Ordinary rows are none, nor a part of the M, nor two orders; of two files that have one the first counts."""
    done = TunedSizes(WANTED, H200, batch_invariant=True)
    assert done.add(of_orders(tmp_path, M1="", M16="", M64="")) == 0
    assert done.add(of_orders(tmp_path, M1="mma k16", M16="mma k16")) == 0
    assert done.add(of_orders(tmp_path, M1="mma k16", M16="mma k16", M64="wgmma k16")) == 0
    assert (done.rows, done.missing()) == ([], WANTED)
    assert done.add(of_orders(tmp_path, M1="wgmma k16", M16="wgmma k16", M64="wgmma k16")) == 3
    assert done.add(of_orders(tmp_path, M1="mma k16", M16="mma k16", M64="mma k16")) == 0
    assert {row.sums for row in done.rows} == {"wgmma k16"}
    assert done.missing() == []


def test_a_bundles_winners_of_one_order_are_taken(tmp_path: Path) -> None:
    """Where it has them for every M, and ordinary ones not."""
    config = replace(TILED, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64)
    plain, _ = planned([planned_row(problem, config) for problem in WANTED])

    def ordered(*ms: int) -> Bundle:
        own = []
        for winner in plain.winners:
            sums = "mma k16" if winner.problem.M in ms else ""
            calls = tuple(replace(call, sums=sums) for call in winner.calls)
            own.append(replace(winner, sums=sums, batch_invariant=bool(sums)).with_calls(calls))
        return replace(plain, contents=replace(plain.contents, winners=tuple(own)))

    done = TunedSizes(WANTED, H200, batch_invariant=True)
    assert done.add(as_file(plain, tmp_path)) == done.add(as_file(ordered(1, 16), tmp_path)) == 0
    assert done.add(as_file(ordered(1, 16, 64), tmp_path)) == 3
    assert done.missing() == []
