"""Tests of invariant_decode.py: prompts decoded alone and together, calls of one shape, and what is printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stand_ins import cpu_place
from torch import nn

from benchmarks.common.rounds import Limit
from benchmarks.serving import invariant_decode, llama
from benchmarks.serving.invariant_decode import (
    GENKERN,
    OPS,
    PYTORCH,
    SIZES_M,
    Decoded,
    Entry,
    compared,
    decoded,
    fixed_shapes,
    report,
    sizes_text,
)
from benchmarks.serving.llama_model import LLAMA_8B, Shape
from genkern.files.sizes import GemmDefaults, read_sizes

VOCABULARY = 50


class RMSNorm(nn.Module):
    seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.shape[0])
        return x / x.square().mean(-1, keepdim=True).sqrt()


class Model(nn.Module):
    """Attention over a cache that is a list, and logits; with `leak` a row has something of how many there are."""

    def __init__(self, leak: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm = nn.Embedding(VOCABULARY, 16), RMSNorm()
        self.head, self.leak = nn.Linear(16, VOCABULARY, bias=False), leak

    def forward(self, input_ids: torch.Tensor, past_key_values: list[torch.Tensor], **more: Any) -> SimpleNamespace:
        x = self.embedding(input_ids)
        past_key_values.append(x)
        kept = torch.cat(past_key_values, 1)[:, None]
        x = nn.functional.scaled_dot_product_attention(x[:, None], kept, kept)[:, 0]
        rows = [self.head(row) for row in self.norm(x).flatten(0, 1)]
        return SimpleNamespace(logits=torch.stack(rows).view(*x.shape[:2], -1) + self.leak * len(input_ids))


def prompts(count: int = 4) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (count, 3), generator=torch.Generator().manual_seed(1))


def test_a_step_goes_on_from_the_one_before() -> None:
    """Each token is the likeliest one after what was decoded so far: a prompt that has it gives the same logits."""
    model = Model()
    found = decoded(model, lambda length: [], prompts(), 3)
    assert found.shape == (4, 5, VOCABULARY)
    tokens = found.argmax(-1)[:, 2:4]
    whole = decoded(model, lambda length: [], torch.cat((prompts(), tokens), 1), 1)
    assert torch.allclose(found[:, -1], whole[:, -1], atol=1e-5)


def test_what_hangs_on_the_batch_is_found() -> None:
    """Every row differs where one has something of the others, and none where not; nothing once the time is over."""
    for leak, differ in ((0.0, 0), (1e-3, 40)):
        with fixed_shapes(model := Model(leak), 4):
            found = compared(model, lambda length: [], prompts(), 3, Limit(1000))
        assert (found.rows, found.differ) == (40, differ)
    assert compared(Model(), lambda length: [], prompts(), 1, Limit(0)).rows == 0


def test_norms_and_attention_see_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sequences there are; afterwards all is as it was."""
    model, attention = Model(), nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(RMSNorm, "seen", seen := [])
    with fixed_shapes(model, 6):
        for count in (1, 4, 6):
            assert decoded(model, lambda length: [], prompts(count), 2).shape[0] == count
    assert seen == [6] * 6
    assert nn.functional.scaled_dot_product_attention is attention
    decoded(model, lambda length: [], prompts(1), 1)
    assert seen[-1] == 1


def test_sizes_are_those_of_the_model(tmp_path: Path) -> None:
    """N and K of each product of a patched model, with every M: a list that genkern reads."""
    path = tmp_path / "sizes.yaml"
    path.write_text(sizes_text(LLAMA_8B))
    found = read_sizes(str(path), GemmDefaults(), None)
    assert not found.notes
    sizes = {(each.N, each.K) for each in found.problems}
    assert sizes == {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)}
    assert len(found.problems) == len(sizes) * len(SIZES_M)


def test_the_report_has_a_line_for_each_way() -> None:
    """And genkern's speed over the others' at batch 16; of what is not there a dash."""
    none = Decoded(100, 0, 0)
    entries = [Entry(PYTORCH, Decoded(100, 7, 1), {"1": 50.0, "16": 800.0}), Entry(GENKERN, none, {"16": 840.0})]
    text = report(entries, 8)
    assert "| PyTorch | 7 of 100 | 1 | 50 | 800 | - |" in text
    assert text.endswith("8 layers\ninvariant_hf_decode_16: 1.050\ninvariant_hf_decode_16_over_ops: -")
    entries.append(Entry(OPS, none, {"16": 400.0}))
    assert "over_ops: 2.100" in report(entries, 8)


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """batch_invariant_ops is found nowhere, and what is found in the test is forgotten after it."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not (Path(place) / OPS).exists()])
    forget_package()
    yield
    forget_package()


def forget_package() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == OPS]:
        del sys.modules[name]


@pytest.mark.usefixtures("no_package")
def test_a_run_of_a_stock_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each way is timed and compared, and one that fails costs its own times alone; what was measured stays."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("GENKERN_CONFIG", "")
    monkeypatch.setattr(llama, "LOOP_S", 0.0)
    monkeypatch.setattr(invariant_decode, "read_bundle", lambda path: None)
    bundle = tmp_path / "x.genkern"
    bundle.touch()
    folder = tmp_path / "ops"
    folder.mkdir()
    (folder / f"{OPS}.py").write_text("import contextlib\nset_batch_invariant_mode = contextlib.nullcontext\n")

    def linears(model: nn.Module, ops: str | None) -> Mapping[str, Any]:
        found = invariant_decode.linears_of(model, ops)
        return {who: found[who] for who in (PYTORCH, OPS)}

    def capture(step: llama.Step) -> llama.Step:
        if step().shape[0] == 64:
            raise RuntimeError("no room")
        return step

    shape = Shape(hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocabulary=VOCABULARY)
    argv = [str(bundle), "--layers", "1", "--tokens", "3", "--prompts", "4", "--context", "64", "--rounds", "1"]
    argv += ["--ops", str(folder), "-o", str(tmp_path / "kept")]
    text = invariant_decode.run(cpu_place(), argv, shape, linears, capture)
    assert [line.split(" | ")[1:3] for line in text.splitlines()[2:4]] == [["0 of 272", "0"]] * 2
    assert all(line.endswith(" - |") for line in text.splitlines()[2:4])
    assert "2 of 2 on" in text
    assert invariant_decode.run(cpu_place(), argv, shape, linears, lambda step: 1 / 0) == text


@pytest.mark.usefixtures("no_package")
def test_a_folder_without_the_package_is_an_error(tmp_path: Path) -> None:
    """Nobody who names one wants a table without it."""
    with pytest.raises(ImportError):
        invariant_decode.linears_of(Model(), str(tmp_path))
