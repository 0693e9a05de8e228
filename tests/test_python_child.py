"""Children that run Python do not import what lies in the current folder, and find what their parent found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from long_tests import drawn

from genkern.python_child import child_environment, code_argument, module_argv

ROOT = Path(__file__).resolve().parents[1]
# What Python, joblib, Triton and genkern import.
STANDARD = ("random", "queue", "logging", "platform", "struct", "inspect", "joblib", "json", "selectors", "runpy")


def planted(folder: Path, names: tuple[str, ...] = STANDARD) -> Path:
    """Modules of these names in the folder, each of which leaves a mark when it is imported; returns the mark."""
    mark = folder / "mark"
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\nraise ImportError('planted')\n")
    return mark


def test_a_module_does_not_see_the_current_folder(hostile_path: Path, tmp_path: Path) -> None:
    """Its arguments are its own, it is __main__, and it finds the modules of the parent's path."""
    mark, program = planted(hostile_path), tmp_path / "modules"
    program.mkdir()
    text = "import json, random, sys; print(json.dumps([__name__, sys.argv[1:], '' in sys.path]))"
    (program / "own_program.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": str(program)}
    argv = module_argv("own_program", "-m", "a b")
    ran = subprocess.run(argv, cwd=hostile_path, env=env, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == ["__main__", ["-m", "a b"], False]
    code = code_argument("import random, queue")
    subprocess.run([sys.executable, "-c", code], cwd=hostile_path, check=True)
    assert not mark.exists()


def test_a_child_finds_what_this_process_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Relative entries too, from another folder; genkern always, and never the current folder for being current."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "relative", "/modules"])
    assert child_environment()["PYTHONPATH"].split(os.pathsep) == [f"{tmp_path}/relative", "/modules", str(ROOT)]


@pytest.mark.parametrize("start", drawn(["installed", "checkout"], 1))
def test_no_process_of_a_run_imports_from_the_current_folder(start: str, tmp_path: Path) -> None:
    """The command, its trackers, its workers and their compilers; also if genkern itself is found there alone."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    mark, others = planted(tmp_path), [path for path in sys.path if path and path != str(ROOT)]
    if start == "checkout":
        for name in ("genkern", "profiling", "templates"):
            (tmp_path / name).symlink_to(ROOT / name)
        # Without the installation that this environment may have.
        argv = [sys.executable, "-S", "-m", "genkern"]
        env["PYTHONPATH"] = os.pathsep.join(path for path in others if "site-packages" in path)
    else:
        argv = [sys.executable, "-m", "genkern"]
        env["PYTHONPATH"] = str(ROOT)
    size = [
        "-m",
        "16",
        "-n",
        "512",
        "-k",
        "512",
        "--arch",
        "sm_90",
        "--profiler",
        "predict",
        "--compile",
        "--jobs",
        "2",
    ]
    argv += [*size, "--cache_dir", str(tmp_path / "cache"), "-o", str(tmp_path / "r.yaml")]
    ran = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert not mark.exists(), mark.read_text()
    assert list((tmp_path / "cache" / "binaries").glob("??/*"))


def test_the_measured_process_does_not_either(tmp_path: Path) -> None:
    """It imports PyTorch, and genkern, and ends with its input."""
    from genkern.profiling.early_process import HARNESS

    mark = planted(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [*HARNESS, "--wait"],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert not mark.exists()


def test_a_profiler_that_is_a_shell_script_can_start_it() -> None:
    """Legacy rocprof takes no argument with a space or a shell's character."""
    from genkern.profiling.rocm.rocprof_command import rocprof_argv

    _, *arguments = module_argv("genkern.profiling.harness", "/job.json")
    argv = rocprof_argv("/opt/rocm/bin/rocprof", ["/usr/bin/python3", "/genkern/x.py", *arguments[1:]], "/out.csv")
    assert argv[-2:] == ["genkern.profiling.harness", "/job.json"]
    assert Path(arguments[0]).is_file()


def test_every_child_is_started_so() -> None:
    """No module starts Python with -m or -c by itself; Slurm's scripts, which set PYTHONSAFEPATH, name the command."""
    sources = [*(ROOT / "genkern").rglob("*.py"), *(ROOT / "profiling").rglob("*.py")]
    found = {
        path.name for path in sources if re.search(r"sys\.executable, \"-[mc]\"", path.read_text(encoding="utf-8"))
    }
    assert len(sources) > 400
    assert found == {"batch_scripts.py"}
