"""A kernel of a generated module as Triton's compiler takes it."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from types import ModuleType
from typing import Any

from genkern.errors import GenkernError
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.lowering import with_layouts


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
    """Triton's description of what to compile."""
    from triton.compiler import ASTSource

    function = getattr(module, spec.function)
    names = [name for name, _ in spec.signature]
    signature = {**dict(spec.signature), **{name: "constexpr" for name, _ in spec.constants}}
    attributes = {(names.index(name),): [["tt.divisibility", divisor]] for name, divisor in spec.divisible}
    if type(function).__name__ != "GluonJITFunction":
        return ASTSource(function, signature, constexprs=dict(spec.constants), attrs=attributes)
    from triton.experimental.gluon._runtime import GluonASTSource

    signature |= with_layouts(spec.signature)
    return GluonASTSource(function, signature, constexprs=dict(spec.constants), attrs=attributes)
