"""genkern finds the fastest GEMM kernel for every matrix size on your GPU.

Tuning:

    tune(M=, N=, K=)     finds the fastest kernel of one size, of many, or of a model, and returns a TuningResult
    load(path)           the TuningResult of a results file or a bundle
    explain(M=, N=, K=)  what the search space holds, what each rule drops, and predicted times: an Explanation
    autotune_gemm(a, b, c)  tunes one product over lists of CuTe DSL's parameters

Calling what was tuned:

    tuned_gemm           functions gemm_<format>(x, weight, ...) of PyTorch tensors, by tuned kernels
    patch(model)         lets a model's linear layers and experts call tuned kernels, until its undo()
    report(model)        what each linear layer of a model would call
    batch_invariant()    serves every call so that a row has the same bits in any batch
    quantized(x, dtype, scales)  rows in an 8-bit type, and their scales
    shuffle_weight(weight), unshuffle_weight(weight)  the layout of formats named *_bpreshuffle

Records: TuningResult, TunedKernel (one of its winners), Explanation, Forecast (one of its candidates), GemmProblem (a
size with types and layouts). TuneOptions: the keyword arguments of tune, as a TypedDict.
TuningInterrupted is raised by Ctrl-C. Errors that you can mend are in genkern.errors; all of them are ValueErrors,
RuntimeErrors or OSErrors.

`python -m genkern --help` is the command. docs/python.md is a tutorial, docs/dispatch.md describes calls.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genkern import tuned_gemm as tuned_gemm
    from genkern.api.explain import Explanation as Explanation
    from genkern.api.explain import Forecast as Forecast
    from genkern.api.explain import explain as explain
    from genkern.api.load import load as load
    from genkern.api.options import TuneOptions as TuneOptions
    from genkern.api.result import TunedKernel as TunedKernel
    from genkern.api.result import TuningResult as TuningResult
    from genkern.api.tune import TuningInterrupted as TuningInterrupted
    from genkern.api.tune import tune as tune
    from genkern.gemm.problem import GemmProblem as GemmProblem
    from genkern.ops.shuffle import shuffle_weight as shuffle_weight
    from genkern.ops.shuffle import unshuffle_weight as unshuffle_weight
    from genkern.runtime.model import patch as patch
    from genkern.runtime.model import report as report
    from genkern.runtime.process.default_context import batch_invariant as batch_invariant
    from genkern.runtime.routed.order import quantized as quantized
    from genkern.tuning import autotune as autotune
    from genkern.tuning.autotune import autotune_gemm as autotune_gemm

__version__ = "0.2.0"

# Public names and the modules that define them. Most need other packages, so they are imported on first access.
_LIES_IN = {
    "Explanation": "genkern.api.explain",
    "Forecast": "genkern.api.explain",
    "GemmProblem": "genkern.gemm.problem",
    "TuneOptions": "genkern.api.options",
    "TunedKernel": "genkern.api.result",
    "TuningInterrupted": "genkern.api.tune",
    "TuningResult": "genkern.api.result",
    "autotune_gemm": "genkern.tuning.autotune",
    "batch_invariant": "genkern.runtime.process.default_context",
    "explain": "genkern.api.explain",
    "load": "genkern.api.load",
    "patch": "genkern.runtime.model",
    "quantized": "genkern.runtime.routed.order",
    "report": "genkern.runtime.model",
    "shuffle_weight": "genkern.ops.shuffle",
    "tune": "genkern.api.tune",
    "unshuffle_weight": "genkern.ops.shuffle",
}
_MODULES = {"autotune": "genkern.tuning.autotune", "tuned_gemm": "genkern.tuned_gemm"}
__all__ = [
    "Explanation",
    "Forecast",
    "GemmProblem",
    "TuneOptions",
    "TunedKernel",
    "TuningInterrupted",
    "TuningResult",
    "__version__",
    "autotune",
    "autotune_gemm",
    "batch_invariant",
    "explain",
    "load",
    "patch",
    "quantized",
    "report",
    "shuffle_weight",
    "tune",
    "tuned_gemm",
    "unshuffle_weight",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:
    # Hidden from type checkers, which would accept any name.

    def __getattr__(name: str) -> object:
        """Return a public name, imported on first access. Raise AttributeError for any other name."""
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        if name in _LIES_IN:
            return getattr(importlib.import_module(_LIES_IN[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
