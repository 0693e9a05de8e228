"""A parameter that is added as CONTRIBUTING.md says: a record, its use in a template, and values in a space."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from command import ROOT
from forms import FORMS
from long_tests import drawn
from small_gemms import needs_interpreter, write_module

from genkern.errors import InputError
from genkern.files.config_entry import parse_config
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.parameter import PARAMETERS, Parameter
from genkern.gemm.problem import GemmProblem
from genkern.kernels import catalogue
from genkern.kernels.catalogue import FAMILIES, add
from genkern.kernels.contract.family import Family
from genkern.kernels.contract.product import product_of
from genkern.kernels.generate import generate
from genkern.kernels.source import load_module
from genkern.kernels.specs import kernel_specs, launch_plan
from genkern.ops.op import get_op

SPACE = """\
archs: [{arch}]
ops: [a16w16]
rules: []
families:
  - family: gemv
    BLOCK_SIZE_M: [1]
    BLOCK_SIZE_N: [16]
    BLOCK_SIZE_K: [64]
    GROUP_SIZE_M: [1]
    SPLIT_K: [1]
    num_warps: [4]
    num_stages: [2]
    unroll: [1, 2, 4]
"""
OF_AMD = """\
    waves_per_eu: [0]
    matrix_instr_nonkdim: [0]
    kpack: [1]
    schedule_hint: [none]
"""
PROBLEM = GemmProblem(1, 64, 256)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """genkern as it is, with a parameter more: three lines that are changed, each found in the file."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "genkern", folder / "genkern", ignore=shutil.ignore_patterns("winners"))
    changes = {
        "kernels/families/small_m.py": [
            ("import AMD_OPTIONS\n", "import AMD_OPTIONS, Parameter\n"),
            (
                'GEMV = Family("gemv", _GEMV, AMD_OPTIONS)',
                'UNROLL = Parameter("unroll", "U", (1, 2, 4), "steps of K in a turn of the loop", 1)\n'
                'GEMV = Family("gemv", _GEMV, (UNROLL, *AMD_OPTIONS))',
            ),
        ],
        "templates/gemm/gemv.py.j2": [
            ("range(0, K, BLOCK_SIZE_K)", "tl.range(0, K, BLOCK_SIZE_K, loop_unroll_factor=UNROLL)"),
        ],
    }
    for name, found in changes.items():
        path = folder / "genkern" / name
        text = path.read_text(encoding="utf-8")
        for before, after in found:
            assert text.count(before) == 1
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
    return folder


@needs_interpreter
@pytest.mark.parametrize(("arch", "more"), drawn([("sm_90", ["--compare"]), ("gfx942", [])], 1))
def test_an_added_parameter_is_tuned(checkout: Path, tmp_path: Path, arch: str, more: list[str]) -> None:
    """All of its values compile, each to a binary of its own, and the winner is right under the interpreter."""
    (tmp_path / "space.yaml").write_text(SPACE.format(arch=arch) + OF_AMD * (arch == "gfx942"))
    sizes = ["-m", "1", "-n", "64", "-k", "256", "--arch", arch, "--space", "space.yaml"]
    how = ["--profiler", "predict", "--compile", "--search", "exhaustive", "--jobs", "1", "--cache_dir", "cache"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    words = [sys.executable, "-m", "genkern", *sizes, *how, *more, "-o", "r.yaml", "-o2", "candidates.csv"]
    ran = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with open(tmp_path / "candidates.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["config"].partition("_nS2")[2].partition("_EU")[0] for row in rows} == {"", "_U2", "_U4"}
    assert {row["outcome"] for row in rows} == {"predicted"}
    assert len(list((tmp_path / "cache" / "binaries").glob("*/*"))) >= 3
    (row,) = read_results(str(tmp_path / "r.yaml"))
    assert row.config is not None
    assert row.config.family == "gemv"
    assert bool(more) == ("ok" in ran.stdout)


UNROLL = Parameter("unroll", "U", (1, 2, 4), "steps of K in a turn of the loop", 1)
WALK = Parameter("walk", "", ("rows", "columns"), "which side of C programs walk along", "rows")
CHUNK = Parameter("chunk", "ch", (1, 2, 4), "columns that a program takes at a time", 1, at_run_time=True)


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """gemv with a parameter of each kind, under a name of its own."""
    for key, value in vars(PARAMETERS).items():
        monkeypatch.setattr(PARAMETERS, key, value)
    add(Family("own_gemv", FORMS["gemv"], (UNROLL, WALK, CHUNK)))
    yield "own_gemv"
    del FAMILIES["own_gemv"]
    for key in [key for key in catalogue._FORMS if key[0] == "own_gemv"]:
        del catalogue._FORMS[key]


def test_kernels_are_given_it(family: str, tmp_path: Path) -> None:
    """A number or a word as a constant, a number that is set at run time as an argument; also at neutral values."""
    plain = Config(family, 1, 16, 64)
    configs = [plain, plain.with_values(unroll=4), plain.with_values(walk="columns"), plain.with_values(chunk=2)]
    gpu, op = gpu_for_arch("sm_90"), get_op("a16w16")
    module = generate(PROBLEM, configs, "sm_90", gpu)
    said = [kernel_specs(PROBLEM, each, op, module.source_sha256, "sm_90")[0] for each in configs]
    assert [dict(spec.constants)["UNROLL"] for spec in said] == [1, 4, 1, 1]
    assert [dict(spec.constants)["WALK"] for spec in said] == ["rows", "rows", "columns", "rows"]
    assert len(set(said)) == 3
    assert all(dict(spec.signature)["chunk"] == "i32" for spec in said)
    product = product_of(PROBLEM, op, "sm_90")
    plans = [launch_plan(product, each, gpu).launches[0] for each in configs]
    numbers = [[each.value for each in plan.arguments if each.name == "chunk"] for plan in plans]
    assert numbers == [[1], [1], [1], [2]]
    loaded = load_module(str(write_module(tmp_path, module)))
    for config, given in zip(configs, ((1, "rows", 1), (4, "rows", 1), (1, "columns", 1), (1, "rows", 2)), strict=True):
        (launch,) = loaded.launches(loaded.CONFIGS[config.name], loaded.make_operands("cpu"), 132)
        assert (launch.constants["UNROLL"], launch.constants["WALK"], launch.args[-1]) == given
        assert parse_config(config.name) == config


def test_a_name_that_a_kernel_has_already_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in vars(PARAMETERS).items():
        monkeypatch.setattr(PARAMETERS, key, value)
    monkeypatch.setitem(FAMILIES, "own_gemv", Family("own_gemv", FORMS["gemv"], (replace(UNROLL, name="binary"),)))
    with pytest.raises(InputError, match="parameter binary"):
        generate(PROBLEM, [Config("own_gemv", 1, 16, 64)], "sm_90", gpu_for_arch("sm_90"))
    for key in [key for key in catalogue._FORMS if key[0] == "own_gemv"]:
        del catalogue._FORMS[key]


def test_two_families_with_one_kernel_are_not_mixed(family: str) -> None:
    """Their kernels take other arguments."""
    with pytest.raises(InputError, match="another family"):
        generate(PROBLEM, [Config("gemv", 1, 16, 64), Config(family, 1, 16, 64)], "sm_90", gpu_for_arch("sm_90"))
