"""Measuring on NVIDIA GPUs: CUDA graphs, CUPTI, the instruction caches.

May import: genkern.gemm, genkern.profiling.
"""
