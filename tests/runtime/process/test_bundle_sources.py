"""Where winners come from: bundles and results are read, results are packed once, and no file can stop a call."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command import environment
from library_rows import Card, library_rows, problem, sizes_in
from proving import bundle_of, written

from genkern.errors import ResultsError
from genkern.packing.proof import trimmed
from genkern.runtime.calls.context import Context
from genkern.runtime.process import bundle_sources, genkern_command
from genkern.runtime.process.bundle_sources import Sources


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one test has packed, another one finds."""
    return tmp_path_factory.mktemp("own")


@pytest.fixture
def own(said: list[str], folder: Path) -> Sources:
    return Sources(said.append, lambda: folder)


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is packed from here on fails the test."""

    def pack(*_: object, **__: object) -> int:
        raise AssertionError("a process is started")

    monkeypatch.setattr(bundle_sources, "pack", pack)


def test_results_are_packed_once(said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results become a bundle, which is there for whoever reads them after that, under any name, and then needs no
    process; nothing else stays behind.
    """
    own = Sources(said.append, lambda: tmp_path / "own")
    results = library_rows(tmp_path / "r.yaml", [16, 64])
    assert sizes_in(own.bundles([str(results)])) == [16, 64]
    monkeypatch.setattr(bundle_sources, "pack", None)
    results.rename(tmp_path / "other.yaml")
    again = Sources(said.append, lambda: tmp_path / "own")
    assert sizes_in(again.bundles([str(tmp_path / "other.yaml")])) == [16, 64]
    assert said == []
    (made,) = (tmp_path / "own" / "bundles").iterdir()
    assert sizes_in(again.bundles([str(made)])) == [16, 64]


def test_another_compiler_packs_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be compiled before CuTe DSL was installed is not left out for good."""
    results, made = library_rows(tmp_path / "r.yaml", [16]), []
    monkeypatch.setattr(bundle_sources, "pack", lambda copy, to, *_: made.append(to) or to.write_bytes(b""))
    for installed in (False, True, True):
        monkeypatch.setattr(bundle_sources, "cute_installed", lambda installed=installed: installed)
        Sources(lambda line: None, lambda: tmp_path / "own").bundles([str(results)])
    assert made[0] != made[1] == made[2]


def test_damaged_bundle_of_results_is_made_again(own: Sources, said: list[str], tmp_path: Path, folder: Path) -> None:
    """A half file in the cache's folder costs a packing."""
    results = library_rows(tmp_path / "r.yaml", [16])
    own.bundles([str(results)])
    for made in (folder / "bundles").iterdir():
        made.write_bytes(made.read_bytes()[:-1])
    assert sizes_in(Sources(said.append, lambda: folder).bundles([str(results)])) == [16]
    assert said == []


@pytest.mark.usefixtures("no_process")
def test_files_that_cannot_be_used(own: Sources, said: list[str], tmp_path: Path) -> None:
    """A file that is missing, a folder, a pipe, no results, or of another library is said in one line, once."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "damaged.genkern").write_bytes(b"PK\3\4 nothing")
    (tmp_path / "text.yaml").write_text("hello")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\0\xfe")
    (tmp_path / "aiter.csv").write_text(
        "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,"
        "tflops,bw\ngfx950,256,1,100,5120,False,torch.bfloat16,torch.bfloat16,False,False,asm,0,0,24.2594,auto,0.0,"
        "0.04,42.64\n"
    )
    names = ["missing.yaml", "folder", "pipe", "damaged.genkern", "text.yaml", "binary.yaml", "aiter.csv"]
    for _ in range(2):
        assert own.bundles([str(tmp_path / name) for name in names]) == []
    assert [name for name, line in zip(names, said, strict=True) if name not in line or "\n" in line] == []


@pytest.mark.usefixtures("no_process")
def test_what_is_unproved_is_said_once(own: Sources, said: list[str], tmp_path: Path) -> None:
    """Of a bundle that somebody named, with who proves it; nothing of one that is proved, or that has no kernels."""
    made = bundle_of("one", "two")
    one, two = made.winners
    proved = [each.with_calls((replace(each.calls[0], proved=(128,)),)) for each in (one, two)]
    library = [replace(each, choice="vendor").with_calls(()) for each in (one, two)]
    paths = []
    for number, winners in enumerate(([one, proved[1]], proved, library)):
        contents = trimmed(replace(made.contents, winners=tuple(winners)))
        paths.append(str(written(replace(made, contents=contents), tmp_path / f"{number}.genkern")))
    for _ in range(2):
        assert len(own.bundles(paths)) == 3
    (line,) = said
    assert line.endswith(
        "0.genkern: 1 of 2 kernels have no proof for M that were not tuned: `genkern verify` proves them on their GPU, "
        "GENKERN_ONLY_PROVED=1 leaves them to the library"
    )
    # What is tuned online says nothing.
    os.chmod(tmp_path, 0o700)
    assert len(Sources(said.append, lambda: tmp_path, named=False).bundles(paths)) == 3
    assert len(said) == 1


def test_an_unusable_file_does_not_cost_the_others(own: Sources, said: list[str], tmp_path: Path) -> None:
    """A file that cannot be used takes none of the others along, nor what was good in one that fails to be packed."""
    good = library_rows(tmp_path / "good.yaml", [16])
    assert sizes_in(own.bundles([str(tmp_path / "missing"), str(good), str(good)])) == [16]
    assert len(said) == 1


def test_changes_are_seen_by_renew(own: Sources, said: list[str], tmp_path: Path) -> None:
    """A context finds what has come since when it is renewed, and not before."""
    results = tmp_path / "r.yaml"
    context = Context(lambda op: own.bundles([str(results)]), lambda index: Card())  # type: ignore[arg-type,return-value]
    found = [context.find(Card(), problem(16)).exact]  # type: ignore[arg-type]
    library_rows(results, [16])
    found.append(context.find(Card(), problem(16)).exact)  # type: ignore[arg-type]
    context.renew()
    found.append(context.find(Card(), problem(16)).exact)  # type: ignore[arg-type]
    assert found == [False, False, True]
    assert len(said) == 1


def test_of_two_rows_the_faster(own: Sources, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lists add up; where two files have one problem the faster row counts, and one line says of how many it is so."""
    paths = [library_rows(tmp_path / "a.yaml", [16]), library_rows(tmp_path / "b.yaml", [16, 64], us=5.0)]
    caplog.set_level("INFO", "genkern")
    context = Context(lambda op: own.bundles(list(map(str, paths))), lambda index: Card())  # type: ignore[arg-type,return-value]
    assert all(context.find(Card(), problem(m)).exact for m in (16, 64))  # type: ignore[arg-type]
    assert [line for line in caplog.messages if "two winners" in line] == [
        "problems of a16w16 with two winners (the faster one is called): 1"
    ]


