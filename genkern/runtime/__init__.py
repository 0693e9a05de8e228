"""What a user's program imports: bundles, the launch of their kernels, the dispatcher, PyTorch operators and `patch`.

May import gemm, timing, ops, the launch plans and specs of kernels, and the farm's reader of binaries (farm.binary).
Must not import Jinja or the rest of the farm, nor Triton except for its version, when a results file is packed.
"""
