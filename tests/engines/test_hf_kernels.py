"""Tests of genkern.engines.hf_kernels against the real kernels package (make test-engines)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_winners import K, N

from genkern.engines import hf_kernels


def test_the_builds_of_the_folder_are_one() -> None:
    """One text for every device, and metadata that differ in the device alone."""
    builds = sorted(path for path in hf_kernels.FOLDER.iterdir() if path.name.startswith("torch-"))
    assert [build.name for build in builds] == ["torch-cpu", "torch-cuda", "torch-rocm"]
    texts = [tuple(hashlib.sha256((build / name).read_bytes()).hexdigest() for name in FILES) for build in builds]
    assert len(set(texts)) == 1
    for build in builds:
        said = json.loads((build / "metadata.json").read_text())
        assert (said["id"], said["backend"]["type"]) == (f"genkern_linear_{build.name[6:]}", build.name[6:])


FILES = "__init__.py", "layers.py"


def test_kernelize_gives_winners_to_layers_that_have_any(launched: Any, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package loads the folder, checks its layer, and calls it: by M, also compiled; others keep PyTorch's."""
    kernels = pytest.importorskip("kernels")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hf_kernels.register()
    hf_kernels.register()
    model = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False), torch.nn.Linear(N, K)).bfloat16().eval()
    before = [layer.forward for layer in model]
    x = torch.randn(16, K).bfloat16()
    with torch.no_grad():
        wanted = model(x)
        served = kernels.kernelize(model, mode=kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE, device="cpu")
        assert served[0].forward != before[0]
        launched()
        torch.testing.assert_close(served(x), wanted, rtol=0.05, atol=0.05)
        assert launched() == 1
        program = torch.compile(served[0], dynamic=True, fullgraph=True, backend="eager")
        for rows, launches in ((64, 1), (5000, 0)):
            program(torch.randn(rows, K).bfloat16())
            assert launched() == launches
        # Under autocast PyTorch casts.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            served[0](torch.randn(16, K))
        assert launched() == 0
    torch._dynamo.reset()


def test_layers_without_winners_or_of_another_class_are_left(gpu: Any) -> None:
    """kernelize asks of each."""

    class Other(torch.nn.Linear):
        pass

    assert hf_kernels.is_tuned(torch.nn.Linear(K, N, bias=False).bfloat16())
    assert not hf_kernels.is_tuned(torch.nn.Linear(K, 2 * N, bias=False).bfloat16())
    assert not hf_kernels.is_tuned(Other(K, N, bias=False).bfloat16())


def test_the_folder_is_in_the_package() -> None:
    """setup.cfg lists its files."""
    text = (Path(__file__).resolve().parents[2] / "setup.cfg").read_text()
    assert "hf_layers/*/*.py, hf_layers/*/*.json" in text
