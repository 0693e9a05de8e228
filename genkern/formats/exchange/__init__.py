"""Files of tuned configs that other programs keep: vLLM's, SGLang's, AITER's Triton kernels' and TunableOp's.

May import: gemm, ops, kernels, and the rest of formats.
"""
