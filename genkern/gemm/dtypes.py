"""Element types by genkern's names, with the names that Triton, PyTorch, tune_gemm and AITER use."""

from __future__ import annotations

from dataclasses import dataclass

from genkern.errors import InputError
from genkern.gemm.gpus import capabilities_of


@dataclass(frozen=True)
class DType:
    """One element type.

    `triton` is the type in a kernel signature (`*bf16`), `torch` the attribute of the torch module.
    """

    name: str
    size_bytes: int
    triton: str
    torch: str

    @property
    def is_float8(self) -> bool:
        return self.name.startswith("fp8")

    @property
    def is_integer(self) -> bool:
        return self.name.startswith("int")


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("fp32", 4, "fp32", "float32"),
        DType("fp16", 2, "fp16", "float16"),
        DType("bf16", 2, "bf16", "bfloat16"),
        DType("int8", 1, "i8", "int8"),
        DType("int32", 4, "i32", "int32"),
        DType("fp8e4m3fn", 1, "fp8e4nv", "float8_e4m3fn"),
        DType("fp8e5m2", 1, "fp8e5", "float8_e5m2"),
        DType("fp8e4m3fnuz", 1, "fp8e4b8", "float8_e4m3fnuz"),
        DType("fp8e5m2fnuz", 1, "fp8e5b16", "float8_e5m2fnuz"),
    )
}

# Triton's interpreter multiplies bf16 as if it were integers, and that of 3.7 does not know the fnuz encodings.
INTERPRETED_AS = {"bf16": "fp16", "fp8e4m3fnuz": "fp8e4m3fn", "fp8e5m2fnuz": "fp8e5m2"}
_ALIASES = {
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "i8": "int8",
    "i32": "int32",
    "fp8e5": "fp8e5m2",
    "fp8e4nv": "fp8e4m3fn",
    "fp8e4b8": "fp8e4m3fnuz",
    "fp8e5b16": "fp8e5m2fnuz",
    "e4m3fn": "fp8e4m3fn",
    "e5m2": "fp8e5m2",
    "e4m3fnuz": "fp8e4m3fnuz",
    "e5m2fnuz": "fp8e5m2fnuz",
}
# tune_gemm's fp8 and bf8 mean "the target's own" e4m3 and e5m2.
_TARGET_ALIASES = {
    "fp8": ("fp8e4m3fn", "fp8e4m3fnuz"),
    "fp8e4m3": ("fp8e4m3fn", "fp8e4m3fnuz"),
    "bf8": ("fp8e5m2", "fp8e5m2fnuz"),
}


def parse_dtype(text: str, arch: str) -> DType:
    """Return the element type that `text` names on `arch`.

    Accepts genkern's names, PyTorch's (`torch.bfloat16`, `float8_e4m3fn`), Triton's, and tune_gemm's
    `fp8` and `bf8`, which follow the target. Raises InputError for anything else.
    """
    name = str(text).strip().lower().removeprefix("torch.").replace("float8_", "fp8").replace("fp8_", "fp8")
    if name in _TARGET_ALIASES:
        ocp, fnuz = _TARGET_ALIASES[name]
        name = fnuz if capabilities_of(arch).fp8 == "fnuz" else ocp
    name = _ALIASES.get(name, name)
    if name not in DTYPES:
        raise InputError(f"unknown dtype {text!r}: use one of {', '.join(DTYPES)} (or fp8, bf8: the target's own)")
    return DTYPES[name]
