"""A format of someone's own, from a folder outside the checkout: the worked example of docs/your_own_format.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command import ROOT, run_here
from long_tests import spread
from small_gemms import needs_interpreter

from genkern.errors import InputError
from genkern.ops import user_formats
from genkern.ops.op import add_op, get_op, op_names

EXAMPLE = ROOT / "docs" / "your_own_format.md"
FILES = dict(re.findall(r"`squared_relu/([\w.]+)`:\n\n```\w+\n(.*?)```", EXAMPLE.read_text("utf-8"), flags=re.DOTALL))


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example's folder, with the files that the document shows."""
    folder = tmp_path / "squared_relu"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No format of one test is known to another."""
    monkeypatch.setenv(user_formats.ENVIRONMENT, "")
    for name in [name for name in sys.modules if name.startswith("genkern_op_")]:
        del sys.modules[name]


def run(folder: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, in a folder that is not the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "genkern", *map(str, argv)]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@needs_interpreter
@pytest.mark.usefixtures("fast_checks")
@pytest.mark.parametrize("arch", spread(["sm_90", "gfx942"], 2))
def test_a_size_of_an_own_format_is_tuned_and_checked(
    tmp_path: Path, example: Path, arch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its kernels compile, a winner's output is what its reference says, and the results name format and field."""
    monkeypatch.chdir(tmp_path)
    size = ("-m", 33, "-n", 128, "-k", 256, "--dtype_a", "fp16", "--bias_vector", "--beta", 3)
    more = (
        "--arch",
        arch,
        "--profiler",
        "predict",
        "--compile",
        "--jobs",
        1,
        "--cache_dir",
        "cache",
        "-o",
        "r.yaml",
        "--compare",
    )
    # Eight kernels are enough.
    ran = run_here(capsys, "--op", example, *size, *more, "--search", "predicted:8")
    assert (ran.status, ran.err) == (0, "")
    assert "interpreter check ok" in ran.out
    (row,) = yaml.safe_load((tmp_path / "r.yaml").read_text("utf-8"))
    assert (row["op"], row["beta"], row["dtype_c"]) == ("squared_relu", 3, "fp16")
    if arch == "sm_90":
        again = run_here(capsys, "--op", example, "--compare_wo_tuning", "-i", "r.yaml", "--arch", arch, "--jobs", 1)
        assert (again.status, "are correct" in again.out) == (0, True), again


def test_without_its_folder_nobody_knows_it(tmp_path: Path) -> None:
    """Results of it are refused with the formats that there are."""
    (tmp_path / "r.yaml").write_text("- {'M': 16, 'N': 128, 'K': 256, 'op': 'squared_relu'}\n")
    ran = run(tmp_path, "-i", "r.yaml", "--arch", "sm_90")
    assert ran.returncode == 2
    assert "squared_relu" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_processes_that_are_started_know_it(example: Path) -> None:
    """By the environment: a measured process asks for the operands of the problem that it is given."""
    assert add_op(str(example)).name == "squared_relu"
    assert "squared_relu" in op_names()
    code = "from genkern.ops.op import get_op; print(get_op('squared_relu').fields)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "Fields" in done.stdout


def test_packed_operands_without_their_inputs_are_refused(tmp_path: Path, example: Path) -> None:
    """Before anything is compiled, in one line that says what the format lacks: it is no bug of genkern's."""
    text = FILES["__init__.py"].replace('"fp32", scales="b"', '"fp32", scales="b", packed=2')
    (example / "__init__.py").write_text(text, encoding="utf-8")
    ran = run(tmp_path, "--op", example, "-m", 16, "-n", 128, "-k", 256, "--arch", "sm_90")
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert "values for column_scale: give its Op exact_inputs" in ran.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("__init__.py", None, "it has no __init__.py"),
        ("__init__.py", "OP = 1\n", "has no OP"),
        ("__init__.py", "import nothing_of_this_name\n", "cannot be imported: ModuleNotFoundError"),
        ("__init__.py", "def (\n", "cannot be imported: SyntaxError"),
        ("kernel.py.j2", None, "has no kernel.py.j2"),
        ("__init__.py", FILES["__init__.py"].replace('"squared_relu"', '"a16w16"'), "genkern already has a format"),
    ],
)
def test_a_folder_that_is_no_format_is_refused(example: Path, name: str, text: str | None, said: str) -> None:
    """In one line, and nothing of it is known afterwards."""
    (example / name).unlink()
    if text is not None:
        (example / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said) as caught:
        add_op(str(example))
    assert "\n" not in str(caught.value)
    assert "squared_relu" not in op_names()
    with pytest.raises(InputError, match="unknown op"):
        get_op("squared_relu")
