"""genkern finds the fastest GEMM kernel for every matrix size on your GPU."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`patch` and `report` (genkern.runtime.model), `shuffle_weight` and `unshuffle_weight` (genkern.ops.shuffle),
    `quantized` (genkern.runtime.routed.order), `autotune_gemm` (genkern.tuning.autotune), which need PyTorch, when they are
    asked for.
    """
    if name == "autotune_gemm":
        from genkern.tuning import autotune

        return autotune.autotune_gemm
    if name in ("patch", "report"):
        from genkern.runtime import model

        return getattr(model, name)
    if name == "quantized":
        from genkern.runtime.routed import order

        return order.quantized
    if name in ("shuffle_weight", "unshuffle_weight"):
        from genkern.ops import shuffle

        return getattr(shuffle, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
