"""Tests of what is said of families whose sums depend on the order of programs, and of runs without (--deterministic).

None of genkern's is so; here is one, as someone else may have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from command import run_here
from forms import FORMS, made
from small_gemms import SEMAPHORE, SPLIT
from winner_factory import report, winner, write_results

from genkern.cli.report import size_line, winners_table
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome
from genkern.kernels import catalogue
from genkern.kernels.catalogue import FAMILIES, is_deterministic
from genkern.kernels.contract.family import Family
from genkern.search.select import ranking
from genkern.space.space import load_space

VARYING = Config("tiled_varying", 64, 32, 32, 4, 3, 4, 2)
BF16 = GemmProblem(64, 64, 64)
INT8 = GemmProblem(64, 64, 64, "a8w8", "int8", "int8")
# One config of a family that is deterministic and two of the one that is not.
SPACE = """
archs: [sm_90]
ops: [a16w16, a8w8]
families:
  - {family: tiled, BLOCK_SIZE_M: [16], BLOCK_SIZE_N: [64], BLOCK_SIZE_K: [64], GROUP_SIZE_M: [1], SPLIT_K: [1],
     num_warps: [4], num_stages: [2]}
  - {family: tiled_varying, BLOCK_SIZE_M: [16], BLOCK_SIZE_N: [64], BLOCK_SIZE_K: [64], GROUP_SIZE_M: [1],
     SPLIT_K: [8, 16], num_warps: [4], num_stages: [3], rules: [split_k_short]}
rules: []
"""


@pytest.fixture
def varying() -> Iterator[None]:
    """Adds up splits as tiled with a semaphore does, but for the order, which it does not promise."""
    traits = replace(FORMS["tiled_semaphore"], stem="tiled_varying", deterministic=False)
    catalogue.add(Family("tiled_varying", traits))
    yield
    del FAMILIES["tiled_varying"]


def test_all_forms_agree_with_themselves() -> None:
    """Two runs of any of genkern's give the same, to the bit."""
    for stem in FORMS:
        config = made(stem, 16, 64, 64)
        assert is_deterministic(BF16, config)
        assert is_deterministic(INT8, config)


@pytest.mark.usefixtures("varying")
def test_only_sums_of_floats_vary() -> None:
    """Integer sums are the same in any order."""
    assert not is_deterministic(BF16, VARYING)
    assert is_deterministic(INT8, VARYING)


def test_a_rule_asked_first() -> None:
    """Every family is asked, those with rules of their own too, and nothing else of the space changes."""
    space = load_space("nvidia_sm90", "sm_90", "a16w16")
    assert {family.rules is None for family in space.families} == {True, False}
    asked = space.asked_first("not_deterministic")
    assert asked.rules == ("not_deterministic", *space.rules)
    for family, before in zip(asked.families, space.families, strict=True):
        assert family.rules == (None if before.rules is None else ("not_deterministic", *before.rules))
        assert replace(family, rules=before.rules) == before


@pytest.mark.usefixtures("varying")
def test_a_run_leaves_them_out(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The size that a nondeterministic config won is tuned again with --deterministic, won by another, then skipped."""
    space, results = tmp_path / "space.yaml", tmp_path / "results.yaml"
    space.write_text(SPACE)
    size = ["-m", 16, "-n", 64, "-k", 16384, "--arch", "sm_90", "--profiler", "predict", "--compile", "--space", space]
    explained = run_here(capsys, *size, "--explain", "--deterministic").out
    assert "not_deterministic          2" in explained
    assert "Family whose result may differ from run to run" in explained

    argv = [*size, "-o", results, "--cache_dir", cache_dir]
    ran = run_here(capsys, *argv)
    (entry,) = yaml.safe_load(results.read_text())
    assert (entry["family"], entry["deterministic"]) == ("tiled_varying", False)
    assert "not deterministic" in ran.out

    ran = run_here(capsys, *argv, "--deterministic")
    (entry,) = yaml.safe_load(results.read_text())
    assert entry["family"] == "tiled"
    assert "deterministic" not in entry
    assert "not deterministic" not in ran.out
    assert "1 of 1 sizes are in" in run_here(capsys, *argv, "--deterministic").out


@pytest.mark.usefixtures("varying")
def test_results_say_it_and_read_it(tmp_path: Path) -> None:
    """`deterministic: false` stands in the entry of such a config only, and files with it can be read."""
    path = tmp_path / "results.yaml"
    write_results(path, [winner(16, config=VARYING), winner(32, config=SPLIT)])
    first, second = yaml.safe_load(path.read_text())
    assert first["deterministic"] is False
    assert "deterministic" not in second
    assert [row.config for row in read_results(str(path))] == [VARYING, SPLIT]


@pytest.mark.usefixtures("varying")
def test_reports_say_it() -> None:
    """The line of the size says it, and the table has a column for it as soon as one winner is not deterministic."""
    varying, steady = winner(16, config=VARYING), winner(32, config=SEMAPHORE)
    assert ", not deterministic: tiled_varying" in size_line(report(varying))
    assert "deterministic" not in size_line(report(steady))
    gpu = gpu_for_arch("gfx942")
    assert not any("deterministic" in line for line in winners_table([steady], gpu, None))
    _, head, one, other = winners_table([varying, steady], gpu, None)
    assert "deterministic" in head
    assert " no " in one
    assert " yes " in other


@pytest.mark.usefixtures("varying")
def test_a_tie_goes_to_the_deterministic() -> None:
    """Of two equal times the config whose runs agree wins, though it has as many splits."""
    finals = [
        Measurement(config.name, Outcome.MEASURED, "cudagraph", "final", 10.0, (10.0, 10.1, 9.9, 10.0))
        for config in (VARYING, SEMAPHORE)
    ]
    assert [m.config for m in ranking(finals)] == [SEMAPHORE.name, VARYING.name]
