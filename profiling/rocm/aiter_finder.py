"""AITER's calls on an open session's GEMM, as algorithms.py has those of cuBLASLt and hipBLASLt."""

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
    """AITER. Raises LtError where it is not there, or its import fails, which compiles and may fail in any way."""
    try:
        return importlib.import_module(AITER)
    except Exception as error:
        raise LtError(f"{AITER}: {one_line(error)}") from None


class AiterFinder:
    """The calls on the operands of `gemm` that need no build, or with `unbuilt` all, by their names in results.

    Raises LtError where AITER is not there.
    """

    def __init__(self, gemm: LoadedGemm, *, unbuilt: bool = False) -> None:
        aiter = installed()
        try:
            found = aiter_calls(aiter, gemm.session.problem)
        except Exception as error:  # of somebody else's code: whatever it is
            raise LtError(f"{AITER}: {one_line(error)}") from None
        self._gemm = gemm
        self._calls = {name: each for name, each in found.items() if unbuilt or is_built(aiter, each)}

    def names(self) -> list[str]:
        """Those to launch once."""
        return list(self._calls)

    def call(self, name: str) -> Call:
        """A function that launches it on a copy of the weights."""
        known = self._known(name)
        return lambda copy: _launch(known, self._gemm.operands_of(copy % self._gemm.copies))

    def subject(self, name: str) -> Subject:
        """The call as the subject of a check, on contiguous operands only."""
        known = self._known(name)
        return Subject(lambda operands: _launch(known, operands), refuses=lambda operands: "not asked for slices")

    def _known(self, name: str) -> AiterCall:
        if (known := self._calls.get(name)) is None:
            raise LtError(f"{name[:40]!r} is no call that this {AITER} has for this product, or it is not built")
        return known


def _launch(call: AiterCall, operands: Any) -> None:
    """Whatever AITER's own code raises is a refusal; a fault of the device shows again where it is waited for."""
    try:
        call.launch(operands)
    except Exception as error:
        raise LtError(one_line(error)) from error
