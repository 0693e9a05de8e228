"""Linear layers that are given the same tensor, and are called as one product: which these are, their weights, calls.

May import: gemm, ops, kernels, runtime, runtime.launch, runtime.routed.row_kernels.
"""
