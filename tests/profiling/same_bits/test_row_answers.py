"""Tests of profiling/same_bits/row_bits.py: what a measured process is asked of rows, and what it says."""

from __future__ import annotations

from typing import Any

from test_row_bits import PLAIN, checking, subject, sums

from genkern.gemm.config import Config
from genkern.gemm.records import Candidate, Outcome
from genkern.profiling.device_rows import DeviceRows
from genkern.profiling.same_bits.row_bits import compared
from genkern.timing.libraries import VENDOR, StoredAlgorithm
from genkern.timing.session import Budget, Session

WHOLE, SPLIT = Config("tiled", 64, 64, 32), Config("tiled", 64, 64, 32, SPLIT_K=2)
ALGORITHM, REFUSED = (StoredAlgorithm(131000, bytes([i] * 64)).name for i in (1, 2))
SESSION = Session("m.py", PLAIN, "sm_90", 0, ".", Budget())


def kernels(request: dict[str, Any]) -> Any:
    """By the name in a request: a whole sum, or one of two parts; a library's call has either, or is refused."""
    name = request["config"]
    if name == REFUSED:
        raise MemoryError("cublasLtMatmul: not supported")
    return subject((lambda x: sums(x, 2)) if name in (SPLIT.name, ALGORITHM) else sums)


class InProcess:
    """A profiler whose process answers here."""

    def __init__(self, answer: Any = None) -> None:
        self.rows, self._answer = checking(PLAIN), answer

    def request(self, session: Session, request: dict[str, Any], read: Any, lost: Any) -> Any:
        if isinstance(self._answer, Outcome):
            return lost("the process was lost", self._answer)
        return read(self._answer or compared(self.rows, request, kernels))


def candidate(config: Config) -> Candidate:
    return Candidate(config, ())


def test_rows_of_a_config() -> None:
    """With the reference of its order, and that of another."""
    rows = DeviceRows(InProcess())  # type: ignore[arg-type]
    good = rows.check(SESSION, WHOLE.name, candidate(WHOLE), candidate(WHOLE.with_values(num_stages=2)))
    assert (good.passed, good.rounds, good.message, good.method) == (True, ("rows",), "", "gpu")
    assert len(good.row_bits) > 0
    bad = rows.check(SESSION, SPLIT.name, candidate(SPLIT), candidate(WHOLE))
    assert (bad.passed, bad.rounds) == (False, ())
    assert "than the reference of this order" in bad.message
    call = rows.check(SESSION, VENDOR, None, candidate(WHOLE))
    assert call.row_bits == good.row_bits


def test_calls_have_the_bits_of_configs() -> None:
    """Of the first that agrees in all rows; one that the library refuses has none."""
    rows = DeviceRows(InProcess())  # type: ignore[arg-type]
    calls = [VENDOR, ALGORITHM]
    both = [candidate(WHOLE), candidate(SPLIT)]
    assert rows.alike(SESSION, calls, both) == {VENDOR: WHOLE.name, ALGORITHM: SPLIT.name}
    assert rows.alike(SESSION, calls, both[1:]) == {ALGORITHM: SPLIT.name}
    assert rows.alike(SESSION, [], both) == rows.alike(SESSION, calls, []) == {}
