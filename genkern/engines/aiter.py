"""AITER: rows of its tables whose libtype is genkern are served by winners (aiter.tuned_gemm).

    from genkern.engines import aiter

    aiter.register()

Without it such a row is a KeyError where AITER looks for its function. Written after AITER's aiter/tuned_gemm.py of
2026; never run on AMD hardware.
"""

from __future__ import annotations

import importlib
from typing import Any

from genkern.engines.seam import Misfit, Part, Touch, install

_NAME = "genkern"
_GIVEN = ("inp", "weights", "solidx", "bias", "otype", "scale_a", "scale_b", "scale_c", "bpreshuffle", "config")


def register() -> None:
    """Put genkern among the libraries that AITER's rows may name; once, and whatever the rows are."""
    install("aiter", [Part("rows of libtype genkern", (Touch("aiter.tuned_gemm.solMap"),), _put)])


def _put() -> None:
    import inspect

    tuned_gemm = importlib.import_module("aiter.tuned_gemm")
    libraries = getattr(tuned_gemm, "solMap", None)
    if not isinstance(libraries, dict) or not callable(libraries.get("torch")):
        raise Misfit("aiter.tuned_gemm.solMap is no dict with torch in it")
    found = tuple(inspect.signature(libraries["torch"]).parameters)
    if found != _GIVEN:
        raise Misfit(f"functions of aiter.tuned_gemm.solMap take ({', '.join(found)[:200]})")
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
    """inp [M, K] by weights [N, K], with one scale for all of each where they are fp8: what a bundle has for it.

    The row says that genkern is faster; which kernel, a bundle does, also for an M that AITER padded to that of the
    row. Raises NotImplementedError for weights that are shuffled, and for a scale of the result.
    """
    from genkern.engines.called import SCALED, WIDE, operator

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