@pytest.mark.usefixtures("no_process")
def test_without_triton(own: Sources, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results cannot be packed there, and one line says what to do; bundles are read."""
    monkeypatch.setattr(bundle_sources, "installed", lambda package: package != "triton")
    assert own.bundles([str(library_rows(tmp_path / "r.yaml", [16]))]) == []
    assert ["Triton" in line for line in said] == [True]


def test_packing_that_fails(said: list[str], tmp_path: Path) -> None:
    """What the command says of results that it cannot pack is said of their own file; nothing stays behind."""
    own = Sources(said.append, lambda: tmp_path / "own")
    results = library_rows(tmp_path / "r.yaml", [16], choice="config", time_source="predicted")
    assert own.bundles([str(results)]) == []
    assert ["nothing to pack" in line and "r.yaml: " in line for line in said] == [True]
    assert list((tmp_path / "own" / "bundles").iterdir()) == []


def test_a_folder_that_cannot_be_written(said: list[str], tmp_path: Path) -> None:
    """One line names the variable."""
    (tmp_path / "own").write_text("a file")
    own = Sources(said.append, lambda: tmp_path / "own")
    assert own.bundles([str(library_rows(tmp_path / "r.yaml", [16]))]) == []
    assert ["GENKERN_CACHE_DIR" in line for line in said] == [True]


_RANK = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
from genkern.runtime.process.bundle_sources import Sources
print(len(Sources(print).bundles([sys.argv[1]])[0].winners))
"""


def test_ranks_pack_once(tmp_path: Path) -> None:
    """Of two processes that come at once with the same results one packs, and both have the bundle."""
    results = library_rows(tmp_path / "r.yaml", [16])
    env = environment({"GENKERN_CACHE_DIR": str(tmp_path / "own")})
    ranks = [
        subprocess.Popen([sys.executable, "-c", _RANK, str(results)], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [rank.communicate(timeout=60)[0].splitlines() for rank in ranks]
    assert [lines[-1] for lines in said] == ["1", "1"]
    assert sum("was packed" in line for lines in said for line in lines) == 1


def test_a_command_runs_nothing_of_the_folders_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that lies where its results go, or where the program is, has a name that genkern imports: it stays
    unread, and what the environment names is what it names here.
    """
    for folder in (tmp_path, tmp_path / "program"):
        folder.mkdir(exist_ok=True)
        for name in ("rich", "genkern", "yaml", "ctypes"):
            (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path / "program")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", *sys.path[1:]]))
    monkeypatch.setenv("GENKERN_CACHE_DIR", "own")
    command = genkern_command.GenkernCommand(["status", "missing.yaml"], tmp_path / "log")
    assert command.wait(60) == 2
    assert command.last_line.startswith("missing.yaml: no such file")
    assert not (tmp_path / "executed").exists()
    made = genkern_command._environment()
    assert made["GENKERN_CACHE_DIR"] == str(tmp_path / "program" / "own")
    assert all(os.path.isabs(part) for part in made["PYTHONPATH"].split(os.pathsep))


def test_command_ends_with_its_line(tmp_path: Path) -> None:
    """genkern as a process of its own: its status, and the line in which it refuses, whatever the folder."""
    command = genkern_command.GenkernCommand(["pack", "missing.yaml", "-o", "x"], tmp_path / "log", nice=True)
    assert command.wait(60) == 2
    assert command.last_line.startswith("missing.yaml: no such file")
    with pytest.raises(ResultsError, match="no such file"):
        genkern_command.pack(tmp_path / "missing.yaml", tmp_path / "x", tmp_path, tmp_path / "log")


def test_a_path_that_is_no_file_may_be_meant_for_another(own: Sources, said: list[str], tmp_path: Path) -> None:
    """The word for installed winners, or a file beside it."""
    (tmp_path / "winners.genkern").touch()
    assert own.bundles(["shippd", str(tmp_path / "winner.genkern"), str(tmp_path / "nowhere" / "x")]) == []
    assert ["shipped" in said[0], str(tmp_path / "winners.genkern") in said[1], "mean" in said[2]] == [
        True,
        True,
        False,
    ]
