"""Check that a kernel computes the right result.

Modules for exact inputs, guard bands, the error bound, and the verdict (`verdict.py`).

May import: genkern.gemm, genkern.ops, genkern.profiling.
"""
