"""The programs and notebooks of examples/ run as they stand, without a GPU, and say that their times are predicted."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

import genkern
from genkern.errors import GenkernError

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
# Seconds of CPU that a reader's machine may spend on an example.
MOST_CPU_S = 20.0
SAYS = {
    "tune_one_size.py": ["predicted", "the winner is not called"],
    "tune_model.py": ["predicted", "winners.genkern", "4 winners"],
    "explain_and_compare.py": ["NVIDIA H100", "NVIDIA H200", "predicted", "the rules that drop most configs"],
    "load_and_report.py": ["geometric mean", "report.html"],
}


def cpu_s() -> float:
    """Processor time of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def notebooks_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)
    assert len(list(EXAMPLES.glob("*.ipynb"))) == 2


@pytest.mark.parametrize("name", sorted(SAYS))
def test_a_program_runs(name: str, tmp_path: Path, cache_dir: Path) -> None:
    """Anywhere, in little time."""
    if name == "load_and_report.py":
        pytest.importorskip("genkern.results_report")
    before = cpu_s()
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg", "GENKERN_CACHE_DIR": str(cache_dir)}
    argv = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for part in SAYS[name]:
        assert part in done.stdout
    assert cpu_s() - before < MOST_CPU_S


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.ipynb")))
def test_a_notebook_runs_and_has_its_outputs(name: str) -> None:
    """What it shows is what it would show today, up to times, and it says that these are predicted."""
    before = cpu_s()
    made = notebooks_module().executed(EXAMPLES / name)
    kept = nbformat.read(EXAMPLES / name, as_version=4)
    assert cpu_s() - before < MOST_CPU_S
    assert "predicted" in kept.cells[0].source
    for new, old in zip(made.cells, kept.cells, strict=True):
        assert new.source == old.source
        kinds = [
            [(each.output_type, sorted(each.get("data", {}))) for each in cell.get("outputs", ())]
            for cell in (new, old)
        ]
        assert kinds[0] == kinds[1], new.source
        assert all(each.output_type != "error" for each in old.get("outputs", ()))
    shown = [each for cell in kept.cells for each in cell.get("outputs", ())]
    assert any("image/png" in each.get("data", {}) for each in shown)
    assert any("predicted" in str(each.get("data", {}).get("text/plain", "")) for each in shown) or "explain" in name


def test_the_tutorial_shows_what_python_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/python.md: programs with an output below print it, up to numbers and what contains one."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    shown = re.findall(r"```python\n((?:(?!```).)*)```\n\n```\n((?:(?!```).)*)```", text, re.DOTALL)
    assert len(shown) == 3
    names: dict[str, object] = {"genkern": genkern}
    for program, output in shown:
        try:
            exec(program, names)
            said = capsys.readouterr().out
        except GenkernError as error:
            said = f"{type(error).__module__}.{type(error).__name__}: {error}\n"
        assert without_numbers(said) == without_numbers(output)


def without_numbers(text: str) -> str:
    return re.sub(r"\S*\d\S*", "N", text)
