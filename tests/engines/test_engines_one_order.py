"""Engines' batch-invariant products by genkern.batch_invariant() itself, with rows of one order of sums."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from computing_gpu import CONFIG, planned, planned_row
from engine_winners import K, N, problems

import genkern
from genkern.engines import experts, invariant

if "batch_invariant" not in dir(genkern):
    pytest.skip("this genkern has no batch_invariant()", allow_module_level=True)


@pytest.fixture(scope="session")
def made() -> tuple[Any, Any]:
    """The winners of every engine's test, as `genkern --batch_invariant` writes them."""
    from genkern.kernels.catalogue import sums_of

    said = ((problem, sums_of(problem, CONFIG, "sm_90")) for problem in problems())
    return planned([planned_row(problem, sums=sums, batch_invariant=True) for problem, sums in said])


def test_every_m_is_served_by_winners(gpu: Any, launched: Callable[[], int]) -> None:
    """Tuned or not: mm, bmm and experts; the mode is on in these calls alone."""
    from genkern.runtime.process.default_context import default_context

    module, calls = ModuleType("batch_invariant_ops"), []

    def own(a: Any, b: Any, bias: Any = None) -> Any:
        calls.append(a.shape)
        return a @ b

    module.matmul_persistent = own  # type: ignore[attr-defined]
    module.bmm_batch_invariant = lambda a, b, *, out=None: own(a, b)  # type: ignore[attr-defined]
    invariant.take_over(module)
    weight, weights = torch.randn(N, K).bfloat16(), torch.randn(3, N, K).bfloat16()
    first, second = torch.randn(8, 256, K).bfloat16(), torch.randn(8, K, 128).bfloat16()
    for rows in (1, 16, 17, 5000):
        x = torch.randn(rows, K).bfloat16()
        torch.testing.assert_close(module.matmul_persistent(x, weight.T), x @ weight.T, rtol=0.02, atol=0.1)
        assert launched() == 1
        module.bmm_batch_invariant(torch.randn(3, rows, K).bfloat16(), weights.mT)
        assert launched() == 1
        ids = torch.randint(0, 8, (rows, 2), dtype=torch.int32)
        assert experts.by_winners(x, first, second, torch.rand(rows, 2), ids, invariant=True) is not None
        assert launched() >= 2
    # A weight that has no such rows is the engine's, for every M.
    for rows in (16, 64):
        module.matmul_persistent(torch.randn(rows, K).bfloat16(), torch.randn(2 * N, K).bfloat16().T)
    assert (len(calls), launched()) == (2, 0)
    assert default_context().mode.name == "off"
