"""The configs that a search may try: space files, pruning, and pruning rules.

Imports genkern.gemm, genkern.ops and genkern.kernels.
"""
