"""Whether a kernel computes what it should: exact inputs, guard bands, an error bound, and the verdict (`verdict.py`).

May import: genkern.gemm, genkern.ops, genkern.profiling.
"""
