"""Readers and writers of size lists and results files, in genkern's and in other programs' formats.

May import: gemm, timing, ops, kernels.
"""
