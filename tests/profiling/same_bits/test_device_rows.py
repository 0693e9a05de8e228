"""Tests of profiling/device_rows.py: what becomes of answers about rows, and where there are none."""

from __future__ import annotations

import pytest
from test_row_answers import SESSION, WHOLE, InProcess, candidate

from genkern.gemm.records import NOT_CHECKED, Outcome
from genkern.profiling.device_rows import DeviceRows
from genkern.profiling.supervisor import ChildGarbled
from genkern.timing.libraries import VENDOR


def test_without_an_answer_nothing_is_known() -> None:
    """A process that is lost, or has no memory, says nothing of rows; one that answers without sense is lost."""
    lost = DeviceRows(InProcess(Outcome.CRASHED))  # type: ignore[arg-type]
    check = lost.check(SESSION, WHOLE.name, candidate(WHOLE), None)
    assert (check.passed, check.method, check.lost) == (False, NOT_CHECKED, Outcome.CRASHED)
    assert lost.alike(SESSION, [VENDOR], [candidate(WHOLE)]) == {}
    none = DeviceRows(InProcess({"config": "", "error": "out of memory"}))  # type: ignore[arg-type]
    assert none.check(SESSION, WHOLE.name, candidate(WHOLE), None).lost is Outcome.UNCHECKED
    for answer in ({"message": 1}, {"message": "", "row_bits": None}):
        with pytest.raises(ChildGarbled):
            DeviceRows(InProcess(answer)).check(SESSION, WHOLE.name, candidate(WHOLE), None)  # type: ignore[arg-type]
    with pytest.raises(ChildGarbled):
        DeviceRows(InProcess({"alike": 1})).alike(SESSION, [VENDOR], [candidate(WHOLE)])  # type: ignore[arg-type]
