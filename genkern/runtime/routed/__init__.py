"""Calls whose rows are routed to one of many weights: groups of rows, and whole mixtures of experts; and
kernels beside products.

May import: gemm, ops, kernels, runtime, runtime.launch.
"""
