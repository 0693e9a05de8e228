"""DeviceRows: has a measured process compare rows to the bit, and returns its answers as records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from genkern.gemm.records import NOT_CHECKED, Candidate, Check, Outcome
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.profiling.supervisor import ChildGarbled
from genkern.timing.session import Session

# Name of the round that such a check passes.
ROWS = "rows"


class DeviceRows:
    """Compares rows on the device of a profiler, in its measured process."""

    def __init__(self, profiler: SupervisedProfiler) -> None:
        self._profiler = profiler

    def check(self, session: Session, name: str, candidate: Candidate | None, reference: Candidate | None) -> Check:
        """Check whether rows have the same bits whenever the call is made, and the bits of `reference` if given.

        The call is `candidate`, or if it is None the library call `name`. The method of the result is NOT_CHECKED if
        the process is lost or cannot run the call, for example because memory runs out.
        """
        request = {"config": name, "binaries": []} if candidate is None else candidate.request
        request = {"command": ROWS, **request, "reference": None if reference is None else reference.request}
        size = session.problem.size
        lost = partial(Check, name, False, 1.0, math.inf, size, NOT_CHECKED)
        return self._profiler.request(session, request, partial(_check_of, name, size), lost)

    def alike(self, session: Session, calls: Sequence[str], candidates: Sequence[Candidate]) -> dict[str, str]:
        """Return for each library call the name of the first config that gives all rows the same bits.

        Calls whose bits no config has are missing. Returns {} if the process gives no answer.
        """
        if not calls or not candidates:
            return {}
        request = {
            "command": "alike",
            "calls": list(calls),
            "candidates": [candidate.request for candidate in candidates],
        }
        return self._profiler.request(session, request, _alike_of, lambda message, outcome: {})


def _check_of(name: str, size: str, answer: Mapping[str, Any]) -> Check:
    if "error" in answer or "message" not in answer:
        return Check(name, False, 1.0, math.inf, size, NOT_CHECKED, str(answer.get("error")), Outcome.UNCHECKED)
    message, bits = answer["message"], answer.get("row_bits", "")
    if not isinstance(message, str) or not isinstance(bits, str):
        raise ChildGarbled(f"the answer about rows is malformed: {str(answer)[:200]}")
    return Check(name, not message, 0.0, 0.0, size, "gpu", message, rounds=(ROWS,) * (not message), row_bits=bits)


def _alike_of(answer: Mapping[str, Any]) -> dict[str, str]:
    found = answer.get("alike", {})
    if not isinstance(found, dict):
        raise ChildGarbled(f"the answer about calls is malformed: {str(answer)[:200]}")
    return {str(call): str(config) for call, config in found.items()}
