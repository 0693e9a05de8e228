"""Kernel families: legality of configs, kernels to compile, launches; and the generation of modules.

Imports genkern.gemm, genkern.ops and genkern.templates.
"""
