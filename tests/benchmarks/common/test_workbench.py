"""What the benchmarks on a GPU share, as far as it needs none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common import workbench
from genkern.errors import ResultsError
from genkern.gemm.problem import GemmProblem


@given(st.floats(0.5, 1e5), st.integers(1, 300), st.integers(1, 16))
def test_every_copy_is_used(call_us: float, copies: int, least: int) -> None:
    """A sample uses every copy of the weights, about evenly, and makes the fewest calls or takes a millisecond."""
    used = workbench.sample_copies(call_us, copies, least)
    assert set(used) == set(range(copies))
    assert len(used) >= least or len(used) * call_us > 500
    counts = [used.count(copy) for copy in range(copies)]
    assert max(counts) - min(counts) <= 1


def test_short_calls_are_repeated() -> None:
    """A sample of calls of 10 us takes 100 us; of shorter ones it has 32 at most."""
    assert len(workbench.sample_copies(10.0, 2, 4)) == 10
    assert len(workbench.sample_copies(0.1, 2, 4)) == 32


def test_failure_costs_what_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A failing block is said on one line and does not end the benchmark."""
    with workbench.said("16x32x64"):
        raise ValueError("two\nlines")
    assert capsys.readouterr().err == "16x32x64: ValueError: two lines\n"


def test_errors_of_genkern_end_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What a user can put right is one line and status 2."""
    with pytest.raises(SystemExit) as ended, workbench.errors_end():
        raise ResultsError("a.yaml: no such file")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "a.yaml: no such file\n"


def test_a_contender_with_a_wrong_result_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within what a winner may be off; a wrong element, one that is not written, or a failure costs the contender."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    product = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    c = torch.empty(4, 64, dtype=torch.bfloat16)
    gemm: Any = SimpleNamespace(
        operands={"c": c},
        operands_of=lambda copy: {"c": c},
        module=SimpleNamespace(reference=lambda operands: product),
    )
    builder = workbench.Bench(GemmProblem(4, 64, 64), gemm, {}, None, None)  # type: ignore[arg-type]
    wrong = product.clone()
    wrong[1, 2] += 1

    def fails(copy: int) -> None:
        raise ValueError("refused")

    calls = {
        "rounded": lambda copy: c.copy_(product.half()),
        "wrong": lambda copy: c.copy_(wrong),
        "one row": lambda copy: c[:3].copy_(product[:3]),
        "fails": fails,
    }
    assert list(builder.agreeing(calls)) == ["rounded"]
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("4x64x64 wrong: computes something else: a row is off by 0.")
    assert said[1:] == [
        "4x64x64 one row: computes something else: a row is off by inf of it",
        "4x64x64 fails: ValueError: refused",
    ]
