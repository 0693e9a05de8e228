"""Which configs may be tried: space files, pruning and its rules.

May import: gemm, ops, kernels.
"""
