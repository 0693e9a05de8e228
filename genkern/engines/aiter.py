"""AITER: winners serve the rows of its tables whose libtype is genkern (aiter.tuned_gemm).

    from genkern.engines import aiter

    aiter.register()

Without this, AITER raises a KeyError for such a row. Written for AITER's aiter/tuned_gemm.py of 2026; never run on AMD
hardware.
"""

from __future__ import annotations

import importlib
from typing import Any

from genkern.engines.hooks import EngineAttribute, IncompatibleEngine, PluginPart, install

_NAME = "genkern"
_GIVEN = ("inp", "weights", "solidx", "bias", "otype", "scale_a", "scale_b", "scale_c", "bpreshuffle", "config")


def register() -> None:
    """Add genkern to the libraries that AITER's rows may name. Idempotent."""
    install("aiter", [PluginPart("rows of libtype genkern", (EngineAttribute("aiter.tuned_gemm.solMap"),), _put)])


def _put() -> None:
    import inspect

    tuned_gemm = importlib.import_module("aiter.tuned_gemm")
    libraries = getattr(tuned_gemm, "solMap", None)
    if not isinstance(libraries, dict) or not callable(libraries.get("torch")):
        raise IncompatibleEngine("aiter.tuned_gemm.solMap is no dict with torch in it")
    found = tuple(inspect.signature(libraries["torch"]).parameters)
    if found != _GIVEN:
        raise IncompatibleEngine(f"functions of aiter.tuned_gemm.solMap take ({', '.join(found)[:200]})")
    libraries.setdefault(_NAME, solution)


def solution(
    inp: Any,
    weights: Any,
    solidx: int,
    bias: Any = None,
    otype: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_c: Any = None,
    bpreshuffle: bool = False,
    config: Any = None,
) -> Any:
    """Return inp [M, K] @ weights.T for weights [N, K], computed by the bundle's winner or else by PyTorch.

    fp8 operands have one scale each; a scale that is None counts as 1. The row only says that genkern is faster; the
    bundle decides which kernel runs, also for an M that AITER rounded up to the row's M. Raises NotImplementedError for
    shuffled weights and for a scale of the result.
    """
    from genkern.engines.products import SCALED, WIDE, operator

    if bpreshuffle or scale_c is not None:
        what = "shuffled weights" if bpreshuffle else "a scale of the result"
        raise NotImplementedError(f"genkern has no kernels for a row of AITER's with {what}: leave that row out")
    if scale_a is None and scale_b is None and inp.dtype.itemsize > 1:
        return operator(WIDE)(inp, weights, bias, otype)
    one = inp.new_ones(1, dtype=_float32())
    scales = [one if each is None else each.reshape(-1) for each in (scale_a, scale_b)]
    return operator(SCALED)(inp, weights, bias, otype, *scales)


def _float32() -> Any:
    import torch

    return torch.float32
