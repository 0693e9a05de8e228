"""Proofs are kept as they are made: a pack that was stopped asks only for what it had not proved."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from computing_gpu import planned, planned_row
from proving import H200, written

from genkern.errors import ProfilerError
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check
from genkern.packing.proof_store import ProofStore
from genkern.packing.prover import Proofs, Prover, Sessions
from genkern.runtime.bundles.bundle import Bundle, read_bundle, write_bundle
from genkern.timing.session import Session

RIGHT = Check("c", True, 0.0, 0.0, "size", "gpu")
WRONG = Check("c", False, 1.0, 1.0, "size", "gpu", "C[0, 0] is 1, expected 2")


@dataclass
class Device:
    """Answers checks; `lost_after` checks the device is lost."""

    lost_after: int = 1000
    wrong_m: int = 0
    asked: list[tuple[int, int]] = field(default_factory=list)

    def check_request(self, session: Session, name: str, request: dict[str, Any]) -> Check:
        if len(self.asked) == self.lost_after:
            raise ProfilerError("the device is lost")
        self.asked.append((session.problem.N, session.problem.M))
        return WRONG if self.wrong_m == session.problem.M else RIGHT


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    made, _ = planned([planned_row(GemmProblem(128, n, 256)) for n in (128, 192)])
    return read_bundle(str(written(made, tmp_path / "b.genkern")))


def prove(bundle: Bundle, device: Device, folder: Path, **more: Any) -> Proofs:
    store = ProofStore(folder / "proofs.txt")
    sessions = Sessions("sm_90", 0, folder)
    return Prover(device, sessions, bundle, bundle.where, H200.name, lambda line: None, store=store, **more).prove()


def test_a_stopped_pack_goes_on_where_it_was(bundle: Bundle, tmp_path: Path) -> None:
    whole = Device()
    (tmp_path / "other").mkdir()
    prove(bundle, whole, tmp_path / "other")
    stopped, rest, again = Device(lost_after=5), Device(), Device()
    assert prove(bundle, stopped, tmp_path).ended
    proofs = prove(bundle, rest, tmp_path)
    assert stopped.asked + rest.asked == whole.asked
    assert proofs.contents.proofs == (4, 4)
    assert prove(bundle, again, tmp_path).contents == proofs.contents
    assert again.asked == []


def test_all_are_proved_again_if_asked_for(bundle: Bundle, tmp_path: Path) -> None:
    first, again = Device(), Device()
    prove(bundle, first, tmp_path)
    prove(bundle, again, tmp_path, again=True)
    assert again.asked == first.asked


def test_a_failed_check_is_not_kept(bundle: Bundle, tmp_path: Path) -> None:
    first, again = Device(wrong_m=128), Device(wrong_m=128)
    assert prove(bundle, first, tmp_path).wrong == prove(bundle, again, tmp_path).wrong > 0
    assert (128, 128) in again.asked


def test_other_machine_code_plan_or_device_is_proved_anew(bundle: Bundle, tmp_path: Path) -> None:
    first = Device()
    prove(bundle, first, tmp_path)
    winner = bundle.winners[0]
    call = winner.calls[0]
    image = b"other code"
    sha256 = hashlib.sha256(image).hexdigest()
    old = call.binaries[0]
    other_code = replace(call, binaries=(sha256, *call.binaries[1:]))
    binaries = {**bundle.contents.binaries, sha256: replace(bundle.contents.binaries[old], sha256=sha256)}
    images = {name: bundle.image(name) for name in bundle.contents.binaries} | {sha256: image}
    other_plan = replace(call, plan=replace(call.plan, workspace_dtype="bf16"))
    for changed in (
        winner.with_calls((other_code, *winner.calls[1:])),
        winner.with_calls((other_plan, *winner.calls[1:])),
        replace(winner, compute_units=winner.compute_units + 1),
    ):
        path = str(tmp_path / "changed.genkern")
        contents = replace(bundle.contents, winners=(changed, *bundle.winners[1:]), binaries=binaries)
        write_bundle(path, contents, images)
        device = Device()
        prove(read_bundle(path), device, tmp_path)
        assert device.asked
        assert set(device.asked) <= {asked for asked in first.asked if asked[0] == winner.problem.N}
        os.remove(path)


@pytest.mark.parametrize("how", ["group", "link", "pipe", "torn", "folder"])
def test_a_file_that_cannot_be_trusted_or_read_proves_nothing(how: str, bundle: Bundle, tmp_path: Path) -> None:
    first = Device()
    prove(bundle, first, tmp_path)
    path = tmp_path / "proofs.txt"
    if how == "group":
        path.chmod(0o664)
    elif how == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif how == "torn":
        path.write_bytes(b"".join(line[:-2] + b"\n" for line in path.read_bytes().splitlines(keepends=True)))
    else:
        path.unlink()
        os.mkfifo(path) if how == "pipe" else path.mkdir()
    device = Device()
    assert prove(bundle, device, tmp_path).contents.proofs == (4, 4)
    assert device.asked == first.asked
