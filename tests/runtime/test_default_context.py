"""Tests of genkern.runtime.process.default_context and model: what a process has that only its environment says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recording_gpu import FakeGpu

from genkern.ops.op import op_names
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.process import default_context
from genkern.runtime.process.default_context import Process


def test_a_bundle_that_the_environment_names_is_called(bundle: Bundle, bundle_path: str) -> None:
    """For its format, and by the variable of that format alone too."""
    for name in ("GENKERN_CONFIG", "GENKERN_CONFIG_A16W16", "AITER_CONFIG_GEMM_BF16"):
        gpu = FakeGpu()
        process = Process({name: bundle_path}, lambda index, gpu=gpu: gpu)  # type: ignore[misc]
        Gemm("a16w16", process.context)(torch.randn(100, 512).bfloat16(), torch.randn(256, 512).bfloat16())
        assert [launched.symbol.partition("_B")[0] for launched in gpu.driver.launched] == ["matmul_tiled_mask_m"]


def test_what_is_there_later_is_found_by_renew(bundle_path: str, tmp_path: Path) -> None:
    """A file that was missing costs one line; after renew() it counts."""
    gpu, path = FakeGpu(), tmp_path / "later.genkern"
    process = Process({"GENKERN_CONFIG": str(path)}, lambda index: gpu)
    gemm = Gemm("a16w16", process.context)
    given = torch.randn(100, 512).bfloat16(), torch.randn(256, 512).bfloat16()
    gemm(*given)
    assert not gpu.driver.launched
    path.write_bytes(Path(bundle_path).read_bytes())
    process.renew()
    gemm(*given)
    assert len(gpu.driver.launched) == 1


SCRIPT = """
import torch, genkern
from genkern import tuned_gemm

x, weight = torch.randn(3, 16), torch.randn(8, 16)
torch.testing.assert_close(tuned_gemm.gemm_a16w16(x, weight), x @ weight.T)
model = torch.nn.Sequential(torch.nn.Linear(16, 8))
with genkern.patch(model) as patch:
    assert patch.layers == ()
print(*genkern.report(model), sep="\\n")
print(dir(tuned_gemm))
try:
    tuned_gemm.gemm_a3w5
except AttributeError as error:
    print(error)
"""


def test_a_program_without_a_gpu(tmp_path: Path) -> None:
    """Calls are the library's, layers stay as they are, and nothing is written."""
    env = {**os.environ, "GENKERN_CONFIG": "missing.genkern"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "0 [8, 16] float32 with bias: the library (not tuned)",
        str([*(f"gemm_{name}" for name in op_names()), "renew"]),
        "module 'genkern.tuned_gemm' has no attribute 'gemm_a3w5'",
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["default_context", "renew"])
def test_the_process_has_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made when it is first asked for, and stays."""
    monkeypatch.setattr(default_context, "_made", None)
    getattr(default_context, name)()
    made = default_context._made
    assert made is not None
    assert default_context.default_context() is made.context


@pytest.mark.parametrize("kind", ["missing", "word", "damaged", "folder", "pipe", "results"])
def test_a_deployment_is_rehearsed_without_a_gpu(
    kind: str, bundle_path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first call warns of what the environment names and cannot be used, once, and goes on; nothing is packed."""
    path = tmp_path / "winners.genkern"
    if kind == "damaged":
        path.write_bytes(Path(bundle_path).read_bytes()[:-1])
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "results":
        path = tmp_path / "tuned.yaml"
        path.write_text("- {M: 16, N: 64, K: 64, nothing: 1}\n")
    environ = {"GENKERN_CONFIG": "shippd" if kind == "word" else f"{bundle_path}:{path}"}
    gemm = Gemm("a16w16", Process(environ, lambda index: None).context)
    for m in (3, 5, 3):
        x, weight = torch.randn(m, 16), torch.randn(8, 16)
        assert gemm(x, weight).equal(torch.nn.functional.linear(x, weight))
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING" and bundle_path not in each.msg]
    (line,) = [each for each in said if not each.startswith(bundle_path)]
    assert ("shipped" if kind == "word" else path.name) in line


def test_a_rehearsal_names_the_devices_of_the_winners(bundle_path: str, caplog: pytest.LogCaptureFixture) -> None:
    """So that a bundle for another GPU than that of the deployment is seen."""
    caplog.set_level("INFO", "genkern")
    gemm = Gemm("a16w16", Process({"GENKERN_CONFIG": bundle_path}, lambda index: None).context)
    gemm(torch.randn(3, 16), torch.randn(8, 16))
    (line,) = [each for each in caplog.messages if "this machine has no GPU" in each]
    assert "NVIDIA H200 (sm_90)" in line
    assert "MI300X" in line
