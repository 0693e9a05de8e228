"""Grouped products and mixtures of experts, whose rows are multiplied by one of several weights; row kernels.

May import: gemm, ops, kernels, runtime, runtime.launch.
"""
