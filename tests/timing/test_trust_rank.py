"""Tests of genkern.timing.trust_rank: which row is believed before times are compared."""

from __future__ import annotations

from genkern.timing.trust_rank import trust_rank


def test_what_is_believed_more() -> None:
    """A proof on a GPU before all, then a clock, then an idle GPU; what nobody says is neither proved nor predicted."""
    order = [
        trust_rank("config", "gpu", "cudagraph"),
        trust_rank("config", "gpu", "cudagraph_shared"),
        trust_rank("config", "gpu", "predicted"),
        trust_rank("config", "", None),
        trust_rank("config", "interpreter with fp16 operands", "predicted"),
    ]
    assert order == sorted(order)
    assert len(set(order)) == 5
    assert trust_rank("config", "none", "rocprofv3") == trust_rank("config", "", "measured") == order[3]


def test_the_librarys_call_needs_no_proof() -> None:
    """Whether it won or tied."""
    assert (
        trust_rank("vendor", "", "cudagraph")
        == trust_rank("tie", "none", "cupti")
        == trust_rank("config", "gpu", "cupti")
    )
