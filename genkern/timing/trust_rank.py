"""Rank several rows for one problem and device by trust: proved, measured, and timed on an idle GPU."""

from __future__ import annotations

from genkern.gemm.records import CONFIG_WINS, PREDICTED

# Value of `check` for an output that was proved right on a GPU; "interpreter" does not prove machine code.
PROVED = "gpu"
# Suffix of the time source of times that were taken while another program used the GPU.
SHARED = "_shared"

# (without a proof, predicted, on a shared GPU); the least of several rows is the most trusted.
TrustRank = tuple[bool, bool, bool]


def trust_rank(choice: str, check: str, time_source: str | None) -> TrustRank:
    """Return how much a row is trusted; smaller is better, and its time counts only among equals.

    A library call needs no proof. Rows in other programs' files have neither check nor time source.
    """
    source = time_source or ""
    return choice == CONFIG_WINS and check != PROVED, source == PREDICTED, source.endswith(SHARED)
