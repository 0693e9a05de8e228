"""Tests of `genkern repro`: its scripts run with PyTorch and Triton alone, and say what they run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import ROOT, run_here
from winner_factory import checked, winner, write_results

from genkern.gemm.config import Config

H200 = {"arch": "sm_90", "device": "NVIDIA H200", "time_source": "cudagraph"}
# Modules that a script may import: Python's own, PyTorch and Triton.
ALLOWED = {"argparse", "collections", "ctypes", "functools", "platform", "torch", "triton"}
GEMV = Config("gemv", 1, 4, 128, 1, 1, 2, 1)
SPLIT = Config("tiled", 16, 32, 64, 1, 2, 4, 3)
RING = Config("warp_specialized", 64, 64, 64, 1, 1, 4, 4)
CUTE = Config("cute_wgmma", 128, 256, 64, 8, 1, 8, 4)
ALGORITHM = f"cublaslt 130100 {'ab' * 64}"


def written(folder: Path, capsys: pytest.CaptureFixture[str], config: Config, *argv: str, **changes: Any) -> Path:
    """The script of a row with this config."""
    made = winner(**{"m": 16, "config": config, **H200, "check": checked(), **changes})
    row = replace(made, problem=replace(made.problem, N=64, K=256))
    write_results(folder / "r.yaml", [row], 132)
    ran = run_here(capsys, "repro", f"{folder / 'r.yaml'}:2", "-o", folder / "repro.py", *argv)
    assert ran.status == 0, ran
    return folder / "repro.py"


def ran(script: Path, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A run in a Python that does not find genkern."""
    code = f"import sys; sys.modules['genkern'] = None; sys.argv = [{str(script)!r}, *{argv!r}]; "
    code += f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    environment = {**os.environ, **environ, "TRITON_CACHE_DIR": str(script.parent / "triton")}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=script.parent, env=environment, capture_output=True, text=True, check=False
    )


def imports(script: Path) -> set[str]:
    """The packages that a script imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


@pytest.mark.parametrize(
    ("config", "changes"),
    [(GEMV, {"m": 1}), (SPLIT, {"bias": True, "activation": "relu"})],
    ids=["gemv", "split_k_bias_relu"],
)
def test_a_script_is_right_under_the_interpreter(
    config: Config, changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without genkern; and a kernel with a planted fault is found."""
    script = written(tmp_path, capsys, config, **changes)
    assert imports(script) <= ALLOWED
    right = ran(script, TRITON_INTERPRET="1")
    assert (right.returncode, "agrees with the reference" in right.stdout) == (0, True), right
    text = script.read_text()
    wrong = text.replace("tl.store(c_ptr + ", "tl.store(c_ptr + 1 + ").replace(
        "c_ptrs = c_ptr + ", "c_ptrs = c_ptr + 1 + "
    )
    assert wrong != text
    script.write_text(wrong)
    assert ran(script, TRITON_INTERPRET="1").returncode == 1


@pytest.mark.parametrize(("config", "arch"), [(RING, "sm_90"), (SPLIT, "sm_90")], ids=["gluon", "triton"])
def test_a_script_compiles_without_a_gpu(
    config: Config, arch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every kernel of the call, for its own architecture alone."""
    script = written(tmp_path, capsys, config, m=64)
    assert imports(script) <= ALLOWED
    made = ran(script, "--compile", arch)
    assert made.returncode == 0, made
    assert made.stdout.count("bytes of machine code") == (2 if config.SPLIT_K > 1 else 1)
    assert ran(script, "--compile", "sm_80").returncode == 1


def test_what_the_interpreter_cannot_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = written(tmp_path, capsys, RING, m=64)
    refused = ran(script, TRITON_INTERPRET="1")
    assert refused.returncode == 2
    assert "--compile sm_90" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(("asked", "has"), [("--library", True), ("--torch", False)])
def test_a_librarys_call_is_a_script_of_pytorch_alone(
    asked: str, has: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the algorithm's bytes if it is cuBLASLt's; it needs a GPU, and says so."""
    script = written(tmp_path, capsys, SPLIT, asked, vendor=ALGORITHM, vendor_us=9.0, torch_us=9.5)
    assert imports(script) <= ALLOWED - {"triton"}
    assert (("ab" * 32 in script.read_text()), "cublasLtMatmul" in script.read_text()) == (has, has)
    refused = ran(script, CUDA_VISIBLE_DEVICES="")
    assert (refused.returncode, "PyTorch sees no GPU" in refused.stderr) == (2, True), refused


def test_the_script_says_what_was_measured_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A predicted time is no claim: it is not in the script."""
    head = written(tmp_path, capsys, SPLIT, us=12.25, vendor=ALGORITHM, vendor_us=13.5).read_text().split('"""')[1]
    for fact in ("16x64x256", SPLIT.name, "NVIDIA H200", "12.25 us", "13.50 us", "triton 3.7.0", "r.yaml:2"):
        assert fact in " ".join(head.split())
    predicted = written(tmp_path, capsys, SPLIT, "--overwrite", us=12.25, time_source="predicted").read_text()
    assert "12.25" not in predicted
    assert "Nothing was measured" in predicted


def test_values_of_a_file_cannot_become_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A device may be called anything; the script's text stays one docstring."""
    script = written(tmp_path, capsys, SPLIT, device='H200""" + __import__("os").system("x") + """\\')
    body = ast.parse(script.read_text()).body
    assert isinstance(body[0], ast.Expr)
    assert "H200" in (ast.get_docstring(ast.parse(script.read_text())) or "")
    assert not any(
        isinstance(node, ast.Call) and "__import__" in ast.dump(node)
        for node in ast.walk(ast.parse(script.read_text()))
    )


@pytest.mark.parametrize(
    ("config", "argv", "said"),
    [
        (CUTE, (), "CuTe DSL"),
        (SPLIT, ("--config", "tiled_BM3"), "CONFIG"),
        (SPLIT, ("--config", GEMV.name), "cannot compute"),
    ],
)
def test_what_has_no_script_is_refused_in_a_line(
    config: Config, argv: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = winner(m=128, config=config, **H200)
    write_results(tmp_path / "r.yaml", [row], 132)
    refused = run_here(capsys, "repro", f"{tmp_path / 'r.yaml'}:2", "-o", tmp_path / "x.py", *argv)
    assert said in refused.refusal
    assert not (tmp_path / "x.py").exists()


def test_a_file_is_replaced_only_if_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = written(tmp_path, capsys, SPLIT)
    place = f"{tmp_path / 'r.yaml'}:2"
    assert "--overwrite" in run_here(capsys, "repro", place, "-o", script).refusal
    assert run_here(capsys, "repro", place, "-o", script, "--overwrite").status == 0


def test_several_rows_of_a_size_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A shipped size that several devices have: the places of its rows, of which the user names one."""
    refused = run_here(capsys, "repro", "64x6144x4096", "-o", tmp_path / "x.py").refusal
    assert "nvidia_h100" in refused
    assert "nvidia_h200" in refused
    assert run_here(capsys, "repro", "64x6144x4096", "--device", "h200", "-o", tmp_path / "x.py").status == 0
    assert str(ROOT) not in (tmp_path / "x.py").read_text()
