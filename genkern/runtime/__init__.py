"""What a user's program imports: bundles of winners, their launch, and which of them a call takes.

May import: gemm, ops, of kernels the launch plan, and for one rule of sizes that nobody tuned search's predictor; of
Triton, Jinja and the farm nothing.
"""
