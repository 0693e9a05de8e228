"""Pruning rules: named functions with their sources, and their registry.

May import: gemm, ops, kernels.
"""
