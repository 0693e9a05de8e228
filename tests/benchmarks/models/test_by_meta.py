"""Tests of benchmarks.models.by_meta: which model types are listed, and why others are not."""

from __future__ import annotations

import pytest

from benchmarks.models import by_meta

pytest.importorskip("transformers")


def test_failures_have_a_reason() -> None:
    """Types of the table and of transformers alone are listed; a type that neither has is named."""
    found = by_meta.failures(["llama", "jamba", "dots1", "newest"], 1)
    assert found.keys() == {"newest"}
    assert "newest" in found["newest"]


@pytest.mark.parametrize(("family", "tp"), [("gpt2", 8), ("falcon", 2)])
def test_sizes_that_are_not_split(family: str, tp: int) -> None:
    """12 heads over 8 GPUs, and 71 over 2: the reason names the layer."""
    assert "heads" in by_meta.failures([family], tp)[family]
