"""Tests of the keys that genkern adds to tune_gemm's in a results file: intervals, choice and others."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from forms import FORMS, made
from winner_factory import results_text

from genkern.errors import ResultsError
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.parameter import AMD_OPTIONS, CORE, PARAMETERS
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result
from genkern.timing.libraries import StoredAlgorithm

ALGORITHM = StoredAlgorithm(131000, bytes(range(64))).name
PLAIN = Result(
    GemmProblem(64, 1280, 8192),
    Config("tiled", 64, 64, 32),
    duration_us=12.5,
    spread_us=0.125,
    samples=40,
    discarded=0,
    time_source="cudagraph",
    arch="sm_90",
    device="NVIDIA H200",
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
    searched_share=0.03125,
    vendor_sums="wgmma k16",
    batch_invariant=True,
    invariant_loss=0.0125,
    expected_loss=0.00001,
    source="fedcba9876543210",
)


def read(tmp_path: Path, text: str) -> list[Result]:
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
    assert read(tmp_path, results_text([replace(FULL, choice="tie")]))[0].choice == "tie"


def test_the_librarys_call_is_named(tmp_path: Path) -> None:
    """With its opaque algorithm, to the bit, and PyTorch's own time beside it; rows from before say nothing of it."""
    full, plain = read(tmp_path, results_text([FULL, PLAIN]))
    assert (full.vendor, full.vendor_us, full.torch_us) == (ALGORITHM, 12.52, 12.9)
    assert (plain.vendor, plain.torch_us) == ("", None)
    assert (full.code, plain.code) == (FULL.code, "")
    assert (full.source, plain.source) == (FULL.source, "")
    assert not {"vendor", "torch_us"} & yaml.safe_load(results_text([PLAIN]))[0].keys()


def test_how_much_was_searched(tmp_path: Path) -> None:
    """Where a run says it; files from before do not."""
    full, plain = read(tmp_path, results_text([FULL, PLAIN]))
    assert (full.searched_share, full.expected_loss) == (0.03125, 0.00001)
    assert (plain.searched_share, plain.expected_loss) == (None, None)
    assert (full.vendor_sums, full.batch_invariant, full.invariant_loss) == ("wgmma k16", True, 0.0125)
    assert (plain.vendor_sums, plain.batch_invariant, plain.invariant_loss) == ("", False, None)


def test_a_file_without_a_choice_means_its_configs(tmp_path: Path) -> None:
    """Results of tune_gemm, and of older versions, have no such key."""
    text = results_text([FULL]).replace("'choice': 'vendor', ", "")
    assert read(tmp_path, text)[0].choice == "config"


@pytest.mark.parametrize(
    ("field", "bounds"),
    [(each.name, (each.values[0], each.values[-1])) for each in (*CORE, *AMD_OPTIONS) if each.values],
)
def test_what_a_space_may_list_can_be_read_back(field: str, bounds: tuple[int, int], tmp_path: Path) -> None:
    """The least and the greatest value of every field, which a winner may have (gemv's and tiled's blocks)."""
    family = "gemv" if field == "BLOCK_SIZE_K" else "tiled"
    for value in bounds:
        given = {field: max(value, 16) if field.startswith("BLOCK") else value}
        config = replace(
            Config(family, 64, 64, 32, 1, 1, 4, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=1), **given
        )
        assert read(tmp_path, results_text([replace(FULL, config=config)]))[0].config == config


def test_a_parameter_is_a_key_where_it_is_off_its_neutral_value() -> None:
    """Its value as it is, a word or a number; what is neutral has no key, and AMD's options one on AMD alone."""
    config = Config("cute_wgmma", 152, 256, 64, num_warps=8, schedule="ping_pong", cluster="1x2", swapped=1)
    entry = yaml.safe_load(results_text([replace(PLAIN, config=config)]))[0]
    assert (entry["family"], entry["config"]) == ("cute_wgmma", config.name)
    said = {name: entry[name] for name in PARAMETERS.by_name if name in entry}
    assert said == {**config.values, "schedule": "ping_pong", "cluster": "1x2", "swapped": 1}
    plain = yaml.safe_load(results_text([PLAIN]))[0]
    assert [name for name in PARAMETERS.by_name if name in plain] == [parameter.name for parameter in CORE]


@pytest.mark.parametrize("stem", list(FORMS))
def test_kernels_of_all_forms_are_read_back(stem: str, tmp_path: Path) -> None:
    """By the keys of a YAML file, and by the name in a CSV."""
    winner = replace(PLAIN, config=made(stem, max(16, FORMS[stem].sides.least_m), 64, 64))
    for name in ("results.yaml", "results.csv"):
        path = tmp_path / name
        path.write_text(results_text([winner], name))
        assert [row.config for row in read_results(str(path))] == [winner.config]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("'swapped': 2", "swapped = 2 is not usable; write one of 0, 1"),
        ("'swapped': true", "swapped = true is not usable"),
        ("'cluster': '3x1'", "cluster = '3x1' is not usable; write one of 1x1, 2x1"),
        ("'reduce': 'semaphor'", "reduce = 'semaphor' is not usable; write one of usual, kernel, semaphore"),
        ("'cluster': '2x1'", "tiled has no parameter cluster"),
        ("'reduce': 'kernel'", "reduce kernel is not "),
        ("'swaped': 1", "did you mean swapped"),
        (
            "'swapped': 1, 'reduce': 'semaphore'",
            "its values make tiled_BM64_BN64_BK32_GM1_SK1_nW4_nS2_semaphore_swapped",
        ),
    ],
)
def test_a_parameter_that_there_is_not_is_one_line(keys: str, said: str, tmp_path: Path) -> None:
    """Its value, its name, or that its family does not take it."""
    text = results_text([PLAIN]).replace("'family': 'tiled'", f"'family': 'tiled', {keys}")
    with pytest.raises(ResultsError, match=f"results.yaml, line 2: .*{re.escape(said)}") as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("'choice': 'vendor'", "'choice': 'cublas'", "choice = 'cublas' is not config, vendor or tie"),
        ("'choice': 'vendor'", "'choice': 1", "choice = 1"),
        ("'interval_low_us': 12.4322", "'interval_low_us': 13.0", "are not an interval"),
        ("'interval_low_us': 12.4322, ", "", "are not an interval"),
        ("'interval_low_us': 12.4322", "'interval_low_us': -1.0", "interval_low_us"),
        ("'vendor_interval_high_us': 12.7", "'vendor_interval_high_us': 'x'", "vendor_interval_high_us"),
        ("'discarded': 2", "'discarded': -2", "discarded"),
        ("'vendor': 'cublaslt", "'vendor': 'hipblaslt", "is not a call of a library"),
        ("'vendor': 'cublaslt 131000 00", "'vendor': 'cublaslt 131000 ", "is not a call of a library"),
        ("'torch_us': 12.9", "'torch_us': 0", "torch_us"),
        ("'code': '0123456789abcdef'", "'code': 12", "code"),
        ("'source': 'fedcba9876543210'", "'source': 'FEDCBA9876543210'", "source"),
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
