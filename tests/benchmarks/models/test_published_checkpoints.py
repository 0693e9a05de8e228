"""Of published checkpoints genkern says of every linear layer what the library that wrote them says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.models.checkpoints import FOLDER, compared, main

FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_layer_is_as_its_library_says(path: Path) -> None:
    """With two experts of each layer."""
    for package in ("torch", "transformers", "compressed_tensors"):
        pytest.importorskip(package)
    found = compared(path, experts=2)
    assert found.differing == ()
    assert 0 < found.quantised <= found.layers


def test_there_are_many_of_every_library() -> None:
    """Twenty verbatim ones, each with its source."""
    said = [json.loads(path.read_text()) for path in FILES]
    assert sum(each["verbatim"] for each in said) >= 20
    assert all(each["source"] for each in said)


def test_a_layer_that_differs_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The figure is the share of layers that are equal, and the status says whether all are."""
    pytest.importorskip("transformers")
    said = json.loads((FOLDER / "qwen3-32b-fp8.json").read_text())
    # genkern takes heads of fp8 checkpoints as vLLM does; transformers converts one that its list leaves out.
    said["config"]["quantization_config"]["modules_to_not_convert"] = ["model.layers.0"]
    (tmp_path / "changed.json").write_text(json.dumps(said))
    assert main(["--folder", str(tmp_path), "--experts", "1"]) == 1
    assert f"checkpoints_matched: {448 / 449:.6f}" in capsys.readouterr().out
