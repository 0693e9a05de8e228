"""The families whose kernels are written in CuTe DSL, an optional extra, and what of that is installed here.

Imports gemm, ops and the records of kernels/; never CuTe DSL itself, which the kernels in templates/cute do.
"""
