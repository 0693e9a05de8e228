"""Layers for Hugging Face kernels (genkern.engines.hf_kernels)."""

from . import layers

__all__ = ["layers"]
