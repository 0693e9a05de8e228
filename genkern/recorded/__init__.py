"""Recorded spaces: measurements of whole search spaces as tables (parquet), on which strategies are replayed.

May import: gemm, timing, ops, kernels, farm, search, journal, formats.
"""
