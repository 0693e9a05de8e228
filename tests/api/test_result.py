"""genkern.load and TuningResult: what a file holds, as records, table, text and files again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from small_gemms import TILED
from winner_factory import checked, winner, write_results

import genkern
from genkern.errors import InputError, OutputError, ResultsError
from genkern.files.file_kind import read_results
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import PREDICTED

matplotlib.use("Agg")


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Results of two sizes, of which the library is faster for one."""
    more = {"check": checked(), "vendor": "torch", "interval_us": (9.9, 10.1)}
    path = tmp_path / "r.yaml"
    write_results(path, [winner(16, 10.0, vendor_us=12.0, **more), winner(64, 20.0, vendor_us=19.0, **more)])
    return path


@pytest.fixture
def predicted(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    write_results(path, [winner(16, 10.0, time_source=PREDICTED, predicted_interval_us=(9.0, 12.0))])
    return path


def test_a_results_file(measured: Path) -> None:
    result = genkern.load(measured)
    assert [w.record for w in result.winners] == read_results(str(measured))
    first, second = result
    assert (first.time_us, first.library_us, first.speedup, first.predicted) == (10.0, 12.0, 1.2, False)
    assert first.interval_us == (9.9, 10.1)
    assert first.tflops == first.problem.tflops(10.0)
    assert first.config is not None
    assert first.name == first.config.name
    assert second.speedup == 0.95
    assert (len(result), result.predicted, result.devices) == (2, False, ("AMD Instinct MI300X",))
    assert result.winner(64, 4096, 4096) is second
    with pytest.raises(InputError, match="3x4x5"):
        result.winner(3, 4, 5)


def test_predicted_times_are_never_shown_as_measured(predicted: Path) -> None:
    result = genkern.load(predicted)
    assert result.predicted
    assert result.winners[0].interval_us == (9.0, 12.0)
    assert result.winners[0].speedup is None
    for shown in (repr(result), result._repr_html_(), result.plot().get_title()):
        assert "predicted" in shown


def test_the_table_has_a_row_per_winner(measured: Path) -> None:
    table = genkern.load(measured).to_pandas()
    assert isinstance(table, pd.DataFrame)
    assert table.M.tolist() == [16, 64]
    assert table.time_us.tolist() == [10.0, 20.0]
    assert table.speedup.tolist() == [1.2, 0.95]
    assert table.predicted.tolist() == [False, False]
    assert table.check.tolist() == ["gpu", "gpu"]
    assert genkern.load(measured).to_pandas().equals(table)


def test_the_text_names_each_winner(measured: Path, tmp_path: Path) -> None:
    """Of many, the first and their number; the text of a notebook escapes what files hold."""
    said = repr(genkern.load(measured))
    assert "16x4096x4096: 10.00 us (9.90 to 10.10), 1.200x the library" in said
    many = tmp_path / "many.yaml"
    write_results(many, [winner(m) for m in range(1, 101)])
    assert "80 more" in repr(genkern.load(many))
    assert len(repr(genkern.load(many)).splitlines()) == 22
    strange = tmp_path / "s.yaml"
    write_results(strange, [winner(device="<b>GPU</b>")])
    assert "<b>" not in genkern.load(strange)._repr_html_()


def test_a_plot_has_a_point_per_winner(measured: Path, predicted: Path) -> None:
    ax = genkern.load(measured).plot()
    assert ax.get_ylabel() == "speed over the library"
    assert list(ax.lines[-1].get_ydata()) == [1.2, 0.95]
    given = genkern.load(predicted).plot(ax.figure.add_subplot())
    assert given.get_ylabel() == "microseconds"
    assert list(given.lines[-1].get_ydata()) == [10.0]
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("suffix", [".yaml", ".csv"])
def test_saved_results_are_the_same(suffix: str, tmp_path: Path) -> None:
    """Also when the file that they came from has changed since."""
    path, copy = tmp_path / f"r{suffix}", tmp_path / f"copy{suffix}"
    write_results(path, [winner(16, check=checked()), winner(64, 20.0, check=checked())])
    before, result = path.read_text(), genkern.load(path)
    path.write_text("")
    assert result.save(copy) == copy
    assert copy.read_text() == before
    other = tmp_path / ("x.csv" if suffix == ".yaml" else "x.yaml")
    with pytest.raises(InputError, match=suffix):
        result.save(other)
    assert not other.exists()


def test_rows_of_other_programs(tmp_path: Path) -> None:
    """tune_gemm's lists have no device and no source of their times, which were measured."""
    path = tmp_path / "t.yaml"
    size = "'M': 16, 'N': 128, 'K': 256, 'rowMajorA': 'T', 'rowMajorB': 'N'"
    keys = "'BLOCK_SIZE_M': 64, 'BLOCK_SIZE_N': 64, 'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 1, 'SPLIT_K': 1"
    path.write_text(f"- {{{size}, {keys}, 'num_warps': 4, 'num_stages': 2}}")
    result = genkern.load(path)
    assert (result.predicted, result.devices, result.winners[0].time_us) == (False, ("unknown device",), None)
    assert "no time" in repr(result)
    with pytest.raises(InputError, match="nothing to draw"):
        result.plot()


@pytest.mark.parametrize("text", ["M,N\n1,2\n", "- 1\n", "\x00", "PK\x03\x04 no bundle"])
def test_a_damaged_file_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    for path in (tmp_path / "x.yaml", tmp_path / "missing.yaml"):
        with pytest.raises(ResultsError) as caught:
            genkern.load(path)
        assert "\n" not in str(caught.value)
        assert path.name in str(caught.value)


def test_winners_are_packed_and_loaded_again(tmp_path: Path, cache_dir: Path) -> None:
    """Predicted ones only if asked; a bundle replaces no other file; its results can be packed again."""
    problem = GemmProblem(16, 64, 128)
    path, bundle = tmp_path / "r.yaml", tmp_path / "w.genkern"
    made = winner(config=TILED, arch="sm_90", device="NVIDIA H200", time_source=PREDICTED)
    write_results(path, [replace(made, problem=problem)], 132)
    result = genkern.load(path)
    with pytest.raises(ResultsError, match="predicted=True"):
        result.pack(bundle, cache_dir=cache_dir)
    assert result.pack(bundle, predicted=True, cache_dir=cache_dir) == bundle
    with pytest.raises(OutputError, match=r"w\.genkern"):
        result.pack(bundle, predicted=True, cache_dir=cache_dir)
    with pytest.raises(OutputError, match="no bundle"):
        result.pack(path, overwrite=True, predicted=True, cache_dir=cache_dir)
    packed = genkern.load(bundle)
    assert [(w.problem, w.config, w.time_us, w.predicted) for w in packed] == [(problem, TILED, 10.0, True)]
    packed.pack(tmp_path / "again.genkern")
    assert (tmp_path / "again.genkern").read_bytes() == bundle.read_bytes()
    with pytest.raises(InputError, match="pack"):
        packed.save(tmp_path / "again.yaml")
