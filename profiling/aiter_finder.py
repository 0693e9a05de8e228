"""AITER's calls for an open session's GEMM, with the interface of `Algorithms` (algorithms.py)."""

from __future__ import annotations

import importlib
from typing import Any

from genkern.errors import one_line
from genkern.ops.aiter_calls import AiterCall, aiter_calls, is_built
from genkern.profiling.checking.verdict import Subject
from genkern.profiling.loaded_gemm import Call, LoadedGemm
from genkern.runtime.backends.lt_api import LtError
from genkern.timing.libraries import AITER


def installed() -> Any:
    """Return the module `aiter`.

    Raises LtError if it is missing or its import fails. The import compiles code, so it may raise any exception.
    """
    try:
        return importlib.import_module(AITER)
    except Exception as error:
        raise LtError(f"{AITER}: {one_line(error)}") from None


class AiterFinder:
    """AITER's calls on the operands of `gemm`, by their names in results: the calls already built, or all if `unbuilt`.

    Raises LtError if AITER is missing or its code fails.
    """

    def __init__(self, gemm: LoadedGemm, *, unbuilt: bool = False) -> None:
        aiter = installed()
        try:
            found = aiter_calls(aiter, gemm.session.problem)
        except Exception as error:  # AITER's code may raise any exception
            raise LtError(f"{AITER}: {one_line(error)}") from None
        self._gemm = gemm
        self._calls = {name: each for name, each in found.items() if unbuilt or is_built(aiter, each)}

    def names(self) -> list[str]:
        """Return the names of the calls to launch once."""
        return list(self._calls)

    def call(self, name: str) -> Call:
        """Return a function that launches the call with a copy of the weights."""
        known = self._known(name)
        return lambda copy: _launch(known, self._gemm.operands_of(copy % self._gemm.copies))

    def subject(self, name: str) -> Subject:
        """Return the call as the subject of a check, on contiguous operands only."""
        known = self._known(name)
        return Subject(lambda operands: _launch(known, operands), refuses=lambda operands: "contiguous operands only")

    def _known(self, name: str) -> AiterCall:
        if (known := self._calls.get(name)) is None:
            raise LtError(f"{name[:40]!r} is not a call of this {AITER} for this product, or is not built")
        return known


def _launch(call: AiterCall, operands: Any) -> None:
    """Launch the call.

    Any exception from AITER's code counts as a refusal; a device fault is raised again at the next synchronisation.
    """
    try:
        call.launch(operands)
    except Exception as error:
        raise LtError(one_line(error)) from error
