"""Tests of benchmarks/between.py and between_candidates.py: what is raced, and a run without a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import between
import between_candidates
import pytest
from between import TORCH, in_turns, report
from between_candidates import fitted, lengths, promising, rows_of_a_tile, spare
from recording_gpu import FakeGpu
from small_bundle import pack_here, row
from small_gemms import TILED, WARP_SPECIALIZED, WARP_SPECIALIZED_SWAPPED
from stand_ins import cpu_place

from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.legality import legal
from genkern.runtime.bundle import read_bundle, write_bundle
from genkern.runtime.packed import Contents

H200 = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(129, 4096, 512)


def test_both_ends_of_a_stretch() -> None:
    """Between tuned M only, which are no ends themselves."""
    assert lengths([16, 64, 256], 17, 1024) == [17, 32, 33, 65, 96, 97, 128, 129, 192, 193]
    assert lengths([16, 64, 256], 40, 100) == [65, 96, 97]


def test_candidates_are_legal_and_fit() -> None:
    """Those that were given and others cut to M, with as many stages as there is room for."""
    tuned = [TILED, WARP_SPECIALIZED, WARP_SPECIALIZED_SWAPPED]
    found = fitted(PROBLEM, tuned, H200)
    assert set(tuned) <= set(found)
    assert len(found) == len(set(found)) > 10
    assert not any(legal(PROBLEM, config, H200) for config in found)
    assert any(config.BLOCK_SIZE_M == 80 for config in found), "two tiles that cover 129 rows"
    first = promising(PROBLEM, found, H200, 4)
    assert len(first) == 4
    assert not any(spare(PROBLEM, config) for config in first)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]\n", "results.yaml: hold no a16w16"),
        ("- {'M': 16, 'N': 128, 'K': 256}\n", "results.yaml"),
        ("nothing\n", "results.yaml"),
        (None, "results.yaml"),
    ],
)
def test_bad_results_are_one_line(
    text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files without what it starts from, that cannot be read, or that are not there: status 2 and no traceback."""
    if text is not None:
        (tmp_path / "results.yaml").write_text(text)
    argv = ["between_candidates.py", str(tmp_path / "results.yaml"), "-o", str(tmp_path / "c.genkern")]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as ended:
        between_candidates.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, said in line) == (2, True), line


def test_rows_to_spare() -> None:
    """Most of the last of two tiles of 104 rows; not with loads of another kind, or where nearly all have rows."""
    assert spare(PROBLEM, WARP_SPECIALIZED_SWAPPED)
    assert not spare(replace(PROBLEM, M=200), WARP_SPECIALIZED_SWAPPED)
    assert not spare(PROBLEM, TILED)
    assert [rows_of_a_tile(129, tiles) for tiles in (1, 2, 3)] == [144, 80, 48]


def test_medians_in_turns() -> None:
    """Each sampler is asked as often, and its first answer is not counted."""
    times = {"a": iter([99.0, 1.0, 2.0, 3.0]), "b": iter([99.0, 7.0, 5.0, 6.0])}
    assert in_turns({name: values.__next__ for name, values in times.items()}, 3) == {"a": 2.0, "b": 6.0}


def test_what_is_reported() -> None:
    """By stretches, the best candidate over torch.mm, and the better of both."""
    entries = [{"m": m, "times_us": {TORCH: 10.0, "x": us, "y": 30.0}} for m, us in ((65, 8.0), (96, 12.5), (97, 10.0))]
    lines = report([*entries, {"m": 97, "times_us": {TORCH: 10.0}}]).splitlines()
    assert lines[0].startswith("M to 96: 2 sizes, best candidate 1.000 of torch.mm, the better of both 1.118, 1 faster")
    assert lines[1].startswith("M to 128: 1 sizes, best candidate 1.000")
    assert lines[-1] == "4 sizes"


def test_a_run_goes_on_from_what_it_has(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every candidate that serves an M is timed there, and none that cannot be launched."""
    monkeypatch.setattr("dispatching.ROTATING_MIB", 0)
    problem = GemmProblem(100, 256, 512)
    packed = read_bundle(pack_here(tmp_path, [row(problem, TILED)], cache_dir))
    (winner,) = packed.winners
    tuned = [replace(winner, problem=replace(problem, M=m), calls=()) for m in (60, 200)]
    path, output = str(tmp_path / "candidates.genkern"), tmp_path / "found.jsonl"
    images = {sha256: packed.image(sha256) for sha256 in packed.contents.binaries}
    write_bundle(
        path, Contents((replace(winner, problem=replace(problem, M=1)), *tuned), packed.contents.binaries), images
    )
    place = cpu_place()
    monkeypatch.setattr(between, "gpu_place", lambda: place)
    monkeypatch.setattr(sys, "argv", ["between.py", path, "-o", str(output), "--rounds", "1"])
    between.main()
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "8 sizes"
    assert isinstance(place.gpu, FakeGpu)
    assert {launched.symbol for launched in place.gpu.driver.launched} == {winner.calls[0].plan.launches[0].symbol}
    monkeypatch.setattr(between, "raced", lambda *_: pytest.fail("timed again"))
    between.main()
    assert capsys.readouterr().out == said
    assert len(output.read_text().splitlines()) == 8
