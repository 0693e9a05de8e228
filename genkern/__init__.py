"""genkern finds the fastest GEMM kernel for every matrix size on your GPU.

tuned_gemm           functions gemm_<format>(x, weight, ...) of PyTorch tensors, by tuned kernels
patch(model)         lets a model's linear layers and experts call tuned kernels, until its undo()
report(model)        what each linear layer of a model would call
batch_invariant()    serves every call so that a row has the same bits in any batch
autotune_gemm(a, b, c)  tunes one product from Python
quantized(x, dtype, scales)  rows in an 8-bit type, and their scales
shuffle_weight(weight), unshuffle_weight(weight)  the layout of formats named *_bpreshuffle

`python -m genkern --help` is the tuner. docs/dispatch.md describes calls from a program.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genkern import tuned_gemm as tuned_gemm
    from genkern.ops.shuffle import shuffle_weight as shuffle_weight
    from genkern.ops.shuffle import unshuffle_weight as unshuffle_weight
    from genkern.runtime.default import batch_invariant as batch_invariant
    from genkern.runtime.model import patch as patch
    from genkern.runtime.model import report as report
    from genkern.runtime.routed.order import quantized as quantized
    from genkern.tuning import autotune as autotune
    from genkern.tuning.autotune import autotune_gemm as autotune_gemm

__version__ = "0.2.0"

# Public names and the modules that define them. Most need PyTorch, so they are imported on first access.
_LIES_IN = {
    "autotune_gemm": "genkern.tuning.autotune",
    "batch_invariant": "genkern.runtime.default",
    "patch": "genkern.runtime.model",
    "quantized": "genkern.runtime.routed.order",
    "report": "genkern.runtime.model",
    "shuffle_weight": "genkern.ops.shuffle",
    "unshuffle_weight": "genkern.ops.shuffle",
}
_MODULES = {"autotune": "genkern.tuning.autotune", "tuned_gemm": "genkern.tuned_gemm"}


def __dir__() -> list[str]:
    return sorted(("__version__", *_LIES_IN, *_MODULES))


if not TYPE_CHECKING:
    # Hidden from type checkers, which would accept any name.

    def __getattr__(name: str) -> object:
        """Return a public name, imported on first access. Raise AttributeError for any other name."""
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        if name in _LIES_IN:
            return getattr(importlib.import_module(_LIES_IN[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
