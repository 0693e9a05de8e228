"""What is tried first and who wins: the predictor, the ranking of finals.

May import: gemm, ops, kernels, farm.
"""
