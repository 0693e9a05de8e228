"""The comparison with torch.compile, as far as it needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from benchmarks.kernels import max_autotune
from benchmarks.kernels.max_autotune import Duel
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result

CONFIG = Config("tiled", 64, 32, 32)


@dataclass(frozen=True)
class Choice:
    """As far as Inductor's choices are asked."""

    name: str
    description: str = ""


def test_takes_plain_products_that_are_wanted() -> None:
    """Sizes that are not wanted, and products with a bias, an activation or scales, are left out."""
    plain, bias = GemmProblem(16, 32, 64), GemmProblem(16, 32, 64, bias=True)
    scaled = GemmProblem(16, 32, 64, "a8w8", "fp8e4m3fn", "fp8e4m3fn")
    activated = GemmProblem(16, 32, 64, activation="relu")
    rows = [Result(problem, CONFIG) for problem in (plain, bias, scaled, activated, GemmProblem(1, 32, 64))]
    assert max_autotune.taken(rows, [plain, bias, scaled, activated]) == rows[:1]


def test_report_counts_wins_ties_and_losses() -> None:
    """Within 0.5 % nobody wins; the mean of ratios is geometric."""
    duels = [Duel("s", 10.0, us, 20.0, "triton_mm_1", 3.0) for us in (12.1, 10.04, 9.0)]
    text = max_autotune.report(duels)
    assert "| max-autotune / genkern | 3 | 1.030 | 0.900 | 1.210 | 1 | 1 | 1 |" in text
    assert "| torch.mm / genkern | 3 | 2.000 | 2.000 | 2.000 | 3 | 0 | 0 |" in text
    assert "| s | 10.00 | 12.10 | 20.00 | 1.210 | 2.000 | 3.0 | triton_mm_1 |" in text


def test_fastest_choice_has_a_name() -> None:
    """The choice with the shortest time is named, with its parameters where it has some."""
    described = "ACC_TYPE='tl.float32', BLOCK_K=32, BLOCK_M=64, EVEN_K=True, num_stages=5, num_warps=4"
    timings = {Choice("mm"): 2.0, Choice("triton_mm_3", described): 1.0}
    assert max_autotune.fastest(timings) == "triton_mm BLOCK_K=32 BLOCK_M=64 num_stages=5 num_warps=4"
    assert max_autotune.fastest({Choice("mm"): 2.0}) == "mm"
    assert max_autotune.fastest({}) == "?"


@pytest.mark.parametrize("row_major_b", [False, True])
def test_product_is_of_the_weights_as_stored(row_major_b: bool) -> None:
    """Weights [N, K] are transposed, weights [K, N] are not; the result is [M, N] either way."""
    torch = pytest.importorskip("torch")
    x, w = torch.ones(2, 3), torch.ones((3, 4) if row_major_b else (4, 3))
    assert max_autotune.product(row_major_b)(x, w).shape == (2, 4)


def test_the_table_says_what_was_chosen_from() -> None:
    """Inductor's own setting, as it is when the table is printed."""
    config = pytest.importorskip("torch._inductor.config")
    with config.patch(max_autotune_gemm_backends="TRITON"):
        assert max_autotune.backends() == "choosing from TRITON"
