"""Whether Triton's interpreter works here is told apart from whether a template's kernel is right."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT
from small_gemms import needs_interpreter

from genkern.tuning.checkers import InterpreterChecker

ONE = """\
archs: [sm_90]
ops: [a16w16]
rules: []
families:
  - family: tiled
    BLOCK_SIZE_M: [16]
    BLOCK_SIZE_N: [32]
    BLOCK_SIZE_K: [64]
    GROUP_SIZE_M: [1]
    SPLIT_K: [1]
    num_warps: [4]
    num_stages: [2]
"""


@needs_interpreter
def test_the_interpreter_works_here(tmp_path: Path) -> None:
    assert InterpreterChecker().trial(str(tmp_path)) == ""


def test_an_interpreter_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, of a NumPy that cannot be imported."""
    (tmp_path / "numpy.py").write_text("raise ImportError('a NumPy of another age')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert InterpreterChecker().trial(str(tmp_path))


@needs_interpreter
def test_a_broken_template_is_said_to_be_wrong(tmp_path: Path) -> None:
    """A run names the config, and the first element that is wrong; it does not blame the interpreter."""
    shutil.copytree(ROOT / "genkern", tmp_path / "genkern", ignore=shutil.ignore_patterns("winners"))
    template = tmp_path / "genkern" / "templates" / "gemm" / "tiled.py.j2"
    text = template.read_text("utf-8")
    assert " * ldc + " in text
    template.write_text(text.replace(" * ldc + ", " * (ldc + 1) + "), encoding="utf-8")
    (tmp_path / "one.yaml").write_text(ONE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    sizes = ["-m", "48", "-n", "48", "-k", "64", "--arch", "sm_90", "--space", "one.yaml"]
    how = ["--profiler", "predict", "--compile", "--jobs", "1", "--cache_dir", "cache", "--compare"]
    words = [sys.executable, "-m", "genkern", *sizes, *how, "-o", "r.yaml"]
    ran = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "no winner" in ran.stdout
    assert "tiled_BM" in ran.stdout
    assert "C[1, 0]" in ran.stdout
    assert "NumPy" not in ran.stdout + ran.stderr
