"""Tests of genkern.packing.command: `genkern pack` as a user runs it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from winner_factory import results_text, winner

from genkern.errors import GenkernError, OutputError
from genkern.gemm.gpus import DetectedDevice
from genkern.gemm.records import Check
from genkern.kernels.cute.release import cute_installed
from genkern.packing import command, prover
from genkern.packing.command import parse_pack, run_pack
from genkern.runtime.bundles.bundle import read_bundle, write_bundle
from genkern.runtime.bundles.records import Contents
from genkern.timing.session import Session

ROW = (
    "- {'M': %d, 'N': 256, 'K': 512, 'rowMajorA': 'T', 'rowMajorB': 'N', 'BLOCK_SIZE_M': 16, 'BLOCK_SIZE_N': 32, "
    "'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 1, 'SPLIT_K': %d, 'num_warps': 4, 'num_stages': 2, 'time_us': 10.0, "
    "'vendor_us': 12.0, 'time_source': '%s', 'arch': '%s', 'device': '%s', 'check': 'gpu', "
    "'versions': {'triton': '3.6.0'}}\n"
)
OF_CUTE = ROW.replace("'BLOCK_SIZE_M': 16", "'BLOCK_SIZE_M': 64").replace(
    "'num_warps': 4, 'num_stages': 2",
    "'num_warps': 8, 'num_stages': 4, 'family': 'cute_wgmma', 'schedule': 'ping_pong'",
)
H200, MI300X = ("sm_90", "NVIDIA H200"), ("gfx942", "AMD Instinct MI300X")


def genkern(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "genkern", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packing")
    (folder / "h200.yaml").write_text(ROW % (24, 1, "cudagraph", *H200) + ROW % (40, 4, "cudagraph", *H200))
    (folder / "mi300x.yaml").write_text(ROW % (24, 1, "rocprofv3", *MI300X))
    (folder / "predicted.yaml").write_text(ROW % (24, 1, "predicted", *H200))
    return folder


def test_results_of_two_architectures_become_one_bundle(folder: Path) -> None:
    """Compiled without a GPU, listed, and compiled no second time."""
    # As many compile processes as there are cores.
    command = ["pack", "h200.yaml", "mi300x.yaml", "-o", "both.genkern", "--cache_dir", "cache"]
    again = [*command, "--overwrite"]
    done = genkern(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "3 winners (2 a16w16 on sm_90, 1 a16w16 on gfx942), 6 binaries" in done.stdout
    first = (folder / "both.genkern").read_bytes()
    assert len(first) < 4 * 9000
    compiled = sorted((folder / "cache" / "binaries").glob("*/*"))
    assert genkern(*again, cwd=folder).returncode == 0
    assert (folder / "both.genkern").read_bytes() == first
    assert sorted((folder / "cache" / "binaries").glob("*/*")) == compiled
    listed = genkern("pack", "--list", "--wide", "both.genkern", cwd=folder)
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:-1]] == ["24x256x512", "40x256x512", "24x256x512"]
    split = next(winner for winner in read_bundle(str(folder / "both.genkern")).winners if winner.problem.M == 40)
    assert [launch.symbol.partition("_B")[0] for launch in split.calls[0].plan.launches] == [
        "matmul_tiled_split_mask_m",
        "reduce_splits",
    ]


@pytest.mark.skipif(cute_installed(), reason="CuTe DSL is installed")
def test_kernels_that_cannot_be_compiled_leave_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for all that fail alike, status 1, and a bundle in which the library's measured call serves them."""
    monkeypatch.chdir(folder)
    of_cute = OF_CUTE.replace("'vendor_us': 12.0", "'vendor_us': 12.0, 'vendor': 'torch'")
    rows = [of_cute % (m, 1, "cudagraph", *H200) for m in (64, 128, 192, 256)]
    (folder / "cute.yaml").write_text("".join(rows) + ROW % (24, 1, "cudagraph", *H200))
    console = Console(file=StringIO(), width=500)
    packed = ["cute.yaml", "-o", "cute.genkern", "--cache_dir", "cache", "--jobs", "1"]
    assert run_pack(parse_pack(packed), console) == 1
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said.count("not packed: ") == 1
    assert "256x256x512 cute_wgmma_" not in said
    assert "and 1 more: CuTe DSL is not installed" in said
    assert "for 4 of these, the library's measured call" in said
    winners = {winner.problem.M: winner for winner in read_bundle("cute.genkern").winners}
    assert [winners[m].choice for m in (24, 64, 128, 192, 256)] == ["config", *["vendor"] * 4]
    assert winners[64].duration_us == 12.0


@pytest.mark.skipif(cute_installed(), reason="CuTe DSL is installed")
def test_nothing_is_said_of_a_library_that_was_not_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be compiled is named, status 1, and the bundle has nothing of it."""
    monkeypatch.chdir(folder)
    of_cute = OF_CUTE.replace("'vendor_us': 12.0, ", "")
    (folder / "alone.yaml").write_text(of_cute % (64, 1, "cudagraph", *H200))
    console = Console(file=StringIO(), width=500)
    packed = ["alone.yaml", "-o", "alone.genkern", "--cache_dir", "cache"]
    assert run_pack(parse_pack(packed), console) == 1
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "not packed: 64x256x512 cute_wgmma_BM64_BN32_BK64_GM1_SK1_nW8_nS4_ping_pong: " in said
    assert "library" not in said
    assert read_bundle("alone.genkern").winners == ()


REFUSED = {
    ("pack", "predicted.yaml", "-o", "x.genkern"): "--predicted packs them",
    ("pack", "h200.yaml"): "name the bundle to write",
    ("pack", "missing.yaml", "-o", "x.genkern"): "missing.yaml: no such file",
    ("pack", "--list", "h200.yaml"): "h200.yaml is no bundle: `genkern pack RESULTS -o FILE` makes one",
    ("pack", "h200.yaml", "-o", "."): "is a folder",
    ("pack", "h200.yaml", "-o", "x", "--frob"): "--frob",
    ("pack", "h200.yaml", "-o", "x", "--jobs", "-1"): "'-1' is not a number of processes",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_be_packed_is_one_line(
    folder: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a user must put right is said in one line, and no file is written."""
    monkeypatch.chdir(folder)
    with pytest.raises(GenkernError) as error:
        run_pack(parse_pack(arguments[1:]), Console())
    assert REFUSED[arguments] in str(error.value)
    assert "\n" not in str(error.value)
    assert not (folder / "x.genkern").exists()


