"""Answer requests to compare rows to the bit, as JSON.

`rows`: whether the rows of a config, or of a library call, have the same bits in all calls, and the bits of a
"reference" config if there is one.
`alike`: which configs give all rows the same bits as a library call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from genkern.kernels.refusal import refused_by_device, refused_by_library
from genkern.profiling.checking.verdict import Subject
from genkern.profiling.same_bits.row_bits import RowChecking
from genkern.timing.libraries import VENDOR

Answer = dict[str, Any]


def compared(checking: RowChecking, request: dict[str, Any], subject_of: Callable[[dict[str, Any]], Subject]) -> Answer:
    """Return the answer to a request.

    Raises what a launch raises, except for `alike`: a call that the library refuses is left out.
    """
    if request["command"] == "alike":
        return {"alike": _alike(checking, request, subject_of)}
    reference = request.get("reference")
    verdict = checking.check(subject_of(request), subject_of(reference) if reference else None)
    return {"config": request["config"], **asdict(verdict)}


def _alike(
    checking: RowChecking, request: dict[str, Any], subject_of: Callable[[dict[str, Any]], Subject]
) -> dict[str, str]:
    """Return for each call the first config with the same bits; calls without such a config are missing."""
    calls: dict[str, Any] = {}
    for name in request["calls"]:
        try:
            calls[name] = checking.bits_of(subject_of({"config": name, "binaries": []}))
        except Exception as error:
            if not (refused_by_library(error) if name == VENDOR else refused_by_device(error)):
                raise
    alike: dict[str, str] = {}
    for candidate in request["candidates"] if calls else ():
        bits = checking.bits_of(subject_of(candidate))
        for name, of_call in calls.items():
            if name not in alike and bool((bits == of_call).all()):
                alike[name] = candidate["config"]
    return alike
