"""Tests of genkern.packing.verification: `genkern verify` as a user runs it, with processes in the place of a GPU's."""

from __future__ import annotations

import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from proving import H200, bundle_of, fake_server, named, written
from rich.console import Console

from genkern.errors import InputError, OutputError
from genkern.gemm.gpus import DetectedDevice
from genkern.packing import verification
from genkern.packing.verification import parse_verify, run_verify
from genkern.runtime.bundles.bundle import read_bundle


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One H200."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verification, "detect_devices", lambda: [H200])
    monkeypatch.setattr(verification, "server_on", lambda device, cache, log: fake_server(tmp_path))
    monkeypatch.setattr(verification, "installed", lambda package: True)


def verified(*arguments: str) -> tuple[int, str]:
    """The status, and what is said."""
    console = Console(file=StringIO(), width=500)
    status = run_verify(parse_verify([*arguments, "--cache_dir", "cache"]), console)
    return status, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_bundle_is_proved_and_timed_where_it_lies(tmp_path: Path) -> None:
    """What is wrong or slower is left to the library; a second time there is nothing to prove, and nothing changes."""
    path = written(bundle_of(named("good"), named("check_wrong"), named("good", 20)), tmp_path / "b.genkern")
    status, said = verified("b.genkern")
    assert status == 1
    assert "left out: 128x192x256 check_wrong_BM8" in said
    assert "proved: 2 of 2 calls and kernels, in " in said
    assert "timed: 2 winners, 1 of them left to the library, in " in said
    bundle = read_bundle(str(path))
    assert [winner.choice for winner in bundle.winners] == ["config", "vendor", "vendor"]
    assert [call.proved for winner in bundle.winners for call in winner.calls] == [(128,)]
    assert len(bundle.contents.binaries) == 1
    assert dict(bundle.winners[0].versions)["driver"] == "999.1"
    before = path.read_bytes(), os.stat(path).st_mtime_ns
    status, said = verified("b.genkern")
    assert status == 0
    assert "b.genkern stays as it is" in said
    assert (path.read_bytes(), os.stat(path).st_mtime_ns) == before


def test_what_is_asked_for_alone(tmp_path: Path) -> None:
    """Proofs, times, or a look; in another file, which no other file may be."""
    path = written(bundle_of(named("good"), named("good", 20)), tmp_path / "b.genkern")
    before = path.read_bytes()
    status, said = verified("b.genkern", "--dry_run")
    assert (status, path.read_bytes()) == (1, before)
    assert "nothing is written" in said
    assert verified("b.genkern", "--only_proofs", "-o", "proved.genkern")[0] == 0
    proved = read_bundle("proved.genkern")
    assert (proved.contents.proofs, [winner.choice for winner in proved.winners]) == ((2, 2), ["config"] * 2)
    status, said = verified("b.genkern", "--only_times", "-o", "timed.genkern")
    assert status == 1
    assert "proved" not in said
    assert [winner.choice for winner in read_bundle("timed.genkern").winners] == ["config", "vendor"]
    assert path.read_bytes() == before
    (tmp_path / "notes").write_text("notes")
    for output, more, why in (
        ("proved.genkern", [], "--overwrite replaces it"),
        ("notes", [], "--overwrite replaces it"),
        ("notes", ["--overwrite"], "is no bundle"),
    ):
        with pytest.raises(OutputError, match=why):
            verified("b.genkern", "-o", output, *more)
    assert (tmp_path / "notes").read_text() == "notes"
    with pytest.raises(InputError, match="leave nothing to do"):
        verified("b.genkern", "--only_proofs", "--only_times")


@pytest.mark.parametrize(
    ("devices", "more", "said"),
    [
        ([], [], "this machine has no GPU"),
        ([replace(H200, name="NVIDIA L4", arch="sm_89")], [], "this machine has GPU 0, NVIDIA L4"),
        ([H200], ["--gpu_id", "3"], "this machine has no GPU"),
    ],
)
def test_a_machine_that_it_is_not_for(
    tmp_path: Path, devices: list[DetectedDevice], more: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says what it is for, and what is here."""
    written(bundle_of(named("good")), tmp_path / "b.genkern")
    monkeypatch.setattr(verification, "detect_devices", lambda: devices)
    with pytest.raises(InputError) as error:
        verified("b.genkern", *more)
    assert str(error.value).startswith("b.genkern is for NVIDIA H200 (sm_90); ")
    assert said in str(error.value)


def test_a_process_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was proved until then is kept, and the rest says why not."""
    written(bundle_of(named("good")), tmp_path / "b.genkern")
    server = fake_server(tmp_path)
    monkeypatch.setattr(server._process, "_argv", ["false"])
    monkeypatch.setattr(verification, "server_on", lambda device, cache, log: server)
    before = Path("b.genkern").read_bytes()
    status, said = verified("b.genkern")
    assert status == 1
    assert "the proofs ended early: GPU 0 cannot be used" in said
    assert "timing ended early: GPU 0 cannot be used" in said
    assert Path("b.genkern").read_bytes() == before
