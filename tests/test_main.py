"""Tests of genkern/__main__.py: exit statuses, one line for every error, and output that may go anywhere."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import ended, environment, run, run_here, start

from genkern.errors import InputError, OutputError, ProfilerError, ResultsError
from genkern.journal.journal import SCHEMA
from genkern.journal.journal_line import journal_line


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the command do something else."""

    def replace(what: Callable[[], int], tunes: bool = True) -> None:
        options = argparse.Namespace(tunes=tunes, tuning_results_file=None, model_dir=None, json=False, wide=False)
        monkeypatch.setattr("genkern.cli.options.parse", lambda argv: options)
        monkeypatch.setattr("genkern.cli.run.run", lambda options, console, early: what())

    return replace


def fails(error: BaseException) -> Callable[[], int]:
    def fail() -> int:
        raise error

    return fail


@pytest.mark.parametrize("status", [0, 1])
def test_the_runs_status_is_the_commands(
    status: int, does: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """0 and 1 without a word."""
    does(lambda: status)
    ran = run_here(capsys)
    assert (ran.status, ran.out, ran.err) == (status, "", "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("a\n  b\tc"), "genkern: a b c"),
        (ResultsError("x\x1b[31m\u202ey"), "genkern: x\\x1b[31m\\u202ey"),
        (OutputError("disk"), "genkern: disk"),
        (ProfilerError("no GPU \udcff"), "genkern: no GPU \\udcff"),
        (
            OSError(28, "No space left on device", "/tmp/x"),
            "genkern: No space left on device (/tmp/x); check permissions",
        ),
        (OSError("strange"), "genkern: strange (no file)"),
    ],
)
def test_errors_are_one_printable_line(
    error: Exception,
    said: str,
    does: Callable[[Callable[[], int]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever a file name or a message holds; status 2."""
    does(fails(error))
    assert run_here(capsys).refusal.startswith(said)


def test_a_missing_package_is_said_with_what_to_do(
    does: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A Python that genkern was not installed for: which one, and how to get the right one. Own modules are bugs."""
    does(fails(ModuleNotFoundError("No module named 'rich.console'", name="rich.console")))
    refusal = run_here(capsys).refusal
    assert refusal.startswith(f"genkern: {sys.executable} has no rich: ")
    assert ".venv/bin/activate" in refusal
    does(fails(ModuleNotFoundError("No module named 'genkern.x'", name="genkern.x")))
    with pytest.raises(ModuleNotFoundError):
        run_here(capsys)


def test_a_bug_is_no_bad_input(does: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody expected is not hidden behind a line: it has a status of its own, and its traceback stands before."""
    does(fails(KeyError("bug")))
    ran = run_here(capsys)
    assert (ran.status, ran.out) == (3, "")
    *traceback, line = ran.err.splitlines()
    assert line.startswith("genkern: a bug in genkern: KeyError: 'bug'; ")
    assert traceback[0].startswith("Traceback")
    assert any("test_main.py" in place for place in traceback)


@pytest.mark.parametrize(
    ("tunes", "said"), [(True, "run the same command again to continue"), (False, "the same command starts anew")]
)
def test_a_stop_is_130(tunes: bool, said: str, does: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """With the one line that says how to go on, where there is something to go on from."""
    does(fails(KeyboardInterrupt()), tunes)
    ran = run_here(capsys)
    assert (ran.status, ran.err) == (130, f"genkern: stopped; {said}\n")


def test_module_and_console_script_are_one() -> None:
    """`python -m genkern --version` as a process; the script of setup.cfg names the same function."""
    ran = run("--version")
    assert (ran.status, ran.err) == (0, "")
    assert "genkern = genkern.__main__:command" in (Path(__file__).parent.parent / "setup.cfg").read_text()


def test_a_reader_that_leaves_is_no_error() -> None:
    """`genkern ... | head -1`: no traceback, whichever way the output is cut off."""
    sizes = ["-m", "64", "-n", "128", "-k", "256", "--explain", "--arch", "gfx942", "--space", "amd_quick"]
    for argv in (["--help"], sizes):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-m", "genkern", *argv],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=60,
            check=False,
        )
        os.close(writer)
        assert done.stderr == b""
        assert done.returncode in (0, 1)


def test_a_word_that_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest is named; what was meant as an option's value is not."""
    assert run_here(capsys, "statsu").refusal == "genkern: there is no genkern statsu: did you mean genkern status?"
    assert "there is no genkern sizes.yaml: " in run_here(capsys, "sizes.yaml").refusal


@pytest.mark.parametrize("argv", [["-m", "1", "-n", "64", "-k", "64"], ["status"]])
def test_a_folder_that_is_gone(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says so, since no path in it would."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "the current folder was removed" in run_here(capsys, *argv).refusal


def test_names_that_no_encoding_knows(tmp_path: Path) -> None:
    """A file name of raw bytes on an ASCII terminal is shown in escapes."""
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\xff.yaml")
    ran = ended(start("-i", name, env={"PYTHONIOENCODING": "ascii"}))
    assert "caf\\udce9\\udcff.yaml" in ran.refusal
    assert "no such file" in ran.refusal


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["status", "--help"], ["status", "."]])
def test_help_and_status_import_little(argv: list[str], tmp_path: Path) -> None:
    """What takes long to import is for those who tune: neither the help nor the status of a run needs it."""
    journal = tmp_path / "r.yaml.journal"
    journal.write_bytes(journal_line("header", {"schema": SCHEMA}))
    program = (
        "import sys; from genkern.__main__ import main\n"
        "try: print(main(sys.argv[1:]))\n"
        "except SystemExit as end: print(end.code)\n"
        "print(*(name for name in ('pandas', 'torch', 'triton', 'jinja2', 'joblib', 'numpy') if name in sys.modules))"
    )
    argv = [sys.executable, "-c", program, *argv]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment(), cwd=tmp_path)
    *_, status, imported = done.stdout.split("\n")[:-1]
    assert (status, imported, done.stderr) == ("0", "", "")
