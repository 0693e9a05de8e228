"""Results that the release before wrote, whose families had cluster, schedule, side and reduction in their names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from made_winners import results_text, winner

from genkern.errors import ResultsError
from genkern.formats.gemm_entry import GemmDefaults
from genkern.formats.kind import read_results
from genkern.formats.results import ResultsFile, RunFacts
from genkern.formats.sizes import read_sizes
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.result.device import DeviceKey

HEAD = "# genkern results, schema 1: a list that readers of tune_gemm's results can load\n"
# As they stood in shipped files, but for some keys.
SWAPPED, PAIR, COPIED = (
    "- {'M': 16, 'N': 4096, 'K': 13110, 'rowMajorA': 'T', 'rowMajorB': 'T', 'BLOCK_SIZE_M': 16, 'BLOCK_SIZE_N': 64, "
    "'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 1, 'SPLIT_K': 4, 'num_warps': 4, 'num_stages': 4, 'op': 'a16w16', "
    "'family': 'tiled_swapped', 'config': 'tiled_swapped_BM16_BN64_BK64_GM1_SK4_nW4_nS4', 'dtype_a': 'bf16', "
    "'dtype_b': 'bf16', 'dtype_c': 'bf16', 'bias': false, 'time_us': 29.164, 'spread_us': 0.208, 'samples': 60, "
    "'time_source': 'cudagraph', 'check': 'gpu', 'arch': 'sm_90', 'device': 'NVIDIA H200', 'compute_units': 132, "
    "'runner_up': 'tiled_BM16_BN64_BK64_GM1_SK4_nW2_nS5', 'runner_up_us': 29.272, 'margin': 1.0037, "
    "'choice': 'config', 'versions': {'triton': '3.6.0'}} # TFLOPS: 58.92 time(us): 29.16\n",
    "- {'M': 2048, 'N': 7168, 'K': 2048, 'rowMajorA': 'T', 'rowMajorB': 'N', 'BLOCK_SIZE_M': 128, "
    "'BLOCK_SIZE_N': 176, 'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 16, 'SPLIT_K': 1, 'num_warps': 8, 'num_stages': 5, "
    "'op': 'a16w16', 'family': 'cute_ping_pong_2x1', "
    "'config': 'cute_ping_pong_2x1_BM128_BN176_BK64_GM16_SK1_nW8_nS5', 'dtype_a': 'bf16', 'dtype_b': 'bf16', "
    "'dtype_c': 'bf16', 'bias': false, 'time_us': 83.132, 'time_source': 'cudagraph', 'check': 'gpu', "
    "'arch': 'sm_90', 'device': 'NVIDIA H200', 'compute_units': 132, "
    "'runner_up': 'cute_ping_pong_BM128_BN176_BK64_GM16_SK1_nW8_nS5', 'runner_up_us': 83.308, "
    "'versions': {'triton': '3.6.0'}} # TFLOPS: 723.30 time(us): 83.13\n",
    "- {'M': 5504, 'N': 104, 'K': 6581, 'rowMajorA': 'N', 'rowMajorB': 'N', 'BLOCK_SIZE_M': 128, 'BLOCK_SIZE_N': 64, "
    "'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 1, 'SPLIT_K': 3, 'num_warps': 4, 'num_stages': 4, 'op': 'a16w16', "
    "'family': 'realigned_split_tma', 'config': 'realigned_split_tma_BM128_BN64_BK64_GM1_SK3_nW4_nS4', "
    "'dtype_a': 'bf16', 'dtype_b': 'bf16', 'dtype_c': 'bf16', 'bias': false, 'time_us': 28.8029, "
    "'time_source': 'cudagraph', 'arch': 'sm_90', 'device': 'NVIDIA H200', 'compute_units': 132, "
    "'versions': {'triton': '3.6.0'}} # TFLOPS: 261.58 time(us): 28.80\n",
)
CONFIGS = [
    Config("tiled", 16, 64, 64, 1, 4, 4, 4, reduce="semaphore", swapped=1),
    Config("cute_wgmma", 128, 176, 64, 16, 1, 8, 5, schedule="ping_pong", cluster="2x1"),
    Config("tiled_tma", 128, 64, 64, 1, 3, 4, 4, reduce="kernel", realigned=1),
]
PROBLEMS = [
    GemmProblem(16, 4096, 13110, row_major_b=True),
    GemmProblem(2048, 7168, 2048),
    GemmProblem(5504, 104, 6581, row_major_a=False),
]
FACTS = RunFacts(DeviceKey("sm_90", "NVIDIA H200", 132), {"triton": "3.6.0"}, predicted=False)
# The table that AITER reads says it by the name alone.
CSV_NAME = "cute_cooperative_swapped_1x2_direct_BM208_BN128_BK64_GM2_SK1_nW8_nS4"
CSV_CONFIG = Config("cute_wgmma", 208, 128, 64, 2, 1, 8, 4, swapped=1, cluster="1x2", store="direct")
FOUND = winner(64, config=CSV_CONFIG, arch="sm_90", device="NVIDIA H200", versions=(("triton", "3.6.0"),))


@pytest.fixture(params=["yaml", "csv"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of the release before, of either kind."""
    path = tmp_path / f"r.{request.param}"
    text = HEAD + SWAPPED + PAIR + COPIED
    if request.param == "csv":
        text = results_text([FOUND], path.name, 132).replace(CSV_CONFIG.name, CSV_NAME)
        assert CSV_NAME in text
    path.write_text(text)
    return path


