"""Libraries that compute a GEMM besides genkern's own kernels, a file each; each says why it is not there.

May import: genkern itself, gemm, ops.
"""
