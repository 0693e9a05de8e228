"""Measurement on AMD GPUs: rocprofv3 and rocprof, their command lines and traces.

May import: genkern.gemm, genkern.profiling.
"""
