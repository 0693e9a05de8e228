"""Check that a kernel computes the right result: exact inputs, guard bands, an error bound, and the verdict
(`verdict.py`).

May import: genkern.gemm, genkern.ops, genkern.profiling.
"""
