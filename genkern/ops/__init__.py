"""The GEMM formats that genkern tunes, one folder each.

May import: gemm.
"""
