"""Tests of genkern.engines.inductor: real compiles on a CPU, whose products a GPU that is none computes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_winners import K, N

from genkern.engines import inductor


@pytest.fixture(autouse=True)
def undone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Inductor is left as it was, and keeps nothing of these compiles."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    yield
    inductor.unregister()
    torch._dynamo.reset()


def compiled(function: Any, dynamic: bool = False) -> Any:
    """As a user compiles it, but that PyTorch's own call and its templates do not compete: the fastest is no matter."""
    options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "fx_graph_cache": False}
    return torch.compile(function, dynamic=dynamic, fullgraph=True, options=options)


def test_a_compiled_product_calls_a_winner(gpu: Any, launched: Any) -> None:
    """torch.compile with max-autotune times it, and its program launches it: equal to PyTorch's product."""
    assert inductor.register()
    assert inductor.register()  # twice does no more
    x, layer = torch.randn(16, K).bfloat16(), torch.nn.Linear(K, N, bias=False).bfloat16()
    with torch.no_grad():
        program = compiled(lambda x: layer(x))
        program(x)
        launched()
        torch.testing.assert_close(program(x), layer(x), rtol=0.02, atol=0.02)
    assert launched() == 1


def test_a_dynamic_program_looks_at_m_when_it_runs(gpu: Any, launched: Any) -> None:
    """One program, an M with a winner and an M that nobody tuned: by what serves each."""
    assert inductor.register()
    weight = torch.randn(N, K).bfloat16()
    program = compiled(lambda x: x @ weight.T, dynamic=True)
    tuned, untuned = torch.randn(64, K).bfloat16(), torch.randn(5000, K).bfloat16()
    program(tuned)
    launched()
    torch.testing.assert_close(program(tuned), tuned @ weight.T, rtol=0.02, atol=0.05)
    assert launched() == 1
    torch.testing.assert_close(program(untuned), untuned @ weight.T, rtol=0.02, atol=0.05)
    assert launched() == 0


def test_undone_it_is_as_it_was(gpu: Any, launched: Any) -> None:
    """Nothing of genkern is left in the config, and a compile calls none of it."""
    import torch._inductor.config as config
    from torch._inductor.kernel import mm

    before = list(config.external_matmul), mm.lazy_register_extern_choice
    assert inductor.register()
    inductor.unregister()
    assert (list(config.external_matmul), mm.lazy_register_extern_choice) == before


@pytest.mark.parametrize("what", ["bundle", "list", "function"])
def test_what_does_not_fit_is_refused_in_a_line(
    what: str, gpu: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No bundle, or another PyTorch: one line, and nothing changes."""
    import torch._inductor.config as config
    from torch._inductor.kernel import mm

    if what == "bundle":
        monkeypatch.delenv("GENKERN_CONFIG")
    elif what == "list":
        with config.patch(external_matmul=()):
            refused(caplog)
        return
    else:
        monkeypatch.setattr(mm, "lazy_register_extern_choice", lambda kernel, layout: None)
    refused(caplog)
    assert inductor.genkern_matmul not in config.external_matmul


def refused(caplog: pytest.LogCaptureFixture) -> None:
    """In one line."""
    with caplog.at_level(logging.WARNING, "genkern"):
        assert not inductor.register()
    assert len(caplog.records) == 1
