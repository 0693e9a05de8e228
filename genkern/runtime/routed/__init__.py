"""Grouped products and mixtures of experts: calls in which each row is multiplied by one of several weights; row
kernels.

May import: gemm, ops, kernels, runtime, runtime.launch.
"""
