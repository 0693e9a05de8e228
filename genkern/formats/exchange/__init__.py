"""Files of tuned configs of other programs: vLLM, SGLang, AITER's Triton kernels and TunableOp.

May import: gemm, ops, kernels, and the rest of formats.
"""
