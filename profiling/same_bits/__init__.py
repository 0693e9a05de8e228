"""Check whether a row of C has the same bits in every batch, and which kernels and libraries produce equal bits.

May import: genkern.gemm, genkern.ops, genkern.profiling.
"""
