"""Families whose kernels are written in CuTe DSL, an optional extra, and the release of it that is installed.

Imports genkern.gemm, genkern.ops and the records of genkern.kernels. It never imports CuTe DSL itself; only the kernels
in templates/cute do.
"""
