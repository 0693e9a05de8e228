"""Tests of what genkern/formats/tuned_row.py adds to tune_gemm's keys: interval and choice, in a results file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from made_winners import results_text

from genkern.errors import ResultsError
from genkern.formats.kind import read_results
from genkern.formats.tuned_row import TunedRow
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Winner
from genkern.space.space import BOUNDS
from genkern.timing.libraries import KeptAlgorithm

ALGORITHM = KeptAlgorithm(131000, bytes(range(64))).name
PLAIN = Winner(
    *(
        GemmProblem(64, 1280, 8192),
        Config("tiled", 64, 64, 32),
        12.5,
        0.125,
        40,
        "cudagraph",
        "sm_90",
        "NVIDIA H200",
        (),
    ),
)
FULL = replace(
    PLAIN,
    vendor_us=12.52,
    runner_up="tiled_BM2",
    runner_up_us=12.75,
    interval_us=(12.43219, 12.6),
    vendor_interval_us=(12.4, 12.7),
    discarded=2,
    choice="vendor",
    vendor=ALGORITHM,
    torch_us=12.9,
    code="0123456789abcdef",
)


def read(tmp_path: Path, text: str) -> list[TunedRow]:
    path = tmp_path / "results.yaml"
    path.write_text(text)
    return read_results(str(path))


def test_a_line_says_how_sure_it_is() -> None:
    """Interval, discarded samples, margin and choice, for any YAML reader."""
    entry = yaml.safe_load(results_text([FULL]))[0]
    assert (entry["interval_low_us"], entry["interval_high_us"]) == (12.4322, 12.6)
    assert (entry["vendor_interval_low_us"], entry["vendor_interval_high_us"]) == (12.4, 12.7)
    assert (entry["samples"], entry["discarded"], entry["choice"]) == (40, 2, "vendor")
    assert entry["margin"] == pytest.approx(12.75 / 12.5)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """With intervals, and without any, as predicted times have none."""
    full, plain = read(tmp_path, results_text([FULL, PLAIN]))
    assert (full.choice, full.interval_us, full.vendor_interval_us) == ("vendor", (12.4322, 12.6), (12.4, 12.7))
    assert (plain.choice, plain.interval_us, plain.vendor_interval_us) == ("config", None, None)


def test_the_librarys_call_is_named(tmp_path: Path) -> None:
    """With its opaque algorithm, to the bit, and PyTorch's own time beside it; rows from before say nothing of it."""
    full, plain = read(tmp_path, results_text([FULL, PLAIN]))
    assert (full.vendor, full.vendor_us, full.torch_us) == (ALGORITHM, 12.52, 12.9)
    assert (plain.vendor, plain.torch_us) == ("", None)
    assert (full.code, plain.code) == (FULL.code, "")
    assert not {"vendor", "torch_us"} & yaml.safe_load(results_text([PLAIN]))[0].keys()


def test_a_file_without_a_choice_means_its_configs(tmp_path: Path) -> None:
    """Results of tune_gemm, and of older versions, have no such key."""
    text = results_text([FULL]).replace("'choice': 'vendor', ", "")
    assert read(tmp_path, text)[0].choice == "config"


@pytest.mark.parametrize("field", sorted(BOUNDS))
def test_what_a_space_may_list_can_be_read_back(field: str, tmp_path: Path) -> None:
    """The least and the greatest value of every field, which a winner may have (gemv's and tiled's blocks)."""
    family = "gemv" if field == "BLOCK_SIZE_K" else "tiled"
    for value in BOUNDS[field]:
        given = {field: max(value, 16) if field.startswith("BLOCK") else value}
        config = replace(
            Config(family, 64, 64, 32, 1, 1, 4, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=1), **given
        )
        assert read(tmp_path, results_text([replace(FULL, config=config)]))[0].config == config


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("'choice': 'vendor'", "'choice': 'cublas'", "choice = 'cublas' is not usable; write config or vendor"),
        ("'choice': 'vendor'", "'choice': 1", "choice = 1"),
        ("'interval_low_us': 12.4322", "'interval_low_us': 13.0", "are not an interval"),
        ("'interval_low_us': 12.4322, ", "", "are not an interval"),
        ("'interval_low_us': 12.4322", "'interval_low_us': -1.0", "interval_low_us"),
        ("'vendor_interval_high_us': 12.7", "'vendor_interval_high_us': 'x'", "vendor_interval_high_us"),
        ("'discarded': 2", "'discarded': -2", "discarded"),
        ("'vendor': 'cublaslt", "'vendor': 'hipblaslt", "is no call of a library"),
        ("'vendor': 'cublaslt 131000 00", "'vendor': 'cublaslt 131000 ", "is no call of a library"),
        ("'torch_us': 12.9", "'torch_us': 0", "torch_us"),
        ("'code': '0123456789abcdef'", "'code': 12", "code"),
        ("'margin': 1.02", "'margin': .nan", "margin"),
    ],
)
def test_values_without_sense_are_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    """One line with the file, the line and the key."""
    text = results_text([FULL])
    assert old in text
    with pytest.raises(ResultsError, match=f"results.yaml, line 2: .*{re.escape(said)}") as caught:
        read(tmp_path, text.replace(old, new))
    assert "\n" not in str(caught.value)
