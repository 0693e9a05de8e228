"""The strategy of a run without options: the model's first, then what this size's own times say is worth a try.

A first batch has the model's best, the best of each kind that the model may be wrong about, and the winners of the
nearest tuned sizes with what is one step away from them. After that a batch is what promises most, given the errors
that the model has shown at this size (`genkern.model.posterior`), until nothing left promises as much as a stated share.
Last, the best binaries are launched with the other values of what is set at run time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from genkern.farm.sharing import compiled_of
from genkern.gemm.config import Config
from genkern.model.rows import Rows
from genkern.search.strategy import Event, Measured, Refused, Strategy, Task, Unit

# Binaries of the first batch: the model's, and of so many kinds the best.
_FIRST, _KINDS = 12, 10
# Binaries asked for at a time, as soon as no more than so many are without an answer.
_BATCH, _WAITING = 8, 4
# No more than so many binaries, and no fewer, whatever is promised.
_MOST, _LEAST = 96, 24
# What is left is let be where it promises less than this share of the time.
_PROMISE = 0.002


class Guided(Strategy):
    """Asks for binaries by what they promise, and then for the run-time values of the best."""

    left_out = "the model, with the times of this size, expected nothing faster of it"
