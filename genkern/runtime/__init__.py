"""What a user's program imports: bundles of winners, their launch, and which of them a call takes.

May import: gemm, ops, and of kernels the launch plan and legality; of Triton, Jinja and the farm nothing.
"""
