"""Measurement on NVIDIA GPUs: CUDA graphs, CUPTI, flushing of the instruction caches.

May import: genkern.gemm, genkern.profiling.
"""
