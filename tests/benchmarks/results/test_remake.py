"""All shipped results by one command: killed, stopped and gone on with, it writes what one run would have written."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from command import environment
from long_tests import long_only
from machines import machine
from processes import until
from tiny_space import CONFIGS, EVERYTHING, tiny_command
from winner_factory import winner, write_results

from benchmarks.results import remake
from benchmarks.results.wanted import device_here, read_wanted
from genkern.files.file_kind import read_results
from genkern.files.sizes import GemmDefaults, read_sizes
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.ops.accumulate import is_full
from genkern.result.result import Result

ROOT = Path(__file__).parents[3]
DEVICE = "NVIDIA H200"
GPU = gpu_for_arch("sm_90")
FILES = {"first.yaml": (16, 32), "second.yaml": (32, 64)}
SAID = """h200:
  device: NVIDIA H200
  arch: sm_90
  options: --compare
  files:
    first.yaml:
      sizes: [sizes/first.yaml]
    second.yaml:
      sizes: [sizes/second.yaml]
"""


class Project:
    """A folder with results to remake, tuned on a machine whose GPU always says the same times."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.shipped = folder / "results" / "h200"
        self.done = folder / "done"
        self.log = folder / "log"
        (folder / "sizes").mkdir(parents=True)
        self.shipped.mkdir(parents=True)
        (folder / "results" / "provenance.yaml").write_text(SAID)
        for name, rows in FILES.items():
            (folder / "sizes" / name).write_text("".join(f"- {{'M': {m}, 'N': 128, 'K': 256}}\n" for m in rows))
        self.own = [
            *("--results", str(folder / "results"), "--device", "h200"),
            *("--folder", str(self.done), "--commit", "abc1234"),
        ]
        self._genkern = [*tiny_command(folder, cache, "")[4:], *EVERYTHING]

    def start(self, *options: object, **what: object) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "benchmarks.results.remake", *self.own, *options, "--", *self._genkern]
        return subprocess.Popen(
            list(map(str, argv)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment(machine(self.folder, gpus=1, log=str(self.log), **what)),
        )

    def run(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
        """Undisturbed, in this process: how it ends and what it says."""
        capsys.readouterr()
        env = environment(machine(self.folder, gpus=1, log=str(self.log)))
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        hook = threading.excepthook
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            # Measured processes are given the path of this one.
            patch.setattr(sys, "path", [*env["PYTHONPATH"].split(os.pathsep), *sys.path])
            status = remake.main([*self.own, "--", *map(str, self._genkern)])
        threading.excepthook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)
        return status, capsys.readouterr().out

    def stopped(self, measurement: int, number: signal.Signals) -> tuple[int, str]:
        """How it ends when this signal meets it at this measurement, and what it says."""
        self.log.unlink(missing_ok=True)
        process = self.start(gate=[measurement, str(self.folder / "never")])
        until(lambda: self.log.exists() and "gate" in self.log.read_text(), process)
        process.send_signal(number)
        said, _ = process.communicate(timeout=120)
        return process.returncode, said

    def screened(self) -> int:
        return self.log.read_text().count("screen") if self.log.exists() else 0

    def texts(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.shipped.iterdir()}


@long_only("kills many runs of a script")
def test_killed_and_stopped_it_writes_the_same_bytes(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one undisturbed run, which tunes a size that two files share once; a shipped file is whole or not there."""
    one = Project(tmp_path / "one", cache_dir)
    status, said = one.run(capsys)
    assert status == 0, said
    assert "3 of 3 sizes are done, 2 files written" in said
    assert one.screened() == 3 * 8
    rows = list(csv.DictReader(one.texts()["made.csv"].splitlines()))
    assert [(row["file"], row["rows"], row["commits"], row["command"]) for row in rows] == [
        (name, str(len(sizes)), "abc1234", "remake") for name, sizes in FILES.items()
    ]

    other = Project(tmp_path / "other", cache_dir)
    assert other.stopped(12, signal.SIGKILL)[0] == -signal.SIGKILL
    assert other.texts() == {}
    status, said = other.stopped(9, signal.SIGTERM)
    # In the third size: the first file is whole by then.
    assert status == 130, said
    assert "2 of 3 sizes are done, 1 files written" in said
    assert "second.yaml lacks 1" in said
    assert set(other.texts()) == {"first.yaml", "made.csv"}
    status, said = other.run(capsys)
    assert status == 0, said
    assert other.texts() == one.texts()


def test_a_run_stops_when_its_time_limit_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time of --limit_s is over genkern is stopped as by a signal."""
    project = Project(tmp_path, tmp_path)
    stopped = []

    def waits(argv: list[str]) -> int:
        before = signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
        started_s = time.monotonic()
        while not stopped and time.monotonic() - started_s < 30:
            time.sleep(0.001)
        signal.signal(signal.SIGTERM, before)
        return 130

    monkeypatch.setattr(remake, "genkern", waits)
    assert remake.main([*project.own, "--limit_s", "8.1"]) == 130
    assert stopped == [signal.SIGTERM]


def test_what_is_left_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By file, and in all with each size once; an unknown file is refused."""
    project = Project(tmp_path, tmp_path)
    write_results(project.done / "abc1234.yaml", [of_size(16)])
    write_results(project.done / "abc1234_1.yaml", [of_size(32)])
    # Another commit's count where genkern still generates their kernel.
    write_results(project.done / "0000001.yaml", [of_today(64), of_size(16)])
    write_results(project.done / "0000002.yaml", [of_size(64, source="0123456789abcdef")])
    (project.done / "runs.csv").write_text("commit,date,command\n0000002,2026-01-01,\n0000001,2026-01-02,\n")
    assert remake.main([*project.own, "--list"]) == 0
    said = capsys.readouterr().out
    assert "| first.yaml | 2 | 2 | 0 | abc1234 |" in said
    assert "| second.yaml | 2 | 2 | 0 | 0000001, abc1234 |" in said
    assert remake.main([*project.own, "--list", "--anew"]) == 0
    assert "| all, each once | 3 | 2 | 1 | abc1234 |" in capsys.readouterr().out
    (project.done / "0000001.yaml").unlink()
    assert remake.main([*project.own, "--list"]) == 0
    assert "| all, each once | 3 | 2 | 1 | abc1234 |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        remake.main([*project.own, "--first", "third"])
    assert "--first third: there is no such file; there are first, second" in capsys.readouterr().err


def test_files_are_written_whole_or_partly_if_asked(tmp_path: Path) -> None:
    """With --partly what lacks keeps its row, and the file's commits are of both; rows of another device count not."""
    project = Project(tmp_path, tmp_path)
    write_results(project.shipped / "second.yaml", [of_size(64, 9.0)])
    (project.shipped / "made.csv").write_text(
        "file,rows,commits,dates,command,remark\nsecond.yaml,1,0000002,2026-01-01,tune,long ago\n"
    )
    write_results(project.done / "abc1234.yaml", [of_size(32, 7.0), of_size(64, 1.0, device="NVIDIA H100")])
    before = project.texts()
    assert remake.main([*project.own, "--write"]) == 0
    assert project.texts() == before
    assert remake.main([*project.own, "--write", "--partly"]) == 0
    rows = {row.problem.M: row.duration_us for row in read_results(str(project.shipped / "second.yaml"))}
    assert rows == {32: 7.0, 64: 9.0}
    made = csv.DictReader(project.texts()["made.csv"].splitlines())
    assert [(row["file"], row["rows"], row["commits"]) for row in made] == [
        ("first.yaml", "1", "abc1234"),
        ("second.yaml", "2", "0000002 abc1234"),
    ]


def test_rows_of_older_kernels_go_where_new_ones_come(tmp_path: Path) -> None:
    """Each size is in one place; a file of older/ that has no other size goes, and those of other sizes stay."""
    project = Project(tmp_path, tmp_path)
    for name, rows in {"second": (32, 64), "mixed": (16, 64), "other": (128,)}.items():
        write_results(project.shipped / "older" / f"{name}.yaml", [of_size(m, 9.0) for m in rows])
    write_results(project.done / "abc1234.yaml", [of_size(32, 7.0), of_size(64, 1.0)])
    assert remake.main([*project.own, "--write"]) == 0
    older = (project.shipped / "older").glob("*.yaml")
    assert {path.stem: [row.problem.M for row in read_results(str(path))] for path in older} == {
        "mixed": [16],
        "other": [128],
    }
    assert [row.duration_us for row in read_results(str(project.shipped / "second.yaml"))] == [7.0, 1.0]


def test_a_run_begins_anew_beside_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --aside: its rows count, and its journals stay to be recorded; so does that of a run that ended."""
    project = Project(tmp_path, tmp_path)
    results = project.done / "abc1234.yaml"
    write_results(results, [of_size(16)])
    (project.done / "abc1234.yaml.journal").write_text("of the first")
    lists = []

    def ends(argv: list[str]) -> int:
        lists.append([problem.M for problem in read_sizes(argv[1], GemmDefaults(), "sm_90").problems])
        (project.done / "abc1234.yaml.journal.previous").write_text(f"of run {len(lists)}")
        return 0

    monkeypatch.setattr(remake, "genkern", ends)
    assert remake.main([*project.own, "--aside"]) == 0
    assert remake.main([*project.own, "--first", "second"]) == 0
    # What was set aside is not tuned again.
    assert lists == [[32, 64], [32, 64]]
    kept = {path.name: path.read_text() for path in project.done.glob("*.journal*")}
    assert kept == {
        "abc1234_1.yaml.journal": "of the first",
        "abc1234_2.yaml.journal.previous": "of run 1",
        "abc1234.yaml.journal.previous": "of run 2",
    }
    runs = list(csv.DictReader((project.done / "runs.csv").read_text().splitlines()))
    assert [run["commit"] for run in runs] == ["abc1234"] * 2
    assert runs[0]["command"].startswith("genkern -i ")


def test_what_is_wanted_here_can_be_read() -> None:
    """results/provenance.yaml: every file has sizes, the models' 366 first, which share them with the anchors."""
    wanted = read_wanted(ROOT / "results", "nvidia_h200")
    models = wanted.problems_of([name for name in wanted.files if "_tp" in name])
    assert len(set(models)) == 366
    assert set(wanted.problems[:366]) == set(models)
    assert set(wanted.files["anchors_bf16.yaml"]) < set(models)
    assert all(wanted.files.values())


def test_lists_of_fast_sums_are_wanted_with_full_ones_too() -> None:
    """A list that says nothing of sums is read as provenance.yaml says, and gives the same sizes."""
    wanted = read_wanted(ROOT / "results", "nvidia_h100")
    full, fast = wanted.files["a8w8_full.yaml"], wanted.files["a8w8_fast.yaml"]
    assert [is_full(problem) for problem in (*full, *fast)] == [True] * len(full) + [False] * len(fast)
    assert [problem.size for problem in full] == [problem.size for problem in fast]


def test_results_are_of_the_device_that_is_here() -> None:
    """By the name that its driver gives; without one of these, of the first that is wanted."""
    results = ROOT / "results"
    assert device_here(results, "NVIDIA H100 80GB HBM3") == "nvidia_h100"
    assert device_here(results, "NVIDIA H200") == device_here(results, "") == "nvidia_h200"


def of_size(m: int, us: float = 10.0, device: str = DEVICE, **changes: object) -> Result:
    problem = GemmProblem(m, 128, 256)
    return replace(winner(us=us, device=device, arch="sm_90", config=CONFIGS[0], **changes), problem=problem)


def of_today(m: int) -> Result:
    made = of_size(m)
    return replace(made, source=generate(made.problem, [made.config], "sm_90", GPU).source_digest(made.config, GPU))


def test_what_is_shipped_counts_without_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of files that were made so, where genkern still generates their kernels; other files have their sizes of them."""
    project = Project(tmp_path, tmp_path)
    write_results(project.shipped / "first.yaml", [of_today(16), of_today(32)])
    write_results(project.shipped / "second.yaml", [of_today(64)])
    (project.shipped / "made.csv").write_text(
        "file,rows,commits,dates,command,remark\nfirst.yaml,2,0000001 0000002,2026-01-01,remake,\n"
        "second.yaml,1,0000002,2026-01-01,tune,\n"
    )
    assert remake.main([*project.own, "--list"]) == 0
    said = capsys.readouterr().out
    assert "| first.yaml | 2 | 2 | 0 | 0000001 0000002 |" in said
    assert "| second.yaml | 2 | 1 | 1 | 0000001 0000002 |" in said
    write_results(project.done / "abc1234.yaml", [of_size(64, 7.0)])
    assert remake.main([*project.own, "--write"]) == 0
    made = csv.DictReader(project.texts()["made.csv"].splitlines())
    assert [row["commits"] for row in made] == ["0000001 0000002", "0000001 0000002 abc1234"]
