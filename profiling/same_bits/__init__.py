"""Same bits: whether a row of C has the same bits in every batch, and whose bits they are.

May import: genkern.gemm, genkern.ops, genkern.profiling.
"""
