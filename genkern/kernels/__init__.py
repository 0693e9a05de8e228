"""Kernel families: what is legal, what is compiled, what is launched; and the generation of modules.

May import: gemm, ops, templates.
"""