def test_rows_are_read_by_the_names_of_today(path: Path) -> None:
    rows = read_results(str(path))
    is_csv = path.suffix == ".csv"
    assert [row.config for row in rows] == ([CSV_CONFIG] if is_csv else CONFIGS)
    assert [row.problem for row in rows] == ([FOUND.problem] if is_csv else PROBLEMS)
    assert [row.duration_us for row in rows] == ([10.0] if is_csv else [29.164, 83.132, 28.8029])
    if not is_csv:
        pair = "cute_wgmma_BM128_BN176_BK64_GM16_SK1_nW8_nS5_ping_pong"
        assert [row.runner_up for row in rows] == ["tiled_BM16_BN64_BK64_GM1_SK4_nW2_nS5", pair, ""]


def test_they_are_a_list_of_sizes(path: Path) -> None:
    """A results file can be tuned again."""
    wanted = [FOUND.problem] if path.suffix == ".csv" else PROBLEMS
    assert list(read_sizes(str(path), GemmDefaults(), "sm_90").problems) == wanted


def test_a_run_goes_on_in_such_a_file(path: Path) -> None:
    """Its sizes are done, its rows stay to the letter, and a row that is added has the names of today."""
    before, known = path.read_text(), read_results(str(path))
    results = ResultsFile(str(path), FACTS, GemmDefaults())
    assert results.problems == {row.problem for row in known}
    assert results.configs == {row.problem: row.config for row in known}
    results.write([replace(FOUND, problem=replace(FOUND.problem, M=80))])
    added = path.read_text().removeprefix(before)
    assert added != path.read_text()
    assert CSV_CONFIG.name in added
    assert [row.config for row in read_results(str(path))] == [*(row.config for row in known), CSV_CONFIG]


def test_a_size_that_is_tuned_again_has_a_row_of_today(path: Path) -> None:
    """In the place of its row of before; the others stay as they are."""
    first = read_results(str(path))[0]
    assert first.config is not None
    again = replace(FOUND, problem=first.problem, config=first.config)
    results = ResultsFile(str(path), FACTS, GemmDefaults(), again=[first.problem])
    results.write([again])
    assert first.config.name in path.read_text()
    assert "tiled_swapped_BM" not in path.read_text()
    assert CSV_NAME not in path.read_text()
    if path.suffix == ".yaml":
        assert PAIR + COPIED in path.read_text()
        entry = next(each for each in yaml.safe_load(path.read_text()) if each["M"] == 16)
        assert (entry["family"], entry["swapped"], entry["reduce"]) == ("tiled", 1, "semaphore")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tiled_swapped_BM16", "tiled_swapped_BM32", "its values make tiled_BM16_BN64_BK64_GM1_SK4_nW4_nS4_semaphore_"),
        ("'tiled_swapped'", "'tiled_semaphore'", "its values make tiled_BM16_BN64_BK64_GM1_SK4_nW4_nS4_semaphore;"),
        ("'tiled_swapped'", "'tiled_sideways'", "family 'tiled_sideways' is unknown; use one of tiled, "),
        ("'tiled_swapped'", "'stream_k'", "family stream_k is not part of genkern any more"),
        ("'tiled_swapped'", "'tiled_atomic'", "family tiled_atomic is not part of genkern any more"),
    ],
)
def test_what_contradicts_itself_or_is_gone_is_one_line(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(HEAD + SWAPPED.replace(old, new))
    with pytest.raises(ResultsError, match=f"r.yaml, line 2: .*{re.escape(said)}") as caught:
        read_results(str(path))
    assert "\n" not in str(caught.value)