@pytest.mark.parametrize("kind", ["results", "zip", "text"])
def test_only_bundles_are_replaced(folder: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --overwrite nothing, with it what `genkern pack` wrote: never the results themselves, nor other files."""
    monkeypatch.chdir(tmp_path)
    results, target = tmp_path / "h200.yaml", tmp_path / ("h200.yaml" if kind == "results" else "x.genkern")
    results.write_bytes((folder / "h200.yaml").read_bytes())
    if kind == "zip":
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("word/document.xml", "a letter")
    elif kind == "text":
        target.write_text("notes")
    before = target.read_bytes()
    for more, said in (([], "--overwrite replaces it"), (["--overwrite"], "is no bundle")):
        with pytest.raises(OutputError, match=said):
            run_pack(parse_pack(["h200.yaml", "-o", target.name, *more]), Console())
        assert target.read_bytes() == before


def test_a_bundle_is_replaced_when_that_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged one too; an empty file has nothing to lose."""
    monkeypatch.chdir(folder)
    library = winner(16, arch="sm_90", device="NVIDIA H200", choice="vendor", time_source="cudagraph", vendor_us=9.0)
    (folder / "vendor.yaml").write_text(results_text([library], "vendor.yaml", 132))
    packed = ["vendor.yaml", "-o", "v.genkern", "--cache_dir", "cache", "--jobs", "1"]
    for before in (b"", empty_bundle()[:-9]):
        (folder / "v.genkern").write_bytes(before)
        with pytest.raises(OutputError, match="--overwrite replaces it"):
            run_pack(parse_pack(packed), Console(quiet=True))
        assert run_pack(parse_pack([*packed, "--overwrite"]), Console(quiet=True)) == 0
        assert len(read_bundle("v.genkern").winners) == 1


WRONG = Check("c", False, 1.0, 1.0, "size", "gpu", "exact inputs: C[0, 0] is 1, expected 2")


@dataclass
class Checks:
    """A GPU on which calls are right, but for those that begin at M = `wrong`."""

    wrong: int
    closed: bool = False

    def check_request(self, session: Session, name: str, request: dict[str, Any]) -> Check:
        if request.get("command") == "row_kernel":
            return replace(WRONG, passed=True)
        packed = request["packed"]
        bundle = read_bundle(packed["bundle"])
        call = bundle.winners[packed["winner"]].calls[packed["call"]]
        return WRONG if call.least_m == self.wrong else replace(WRONG, passed=True)

    def close(self) -> None:
        self.closed = True


def test_kernels_are_proved_where_their_gpu_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they lie in the bundle; what is wrong is named and left out, status 1. Nothing is proved elsewhere, or where
    somebody says so.
    """
    monkeypatch.chdir(folder)
    gpus = [DetectedDevice(3, "NVIDIA H200", "sm_90")]
    checks = Checks(0)
    monkeypatch.setattr(command, "detect_devices", lambda: gpus)
    monkeypatch.setattr(prover, "server_on", lambda device, cache, log: checks)

    def packed(*more: str) -> tuple[int, str, Contents]:
        console = Console(file=StringIO(), width=500)
        options = parse_pack(["h200.yaml", "-o", "p.genkern", "--cache_dir", "cache", "--overwrite", *more])
        status = run_pack(options, console)
        return status, console.file.getvalue(), read_bundle("p.genkern").contents  # type: ignore[attr-defined]

    status, said, contents = packed()
    calls = [call for winner in contents.winners for call in winner.calls]
    every = len(calls) + len(contents.row_kernels)
    assert (status, contents.proofs, checks.closed) == (0, (every, every), True)
    assert f"proved: {every} of {every} calls and kernels, in " in said
    checks.wrong = calls[-1].least_m
    assert packed()[0] == 0, "the machine code that was proved is not proved again"
    (folder / "cache" / "proofs.txt").unlink()
    status, said, contents = packed()
    assert status == 1
    assert "left out: " in said
    assert "C[0, 0] is 1, expected 2" in said
    assert contents.proofs[0] == contents.proofs[1] < every
    assert not [entry for entry in (folder / "cache" / "modules").iterdir() if list(entry.glob("*.genkern"))]
    for at, more in ((gpus, ["--no_proofs"]), ([], [])):
        monkeypatch.setattr(command, "detect_devices", lambda at=at: at)
        status, said, contents = packed(*more)
        assert (status, contents.proofs[1]) == (0, every)
        assert contents.proofs[0] < every
        assert "`genkern verify` on their GPU proves the others" in said


def empty_bundle() -> bytes:
    write_bundle("empty.genkern", Contents((), {}), {})
    return Path("empty.genkern").read_bytes()
