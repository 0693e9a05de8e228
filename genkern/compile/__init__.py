"""From generated modules to binaries: the compile farm, its cache, and whether a binary fits the hardware.

May import: gemm, ops, kernels.
"""
