"""Tests of genkern.cluster.lab_node: a share on a machine with stand-ins for GPUs, without a cluster."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_page import Lab
from processes import until
from tiny_space import traced

import genkern
from genkern.cluster import lab_node
from genkern.cluster.lab_node import LabResult, LabTask
from genkern.gemm.gpus import DetectedDevice

# A process of its own, since its environment is the machine.
_PROGRAM = (
    "import sys; from genkern.cluster.lab_node import tune_on_free_gpu as tuned_here; print(tuned_here(sys.argv[1]))"
)


def begin(lab: Lab, *options: str, arch: str = "sm_90") -> subprocess.Popen[str]:
    share = LabTask(
        arch, (lab.at / "sizes.yaml").read_text(), ("--space", f"{lab.at}/space.yaml", *options), "topic", 7
    )
    command = [sys.executable, "-c", _PROGRAM, share.text()]
    return subprocess.Popen(command, env=lab.environment, cwd=lab.at, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(not os.environ.get("GENKERN_CLUSTER_TESTS"), reason="make test-cluster")
def test_two_shares_have_two_gpus(tmp_path: Path) -> None:
    """Also those of two workers; the third finds none, as one for another architecture does. A worker that is killed
    takes its genkern along.
    """
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    lab = Lab(tmp_path / "lab", 1, gate=[1, str(gate)], trace=str(trace))
    with begin(lab) as one, begin(lab) as two:
        until(lambda: len(traced(trace)) == 2, one)
        for arch in ("sm_90", "gfx942"):
            with begin(lab, arch=arch) as third:
                done = LabResult.read(third.communicate(timeout=60)[0])
            assert (done.status, done.said) == (2, f"no free {arch} GPU is here")
        os.kill(two.pid, signal.SIGKILL)
        gate.touch()
        done = LabResult.read(one.communicate(timeout=60)[0])
    assert done.status == 0
    assert done.results.count("\n- ") == 1
    assert done.origin.startswith("GPU ")
    assert {event["device"] for event in traced(trace)} == {"0", "1"}
    with begin(lab, "--space", "gone.yaml") as refused:
        done = LabResult.read(refused.communicate(timeout=60)[0])
    assert done.status == 2
    assert "gone.yaml: no such space file" in done.said


def test_a_share_that_nobody_wants_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its genkern is stopped, which had found the modules of this process."""
    begun, program = tmp_path / "begun", tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$PYTHONPATH" > {tmp_path}/found\ntouch {begun}\nexec sleep 600\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "path", ["", "elsewhere", "/modules"])
    share = LabTask("sm_90", "", (), "topic", 1)
    done = lab_node._run(share, tmp_path, 0, lambda news: None, "here", lambda: not begun.exists())
    assert done.status == -signal.SIGTERM
    expected = f"{os.getcwd()}/elsewhere", "/modules", str(Path(genkern.__file__).parents[1])
    assert (tmp_path / "found").read_text().strip().split(os.pathsep) == [*expected]


def test_what_fails_with_a_gpu_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the GPU is free afterwards; a second one at a time has none."""
    found = [DetectedDevice(3, "NVIDIA H200", "sm_90", uuid="GPU-1")]
    monkeypatch.setattr(lab_node, "detect_devices", lambda: found)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail() -> None:
        with lab_node._gpu("sm_90") as index, lab_node._gpu("sm_90") as other:
            raise OSError(errno.ENOSPC, f"full: {index}, {other}")

    for _ in range(2):
        with pytest.raises(OSError, match="full: 3, None"):
            fail()


def test_what_is_said_is_read_as_data() -> None:
    share = LabTask("sm_90", "- {'M': 1}\n", ("--space", "a 'b'"), "topic", 3)
    assert LabTask.read(share.text()) == share
    done = LabResult(1, "text\n", "said", "GPU 0 of 'a'")
    assert LabResult.read(done.text()) == done
    for wrong in ("", "[]", "{}", '{"status": "x"}'):
        for read in (LabTask.read, LabResult.read):
            with pytest.raises((ValueError, TypeError, LookupError)):
                read(wrong)
