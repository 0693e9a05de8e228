"""genkern finds the fastest GEMM kernel for every matrix size on your GPU."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`patch` and `report` (genkern.runtime.model), which need PyTorch, when they are asked for."""
    if name not in ("patch", "report"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from genkern.runtime import model

    return getattr(model, name)
