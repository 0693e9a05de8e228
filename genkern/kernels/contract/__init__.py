"""Records by which a family describes its kernels: forms (`Form`), launches (`Call`), cost terms (`Cost`).

This package imports genkern.gemm, genkern.ops and, of genkern.kernels, only the arguments and expressions.
"""
