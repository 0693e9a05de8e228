"""Files of other programs with tuned configs or sizes: vLLM, SGLang, AITER's Triton and fused MoE kernels, TunableOp.

May import: gemm, ops, kernels, and the rest of formats.
"""
