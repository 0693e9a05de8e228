"""What was measured of whole search spaces, as tables (parquet) that anybody can read and strategies are replayed on.

May import: gemm, timing, ops, kernels, farm, search, journal, formats.
"""
