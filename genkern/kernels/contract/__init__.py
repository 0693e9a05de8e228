"""What a family says of itself, as records: its forms, the calls that they launch, the terms of their cost.

Imports gemm, ops, and of kernels the arguments and expressions that these are made of.
"""
