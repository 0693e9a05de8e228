"""Winners for small layers of every kind that engines have, and a GPU that computes what it is asked to launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from computing_gpu import computing_gpu, planned, planned_row
from engine_winners import problems
from recording_gpu import FakeGpu

import genkern
from genkern.engines import experts, invariant, winner_or_own
from genkern.engines.products import BATCHED, IN_BLOCKS, SCALED, WIDE
from genkern.runtime.calls.context import Context
from genkern.runtime.process import default_context
from genkern.runtime.process.torch_ops import gemm_of
from genkern.runtime.routed.functions import routed_of, staged_op


@pytest.fixture(scope="session")
def made() -> tuple[Any, Any]:
    """A bundle of these, and what their kernels compute."""
    return planned([planned_row(problem) for problem in problems()])


@pytest.fixture
def gpu(made: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGpu]:
    """A GPU that computes, on which this process's calls find the bundle, as GENKERN_CONFIG would have it."""
    bundle, kernels = made
    gpu = computing_gpu(kernels)
    context = Context(lambda op: [bundle], lambda index: gpu)
    path = tmp_path / "winners.genkern"
    path.write_bytes(b"a bundle")
    monkeypatch.setenv("GENKERN_CONFIG", str(path))
    # Inductor sets it, and engines import Inductor.
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")
    monkeypatch.setattr(default_context, "_made", SimpleNamespace(context=context))
    calls = [gemm_of(op) for op in (WIDE, SCALED, IN_BLOCKS, BATCHED)]
    calls.append(routed_of(staged_op()))  # type: ignore[arg-type]
    for each in calls:
        monkeypatch.setattr(each, "_context", context)
        each._renew()
    invariant._serves.clear()
    winner_or_own._calls.clear()
    experts._found.clear()
    yield gpu
    for each in calls:
        each._renew()


@pytest.fixture
def launched(gpu: FakeGpu) -> Any:
    """How often a kernel was launched since the last time that this was asked."""
    seen = 0

    def count() -> int:
        nonlocal seen
        before, seen = seen, len(gpu.driver.launched)
        return seen - before

    return count


class Mode:
    """genkern.batch_invariant(), as far as engines need it: which calls were made within."""

    def __init__(self) -> None:
        self.depth, self.entered = 0, 0

    def __call__(self) -> Mode:
        return self

    def __enter__(self) -> None:
        self.depth, self.entered = self.depth + 1, self.entered + 1

    def __exit__(self, *raised: object) -> None:
        self.depth -= 1


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> Mode:
    """Counts how often the mode of equal bits was on."""
    mode = Mode()
    monkeypatch.setattr(genkern, "batch_invariant", mode, raising=False)
    return mode
