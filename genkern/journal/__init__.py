"""What a run has found out, kept as it happens: the journal, its lines, and the files and locks of a run.

May import: gemm, kernels.
"""
