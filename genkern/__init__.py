"""genkern finds the fastest GEMM kernel for every matrix size on your GPU."""

__version__ = "0.1.0"
