"""The kernel families, a file each or for those that share it: their facts, what they launch, and with what arguments.

May import: gemm, ops, and of kernels what says nothing of a family. `genkern.kernels.catalogue` has the list of them.
"""
