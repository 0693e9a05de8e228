"""Pruning rules: named functions with their sources, and their registry.

Imports genkern.gemm, genkern.ops and genkern.kernels.
"""
