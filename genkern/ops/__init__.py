"""The number formats that genkern tunes, one folder each.

Imports genkern.gemm only.
"""
