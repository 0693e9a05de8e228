"""What is tried first and what wins: strategies, the cost model, and the choice of finalists and winners.

May import: gemm, ops, kernels, farm.
"""
