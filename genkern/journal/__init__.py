"""Facts that a run has found, stored as they arise: the journal, its lines, and the files and locks of a run.

May import: gemm, kernels.
"""
