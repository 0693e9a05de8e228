"""A kernel of a generated module as Triton's compiler takes it; who compiles and who launches use the very same."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

from genkern.errors import GenkernError
from genkern.kernels.kernel import KernelSpec


@lru_cache(maxsize=4)
def load_module(path: str) -> ModuleType:
    """Import a generated module by its path."""
    spec = importlib.util.spec_from_file_location("genkern_generated", path)
    if spec is None or spec.loader is None:
        raise GenkernError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ast_source(module: ModuleType, spec: KernelSpec) -> Any:
    """Triton's description of what to compile; the measured process launches with the very same."""
    from triton.compiler import ASTSource

    function = getattr(module, spec.function)
    names = [name for name, _ in spec.signature]
    signature = {**dict(spec.signature), **{name: "constexpr" for name, _ in spec.constants}}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in spec.divisible_by_16}
    if type(function).__name__ != "GluonJITFunction":
        return ASTSource(function, signature, constexprs=dict(spec.constants), attrs=attributes)
    from triton.experimental.gluon._runtime import GluonASTSource

    cluster = int(dict(spec.options).get("num_ctas", 1))
    signature = {name: _with_layout(kind, cluster) for name, kind in signature.items()}
    return GluonASTSource(function, signature, constexprs=dict(spec.constants), attrs=attributes)


def _with_layout(kind: str, cluster: int) -> str:
    """Gluon's form of a descriptor type, which names its layout in shared memory as this Triton writes it."""
    if not kind.startswith("tensordesc<"):
        return kind
    dtype, _, shape = kind.removeprefix("tensordesc<").removesuffix("]>").partition("[")
    layout = gluon_layout(dtype, [int(size) for size in shape.split(",")], cluster)
    return f"{kind.removesuffix('>')},{layout!r}>"


def gluon_layout(dtype: str, box: Sequence[int], cluster: int) -> Any:
    """How a box of elements of this type (Triton's name) lies in shared memory for wgmma.

    Each program of a cluster has all of it.
    """
    from triton.experimental.gluon import language as gl

    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8e4nv": "float8e4nv", "fp8e5": "float8e5"}
    element = getattr(gl, names.get(dtype, "int8"))
    layout = gl.NVMMASharedLayout.get_default_for(list(box), element)
    if cluster == 1:
        return layout
    # Not for get_default_for: Triton 3.6 takes it for a block that is cut into pieces.
    everywhere = [[0, 0]] * (cluster.bit_length() - 1)
    return gl.NVMMASharedLayout(layout.swizzle_byte_width, element.primitive_bitwidth, rank=2, cga_layout=everywhere)
