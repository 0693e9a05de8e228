"""Linear layers that get the same tensor and are computed as one product: how they are found, merged and called.

May import: gemm, ops, kernels, runtime, runtime.launch, runtime.routed.row_kernels.
"""
