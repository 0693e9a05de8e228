"""Asking: a measured process's answers about rows to the bit, as records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from genkern.gemm.records import NOT_CHECKED, Candidate, Check, Outcome
from genkern.profiling.supervised import SupervisedProfiler
from genkern.profiling.supervisor import ChildGarbled
from genkern.timing.session import Session

# The round that a check then has passed.
ROWS = "rows"


class DeviceRows:
    """Comparisons of rows on the device of a profiler, in its process."""

    def __init__(self, profiler: SupervisedProfiler) -> None:
        self._profiler = profiler

    def check(self, session: Session, name: str, candidate: Candidate | None, reference: Candidate | None) -> Check:
        """Whether the rows of a config, or without one of a library's call of that name, have the same bits in all
        calls, and those of `reference`. NOT_CHECKED where the process is lost, or has no memory.
        """
        request = {"config": name, "binaries": []} if candidate is None else candidate.request
        request = {"command": ROWS, **request, "reference": None if reference is None else reference.request}
        size = session.problem.size
        lost = partial(Check, name, False, 1.0, math.inf, size, NOT_CHECKED)
        return self._profiler.asked(session, request, partial(_check_of, name, size), lost)

    def alike(self, session: Session, calls: Sequence[str], candidates: Sequence[Candidate]) -> dict[str, str]:
        """Of calls of libraries the first of these configs that gives all rows the same bits, by its name; without
        those that have the bits of none. Empty where nobody answers.
        """
        if not calls or not candidates:
            return {}
        request = {
            "command": "alike",
            "calls": list(calls),
            "candidates": [candidate.request for candidate in candidates],
        }
        return self._profiler.asked(session, request, _alike_of, lambda message, outcome: {})


def _check_of(name: str, size: str, answer: Mapping[str, Any]) -> Check:
    if "error" in answer or "message" not in answer:
        return Check(name, False, 1.0, math.inf, size, NOT_CHECKED, str(answer.get("error")), Outcome.UNCHECKED)
    message, bits = answer["message"], answer.get("row_bits", "")
    if not isinstance(message, str) or not isinstance(bits, str):
        raise ChildGarbled(f"the answer about rows has no sense: {str(answer)[:200]}")
    return Check(name, not message, 0.0, 0.0, size, "gpu", message, rounds=(ROWS,) * (not message), row_bits=bits)


def _alike_of(answer: Mapping[str, Any]) -> dict[str, str]:
    found = answer.get("alike", {})
    if not isinstance(found, dict):
        raise ChildGarbled(f"the answer about calls has no sense: {str(answer)[:200]}")
    return {str(call): str(config) for call, config in found.items()}
