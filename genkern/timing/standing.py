"""Which of several rows for one problem and device is believed: what was proved, measured, and timed on an idle GPU."""

from __future__ import annotations

from genkern.gemm.records import CONFIG_WINS, PREDICTED

# What `check` says of an output that was proved on a GPU; "interpreter" says nothing of machine code.
PROVED = "gpu"
# Behind the time source of times that were taken while another program worked on the GPU.
SHARED = "_shared"

# Less is better: without a proof, predicted, on a shared GPU.
Standing = tuple[bool, bool, bool]


def standing(choice: str, check: str, time_source: str | None) -> Standing:
    """How far a row is to be believed, before its time counts: the least of several.

    The library's call needs no proof. Rows of others' files say neither check nor source.
    """
    source = time_source or ""
    return choice == CONFIG_WINS and check != PROVED, source == PREDICTED, source.endswith(SHARED)
