"""The fp8 encodings that a target computes in, for formats with fp8 operands."""

from __future__ import annotations

from genkern.gemm.dtypes import DType, parse_dtype
from genkern.gemm.gpus import capabilities_of, gpu_for_arch, known_archs


def has_fp8(arch: str) -> bool:
    """Whether the target has fp8 matrix instructions.

    True for unknown targets, since results files may omit the target.
    """
    return arch not in known_archs() or "fp8" in gpu_for_arch(arch).peak_tflops


def fp8_refusal(dtype: DType, arch: str) -> str:
    """Return why the target does not take operands of this type, or "". Types other than fp8 are always accepted."""
    if not dtype.is_float8:
        return ""
    if not has_fp8(arch):
        return f"{arch} has no fp8 matrix instructions: use int8, or another --arch"
    if dtype.encoding != capabilities_of(arch).fp8:
        native = parse_dtype("fp8", arch).name
        return f"{arch} does not compute in {dtype.name}: use {native} (or fp8, the target's own)"
    return ""
