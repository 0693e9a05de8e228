"""What a user's program imports: bundles, the launch of their kernels, the dispatcher, PyTorch operators and `patch`.

May import gemm, ops, the launch plans of kernels, and for one rule about sizes that were not tuned the predictor of
search. Must not import Triton, Jinja or the compile farm.
"""
