"""From generated modules to binaries: the compile farm, its cache, what a binary needs of the hardware.

May import: gemm, ops, kernels.
"""
