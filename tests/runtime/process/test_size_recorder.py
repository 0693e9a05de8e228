"""Sizes that nobody tuned are written down for every format, whatever becomes of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command import environment
from library_rows import Card, library_rows, problem
from processes import until

import genkern
from genkern.errors import InputError
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.gemm.dtypes import parse_dtype
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import fields_of
from genkern.ops.op import get_op, op_names
from genkern.runtime.bundles.table import Choice
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.process.bundle_sources import Sources
from genkern.runtime.process.size_recorder import SizeRecorder, process_name, record_folder

MISS = Choice("not tuned")


def sizes(folder: Path) -> list[GemmProblem]:
    """What was recorded, as `genkern -i` reads it with options that say something else of what a file leaves out."""
    defaults = GemmDefaults(dtype_c="fp32", bias=True, activation="relu")
    found = [read_sizes(str(path), defaults, "sm_90") for path in sorted(folder.iterdir())]
    assert [each.notes for each in found] == [()] * len(found)
    own = GemmDefaults(own=(("scales", "per_token"),))
    again = [read_sizes(str(path), own, "sm_90").problems for path in sorted(folder.iterdir())]
    assert again == [each.problems for each in found]
    return [each for read in found for each in read.problems]


def of_every_format() -> Iterator[GemmProblem]:
    """A problem of each format for each value of its own fields, in its default types."""
    for number, name in enumerate(op_names()):
        op = get_op(name)
        a, b, c = (parse_dtype(dtype, "sm_90").name for dtype in op.default_dtypes("sm_90"))
        yield GemmProblem(16, 256, 512 + 256 * number, name, a, b, c)
        for field in fields_of(op.fields):
            for word in field.words[1:]:
                made = GemmProblem(16, 256, 512, name, a, b, c, own=((field.name, word),))
                if not op.refuse(made, "sm_90"):
                    yield made


def test_every_format_comes_back(tmp_path: Path) -> None:
    """What is recorded reads as the same problem: types, layouts, bias, activation and a format's own fields."""
    wanted = [*of_every_format(), problem(7, bias=True, activation="gelu", dtype_c="fp32", row_major_b=True)]
    recorder = SizeRecorder(tmp_path, pytest.fail, {})
    for each in wanted:
        recorder(Card(), each, MISS)  # type: ignore[arg-type]
    assert sizes(tmp_path) == wanted
    assert {each.op for each in wanted} == set(op_names())


def test_calls_without_a_row_are_recorded(tmp_path: Path) -> None:
    """A problem that a row serves is not; one that another M serves, or nothing, is, once, on a CPU too."""
    results = library_rows(tmp_path / "r.yaml", [16])
    cards = {-1: Card()}
    recorder = SizeRecorder(tmp_path / "recorded", pytest.fail, {})
    own = Sources(pytest.fail, lambda: tmp_path / "own")
    context = Context(lambda op: own.bundles([str(results)]), cards.get, watches=[recorder])  # type: ignore[arg-type]
    gemm = Gemm("a16w16", context)
    weight = torch.zeros(4096, 4096, dtype=torch.bfloat16)
    for m in (16, 3, 3, 3):
        assert gemm(torch.zeros(m, 4096, dtype=torch.bfloat16), weight).shape == (m, 4096)
    context.renew()
    gemm(torch.zeros(1, 3, 4096, dtype=torch.bfloat16), weight)
    assert sizes(tmp_path / "recorded") == [problem(3)]
    cards.clear()
    on_cpu = Context(lambda op: [], lambda index: None, watches=[recorder])
    Gemm("a16w16", on_cpu)(torch.zeros(5, 64), torch.zeros(32, 64))
    assert sizes(tmp_path / "recorded") == [problem(3), GemmProblem(5, 32, 64, "a16w16", *["fp32"] * 3)]


def test_names_tell_processes_apart() -> None:
    """Host, rank and number; a launcher's words that are no numbers go into no name."""
    name = process_name({})
    assert name.endswith(f"_{os.getpid()}")
    assert process_name({"RANK": "3", "LOCAL_RANK": "1"}).endswith(f"_rank3_{os.getpid()}")
    assert process_name({"LOCAL_RANK": "1"}).endswith(f"_rank1_{os.getpid()}")
    assert process_name({"RANK": "../x"}) == name


def test_never_in_an_installed_package(tmp_path: Path) -> None:
    """Neither in genkern's nor below any folder that packages are installed in."""
    for folder in (Path(genkern.__path__[0]) / "of_a_program", tmp_path / "lib" / "site-packages" / "x"):
        with pytest.raises(InputError, match="GENKERN_RECORD_DIR"):
            SizeRecorder(folder, pytest.fail, {})
        assert not folder.exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """One line, and calls go on."""
    (tmp_path / "file").write_text("")
    said: list[str] = []
    recorder = SizeRecorder(tmp_path / "file" / "folder", said.append, {})
    for m in (1, 2):
        recorder(None, problem(m), None)
    assert ["GENKERN_RECORD_DIR" in line for line in said] == [True]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that does not fit is taken back."""
    said: list[str] = []
    recorder = SizeRecorder(tmp_path, said.append, {})
    recorder(None, problem(1), None)
    half = SimpleNamespace(**{**vars(os), "write": lambda file, data: os.write(file, data[:20])})
    monkeypatch.setattr("genkern.runtime.process.size_recorder.os", half)
    recorder(None, problem(2), None)
    assert sizes(tmp_path) == [problem(1)]
    assert len(said) == 1


def test_a_forked_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    """So that no two processes write into one."""
    recorder = SizeRecorder(tmp_path, pytest.fail, {})
    recorder(None, problem(1), None)
    child = os.fork()
    if child == 0:
        recorder(None, problem(2), None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(tmp_path.iterdir())) == 2
    assert set(sizes(tmp_path)) == {problem(1), problem(2)}


# Calls by the default context, as a user's program makes them, of two ranks until both are killed.
_PROGRAM = """
import itertools, os, torch
os.environ["RANK"] = "1" if os.fork() == 0 else "0"
from genkern import tuned_gemm
weight = torch.zeros(32, 64)
for m in itertools.count(1):
    tuned_gemm.gemm_a16w16(torch.zeros(m % 5000 + 1, 64), weight)
"""


def test_two_processes_killed_while_they_record(tmp_path: Path) -> None:
    """Each has a file that reads whole, wherever the kill came."""
    env = environment({"GENKERN_TUNE_GEMM": "1", "GENKERN_RECORD_DIR": str(tmp_path / "recorded")})
    argv = [sys.executable, "-c", _PROGRAM]
    process = subprocess.Popen(argv, env=env, text=True, cwd=tmp_path, start_new_session=True)
    until(lambda: sum(path.stat().st_size > 2000 for path in tmp_path.glob("recorded/*.yaml")) == 2, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    found = [read_sizes(str(path), GemmDefaults(), "sm_90").problems for path in (tmp_path / "recorded").iterdir()]
    assert [len(each) > 5 for each in found] == [True, True]
    assert [len(set(each)) == len(each) for each in found] == [True, True]


def test_the_usual_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named one; else today's, or that of earlier releases where it alone is there."""
    monkeypatch.chdir(tmp_path)
    assert record_folder("~/x") == Path("~/x").expanduser()
    assert record_folder("") == Path("genkern_recorded")
    (tmp_path / "genkern_capture").mkdir()
    assert record_folder("") == Path("genkern_capture")
    (tmp_path / "genkern_recorded").mkdir()
    assert record_folder("") == Path("genkern_recorded")
