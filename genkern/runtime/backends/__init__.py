"""Vendor libraries that compute a GEMM: cuBLASLt and hipBLASLt. Each can say why it is not available.

May import: genkern itself, gemm, timing, ops.
"""
