"""Tests of llama.py and llama_model.py: the model, what is compared, and a whole run without a GPU."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from small_bundle import pack_here, rows
from stand_ins import cpu_place

from benchmarks.serving import llama
from benchmarks.serving.llama import Case, Plain, Timed, relative_error, report
from benchmarks.serving.llama_model import Llama, Shape, random_llama, rotated, turns
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.linear import Patch, patch_model

# Its qkv is 256x512, of which the bundle of the runtime's tests has winners.
SHAPE = Shape(layers=2, hidden=512, heads=2, kv_heads=1, head_dim=64, intermediate=96, vocabulary=50)


@pytest.fixture(autouse=True)
def _inductor_has_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's code for the meta device sets it where it is not set."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def test_llamas_shape_is_the_default() -> None:
    """8.03 billion weights, as Llama-3.1-8B has (its card)."""
    with torch.device("meta"):
        model = Llama(Shape())
    assert sum(parameter.numel() for parameter in model.parameters()) == 8_030_261_248
    assert sum(type(layer) is torch.nn.Linear for layer in model.modules()) == 4 * 32 + 1


def test_positions_turn_by_their_distance() -> None:
    """A product of a query and a key depends on how far apart they are, and lengths stay."""
    q, k = torch.randn(2, 1, 1, 1, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).float()
    like = torch.ones(1)

    def score(first: int, second: int) -> float:
        found = rotated(q, turns(SHAPE, first, 1, like)) * rotated(k, turns(SHAPE, second, 1, like))
        return float(found.sum())

    assert score(7, 4) == pytest.approx(score(103, 100), abs=0.2)
    assert abs(score(7, 4) - score(60, 4)) > 0.2 or abs(score(7, 4) - score(33, 4)) > 0.2
    assert float(rotated(q, turns(SHAPE, 9, 1, like)).norm()) == pytest.approx(float(q.norm()), rel=0.01)


@torch.no_grad()
def test_a_step_of_decoding_can_be_repeated() -> None:
    """The cache is of fixed numbers but for the position that each step writes; float32 computes the same function."""
    steps = Plain(SHAPE, "cpu", 16)
    step = steps.step(Case(3, 1), steps.model)
    first = step()
    assert first.shape == (3, 50)
    assert torch.equal(step(), first)
    exact = steps.step(Case(3, 1), copy.deepcopy(steps.model).float())()
    assert exact.dtype == torch.float32
    assert 0 < float((first - exact).abs().max()) < 0.05 * float(exact.abs().max())
    keys = steps.model.layers[0].attention.cache[0]  # type: ignore[index, union-attr]
    steps.step(Case(2, 1), steps.model)
    assert keys.shape == (3, 1, 16, 64)


@torch.no_grad()
def test_decoding_continues_a_prefill() -> None:
    """With the keys and values of a prompt in its cache, a step gives what a prefill of one token more gives."""
    model = random_llama(SHAPE, "cpu").float()
    tokens, like = torch.randint(0, 50, (1, 9)), model.norm.weight
    whole = model(tokens, turns(SHAPE, 0, 9, like))
    model.set_cache(1, 9)
    x, turn = model.embedding(tokens), turns(SHAPE, 0, 9, like)
    for layer in model.layers:
        attention = layer.attention
        heads = attention.qkv(layer.before_attention(x)).view(1, 9, -1, 64).transpose(1, 2)
        _, k, v = heads.split([2, 1, 1], 1)
        attention.cache = rotated(k, turn), v.clone()
        x = layer(x, turn)
    for layer in model.layers:
        for kept in layer.attention.cache:
            kept[:, :, -1] = 0
    assert torch.allclose(model(tokens[:, -1:], turns(SHAPE, 8, 1, like)), whole, atol=1e-4)


def test_errors_are_relative_to_the_librarys() -> None:
    """The largest of each."""
    expected = torch.tensor([1.0, 2.0])
    assert relative_error(torch.tensor([1.5, 2.0]), torch.tensor([1.0, 2.25]), expected) == 2.0


def test_speedups_are_those_of_graphs() -> None:
    """The library's time over genkern's, and tokens of all sequences."""
    times = {"library eager": 0.02, "genkern eager": 0.04, "library graph": 0.01, "genkern graph": 0.008}
    lines = report([Timed(16, 1, 4, times, 1.05), Timed(1, 2048, 4, times, 0.9)], 2).splitlines()
    assert lines[2] == "| decode, batch 16 | 800 | 400 | 0.500 | 1,600 | 2,000 | 1.250 | 1.05 | 4 |"
    assert lines[-2:] == ["decode_speedup_16: 1.250", "prefill_speedup: 1.250"]


def test_a_run_goes_on_from_what_it_has(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case has a line; the model is not made again for what the file has."""
    monkeypatch.setenv("GENKERN_CONFIG", "")
    monkeypatch.setattr(llama, "LOOP_S", 0.0)
    bundle_file = pack_here(tmp_path, rows(), cache_dir)
    place = cpu_place()
    context = place.context([read_bundle(bundle_file)])

    def patch(model: torch.nn.Module) -> Patch:
        return patch_model(model, Gemm("a16w16", context), context)

    argv = [bundle_file, "--batches", "1,100", "--context", "16", "--prefill", "8", "--layers", "2", "--rounds", "1"]
    argv += ["-o", str(tmp_path / "found.jsonl")]

    def run() -> str:
        return llama.run(place, argv, patch, SHAPE, lambda step: step)

    text = run()
    assert "3 of 3 cases" in text
    assert "| decode, batch 100 |" in text
    assert all(line.endswith("| 2 |") for line in text.splitlines()[2:5])
    # One graph and loops of eager calls, of two layers each.
    assert len(place.gpu.driver.launched) >= 3 * 2 * 2  # type: ignore[attr-defined]
    monkeypatch.setattr(llama, "Plain", lambda *_: pytest.fail("made again"))
    assert run() == text
