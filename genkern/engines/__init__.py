"""Plugins by which inference engines and PyTorch's Inductor call winners, and the code that the plugins share.

If no bundle is named (GENKERN_CONFIG), the plugins that engines load by themselves (vLLM, SGLang) change nothing.
"""
