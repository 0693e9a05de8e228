"""Sizes and results in everyone's files: what genkern reads and writes for others.

May import: gemm, ops, kernels.
"""
