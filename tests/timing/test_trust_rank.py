"""Tests of genkern.timing.trust_rank: which row is believed before times are compared."""

from __future__ import annotations

from genkern.timing.trust_rank import standing


def test_what_is_believed_more() -> None:
    """A proof on a GPU before all, then a clock, then an idle GPU; what nobody says is neither proved nor predicted."""
    order = [
        standing("config", "gpu", "cudagraph"),
        standing("config", "gpu", "cudagraph_shared"),
        standing("config", "gpu", "predicted"),
        standing("config", "", None),
        standing("config", "interpreter with fp16 operands", "predicted"),
    ]
    assert order == sorted(order)
    assert len(set(order)) == 5
    assert standing("config", "none", "rocprofv3") == standing("config", "", "measured") == order[3]


def test_the_librarys_call_needs_no_proof() -> None:
    """Whether it won or tied."""
    assert standing("vendor", "", "cudagraph") == standing("tie", "none", "cupti") == standing("config", "gpu", "cupti")
