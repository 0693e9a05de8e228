"""Tests of genkern.cli.engine_check: what is slower or different, which layers make it so, rows that go back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from computing_gpu import planned, planned_row
from recording_gpu import H200

from genkern.cli.engine_check.checking import slow_layers, with_library_rows
from genkern.cli.engine_check.comparison import Times, Tokens, pooled, times_of, tokens_of
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.table import Table


@pytest.mark.parametrize(
    ("stock", "genkern", "is_slower"),
    [
        ([4.0, 4.01, 4.02], [4.1, 4.11, 4.12], True),
        ([4.0, 4.01, 4.02], [3.5, 3.51, 3.52], False),
        # Less than the least ratio; repetitions that overlap; one repetition each.
        ([4.0, 4.0, 4.0], [4.01, 4.01, 4.01], False),
        ([4.0, 4.2, 4.4, 4.6], [4.1, 4.3, 4.5, 4.7], False),
        ([4.0], [4.1], True),
    ],
)
def test_a_batch_is_slower_beyond_noise(stock: Any, genkern: Any, is_slower: bool) -> None:
    """By the ratio of medians, and by quartiles that do not overlap."""
    assert Times("16", tuple(stock), tuple(genkern)).is_slower == is_slower


def result(tokens: dict[str, list[list[int]]], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    """What an engine's process hands back."""
    batches = {
        batch: {"step_ms": [1.0, 2.0, 3.0], "tokens": each, "logprobs": (logprobs or {}).get(batch, [])}
        for batch, each in tokens.items()
    }
    return {"batches": batches, "prefill_ms": {"prefill 2x8": [10.0]}, "start_s": 1.0, "version": "0"}


def test_two_starts_of_an_engine_are_pooled() -> None:
    """Their repetitions count together; a second start may have measured fewer batches."""
    both = pooled(result({"1": [[1]], "4": [[1]]}), result({"4": [[1]]}))
    (one, four, prefill) = times_of(both, both)
    assert (len(one.stock_ms), len(four.stock_ms), len(prefill.stock_ms)) == (3, 6, 2)


@pytest.mark.parametrize(
    ("apart", "is_different"),
    [(0.01, False), (0.3, True)],
)
def test_tokens_differ_if_products_do_by_more_than_the_engines_own(apart: float, is_different: bool) -> None:
    """Beside the engine's own log-probabilities at another batch size; tokens behind a different one do not count."""
    tokens = {"1": [[5, 6, 7, 8]], "4": [[5, 6, 7, 8]]}
    own = {"1": [[{"5": -1.0, "6": -1.1}]], "4": [[{"5": -1.02, "6": -1.1}]]}
    other = {"1": [[{"5": -1.0 - apart, "6": -1.1}]], "4": [[{"5": -1.0, "6": -1.1 + apart}]]}
    stock, genkern = result(tokens, own), result({"1": [[5, 6, 9, 8]], "4": [[5, 6, 7, 8]]}, other)
    first, second = tokens_of(stock, genkern)
    assert (first.same, first.of, second.same) == (2, 4, 4)
    assert first.own == pytest.approx(0.02)
    assert first.apart == pytest.approx(apart)
    assert first.is_different == is_different
    assert not second.is_different
    assert Tokens("1", 3, 4, None, None).is_different


def test_in_the_batch_invariant_mode_batches_must_agree_to_the_bit() -> None:
    """Other bits than the engine's own are allowed."""
    tokens = {"1": [[5, 6]], "4": [[5, 6]]}
    own = {batch: [[{"5": -1.0}]] for batch in tokens}
    equal, unequal = ({"1": [[{"5": -1.5}]], "4": [[{"5": at}]]} for at in (-1.5, -1.5000001))
    for logprobs, is_different in ((equal, False), (unequal, True)):
        for each in tokens_of(result(tokens, own), result({"1": [[7, 6]], "4": [[5, 6]]}, logprobs), invariant=True):
            assert each.is_different == is_different


@pytest.mark.parametrize("guilty", [{"c"}, {"a", "e"}, set("abcde")])
def test_the_layers_that_make_it_slower_are_found(guilty: set[str]) -> None:
    """With few starts of the engine: halves without a guilty layer are tried once."""
    asked: list[Sequence[str]] = []

    def is_slow(kept: Sequence[str]) -> bool:
        asked.append(kept)
        return bool(guilty & set(kept))

    assert set(slow_layers("abcde", is_slow)) == guilty
    assert len(asked) <= 8
    # Each by itself is not slow beyond noise: all are named.
    assert slow_layers("abcd", lambda kept: len(kept) > 2) == list("abcd")


def test_a_row_that_is_handed_back_is_the_engines_for_its_m_alone() -> None:
    """A row of that M, or a new one; other M and layers keep their winners."""
    sizes = [(256, 128), (128, 256)]
    bundle, _ = planned([planned_row(GemmProblem(m, n, k)) for n, k in sizes for m in (1, 16, 64)])
    for m in (16, 32):
        changed = with_library_rows(bundle.contents, [GemmProblem(1, 256, 128)], m)
        table = Table([replace(bundle, contents=changed)], H200)
        choice = table.find(GemmProblem(m, 256, 128))
        assert (choice.call, choice.algorithm, choice.exact) == (None, "", True)
        for other in (GemmProblem(1, 256, 128), GemmProblem(64, 256, 128), GemmProblem(m if m == 16 else 64, 128, 256)):
            assert table.find(other).call is not None
        assert len(changed.winners) == (6 if m == 16 else 7)
