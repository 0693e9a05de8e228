"""Tests of genkern.engines.hf_kernels against the real kernels package (make test-engines)."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_winners import K, N

from genkern.engines import hf_kernels


def test_the_folder_has_a_build_for_each_backend() -> None:
    """Written once, and again where something else lies there; it is the layer of genkern that is installed."""
    folder = hf_kernels.folder()
    for device in ("cuda", "rocm", "cpu"):
        said = json.loads((folder / f"torch-{device}" / "metadata.json").read_text())
        assert (said["name"], said["backend"]["type"]) == ("genkern", device)
    place = folder / "torch-cpu" / "__init__.py"
    text = place.read_text()
    place.write_text("broken")
    assert hf_kernels.folder() == folder
    assert place.read_text() == text
    assert "layers_of()" in text


def test_linear_layers_that_are_anothers_stay_its(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is put there, and the one line says so."""
    package = SimpleNamespace(
        register_kernel_mapping=lambda mapping: pytest.fail("registered"),
        replace_kernel_forward_from_hub=lambda cls, layer_name, condition: pytest.fail("replaced"),
    )
    monkeypatch.setitem(sys.modules, "kernels", package)
    monkeypatch.setattr(torch.nn.Linear, "kernel_layer_name", "TheirLinear", raising=False)
    with caplog.at_level(logging.INFO, "genkern"):
        hf_kernels.register()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith("without genkern: nn.Linear has the kernel layer TheirLinear already")


def test_kernelize_gives_winners_to_layers_that_have_any(
    launched: Any, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package loads the folder, checks its layer, and calls it: by M, also compiled; others keep PyTorch's."""
    pytest.importorskip("kernels.layer")
    import kernels

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
