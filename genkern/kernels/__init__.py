"""Kernel families: which configs are legal, what is compiled, what is launched; and the generation of modules.

Imports genkern.gemm, genkern.ops and genkern.templates.
"""
