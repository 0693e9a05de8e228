"""Results that go to a pipe, a device or standard output, and other names that -o takes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from command import SMALL, Ran, environment, run, run_here
from long_tests import drawn
from machines import machine
from tiny_space import FASTER, TINY_AMD, tiny_command

from genkern.errors import OutputError
from genkern.file_io import is_stream, own_descriptor, require_writable, write_whole
from genkern.journal.file_lock import sole_run
from genkern.journal.run_files import RunFiles, find_runs

QUICK = ["--arch", "gfx942", "--profiler", "predict", "--compile", "--space", str(TINY_AMD)]


def tuned(folder: Path, cache_dir: Path, *options: object) -> Ran:
    """A run of three predicted sizes, with its temporary files in the same folder."""
    (folder / "sizes.yaml").write_text(SMALL)
    own = {"TMPDIR": str(folder)}
    return run("-i", "sizes.yaml", *QUICK, "--cache_dir", cache_dir, *options, cwd=folder, env=own)


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_results_on_standard_output(path: str, cache_dir: Path, tmp_path: Path) -> None:
    """They are all that is there, to be piped on; what the run says goes to standard error. No file is left."""
    ran = tuned(tmp_path, cache_dir, "-o", path)
    assert ran.status == 0, ran
    assert [entry["M"] for entry in yaml.safe_load(ran.out)] == [16, 33, 64]
    assert f"results: {path}" in ran.err
    assert [file.name for file in tmp_path.iterdir()] == ["sizes.yaml"]


def test_results_into_a_pipe(cache_dir: Path, tmp_path: Path) -> None:
    """Written once, at the end, as the format of its name; its reader sees the whole and then the end."""
    fifo = tmp_path / "pipe.csv"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()), daemon=True)
    reader.start()
    ran = tuned(tmp_path, cache_dir, "-o", fifo)
    reader.join(30)
    assert ran.status == 0, ran
    assert len(read[0].splitlines()) == 4
    assert sorted(file.name for file in tmp_path.iterdir()) == ["pipe.csv", "sizes.yaml"]


def test_results_to_nowhere(cache_dir: Path, tmp_path: Path) -> None:
    """/dev/null is no file to be replaced, and nothing is written beside it."""
    before = set(os.listdir("/dev"))
    ran = tuned(tmp_path, cache_dir, "-o", "/dev/null")
    assert (ran.status, ran.err) == (0, "")
    assert not Path("/dev/null").is_file()
    assert set(os.listdir("/dev")) - before == set()


def test_a_reader_of_the_results_that_leaves(cache_dir: Path, tmp_path: Path) -> None:
    """Is no error of the run."""
    (tmp_path / "sizes.yaml").write_text(SMALL)
    argv = [sys.executable, "-m", "genkern", *QUICK, "--cache_dir", str(cache_dir), "-i", "sizes.yaml"]
    shell = ["bash", "-c", 'exec 9> >(true); sleep 1; "$@" -o /dev/fd/9', "bash", *argv]
    ran = subprocess.run(shell, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("name", drawn(["r.yaml", "r.csv"], 1))
@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_file_has_no_results_yet(
    name: str,
    text: str,
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As mktemp and touch make them: it is filled as a new one would be, and `status` says so before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizes.yaml").write_text(SMALL)
    (tmp_path / name).write_text(text)
    assert "results of 0 sizes" in run_here(capsys, "status", name).out
    for results in (name, f"new_{name}"):
        options = ["-i", "sizes.yaml", *QUICK, "--cache_dir", cache_dir, "-o", results]
        assert run_here(capsys, *options).status == 0
    assert (tmp_path / name).read_text() == (tmp_path / f"new_{name}").read_text()


def test_two_names_of_one_file_are_one_run(cache_dir: Path, tmp_path: Path) -> None:
    """A link to the results, or to a file that is not there yet, has the lock and the journal of what it points to."""
    (tmp_path / "far").mkdir()
    file, link = tmp_path / "far" / "r.yaml", tmp_path / "link.yaml"
    link.symlink_to(file)
    assert RunFiles(str(link)).journal == RunFiles(str(file)).journal == tmp_path / "far" / "r.yaml.journal"
    writing = r"another run is writing .*link\.yaml"
    with sole_run(str(file)), pytest.raises(OutputError, match=writing), sole_run(str(link)):
        pass
    assert tuned(tmp_path, cache_dir, "-o", link).status == 0
    assert sorted(path.name for path in file.parent.iterdir()) == ["r.yaml", "r.yaml.journal.previous"]
    assert link.is_symlink()
    assert "3 of 3 sizes are in" in tuned(tmp_path, cache_dir, "-o", file).out
    assert find_runs(str(link))[0].finished_journal.exists()
    assert "finished" in run("status", link).out


def test_a_name_without_room_for_the_others_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's other files are named by its results: the last of them at its end, when all is measured."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizes.yaml").write_text(SMALL)
    ran = run_here(capsys, "-i", "sizes.yaml", *QUICK, "-o", "r" * 229)
    assert "its name is 1 bytes too long" in ran.refusal
    assert os.listdir(tmp_path) == ["sizes.yaml"]
    with sole_run("r" * 228):
        Path("r" * 228 + ".order9.journal.replaced_99").write_text("")


def test_a_path_that_is_no_link_is_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name it so."""
    monkeypatch.chdir(tmp_path)
    assert str(RunFiles("r.yaml").journal) == "r.yaml.journal"


def test_an_unwritable_file_of_times_is_refused_first(cache_dir: Path, tmp_path: Path) -> None:
    """--benchmark measures nothing that it could not write down; and one time is one time."""
    env = machine(tmp_path, gpus=1, faster=FASTER, log=str(tmp_path / "log"))
    size = "- {'M': 64, 'N': 128, 'K': 256}\n"
    assert run(*tiny_command(tmp_path, cache_dir, size), env=env).status == 0
    (tmp_path / "log").unlink()
    command = ["--benchmark", "-i", tmp_path / "r.yaml", "--cache_dir", cache_dir]
    (tmp_path / "file").write_text("")
    assert "cannot write" in run(*command, "-o", tmp_path / "file" / "t.csv", env=env).refusal
    assert not (tmp_path / "log").exists()
    ran = run(*command, "-o", "/dev/stdout", env=env)
    assert ran.status == 0, ran
    assert len(ran.out.splitlines()) == 2
    assert "\n1 time in /dev/stdout\n" in ran.err


def test_what_is_a_stream(tmp_path: Path) -> None:
    """Pipes, devices and our own open files; not files, folders, nor what is not there."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("")
    streams = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/77", "/dev/null", str(tmp_path / "fifo")]
    assert [is_stream(path) for path in streams] == [True] * 5
    assert [is_stream(str(path)) for path in (tmp_path, tmp_path / "file", tmp_path / "none")] == [False] * 3
    assert [own_descriptor(path) for path in streams] == [1, 1, 77, None, None]
    with pytest.raises(OutputError, match="Bad file descriptor"):
        write_whole("/dev/fd/7777", "text")
    with pytest.raises(OutputError):
        require_writable("/dev/fd/7777")
