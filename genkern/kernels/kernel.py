"""`KernelSpec`: everything that determines one binary, and its content address."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import tokenize
from dataclasses import dataclass, field
from functools import lru_cache

from genkern.kernels.cute.release import cute_version
from genkern.kernels.lowering import LOWERING, with_layouts

# Prefixes of the environment variables that change what Triton compiles, and variables with these prefixes that do not.
_ENVIRONMENT_PREFIXES = ("TRITON_", "LLVM_", "MLIR_", "AMDGCN_", "DISABLE_")
_ENVIRONMENT_HARMLESS = (
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "TRITON_DUMP_DIR",
    "TRITON_INTERPRET",
    "TRITON_PRINT_AUTOTUNING",
)

Environment = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Target:
    """Target of a compilation: backend "cuda" or "hip", its architecture (90, "gfx942"), and threads per warp."""

    backend: str
    arch: int | str
    warp_size: int


@dataclass(frozen=True)
class KernelSpec:
    """One kernel with its compile-time choices.

    function: name of the kernel function in the generated module.
    source_sha256: sha256 of the kernel's text and its helpers.
    signature: run-time arguments in order, as (name, Triton's type name).
    constants: compile-time arguments as (name, value). They follow the run-time arguments.
    divisible: guaranteed divisors as (argument, 2, 4, 8 or 16); for a pointer, the divisor of its address in bytes.
    options: compiler options as (name, value).
    language: "triton" or "cute".
    file: file of a kernel that is not part of a generated module (genkern.kernels.cute.source_file).
    """

    function: str
    source_sha256: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | str], ...]
    divisible: tuple[tuple[str, int], ...]
    options: tuple[tuple[str, int | str], ...]
    # Excluded from repr(), which `key` digests. `key` adds the language for CuTe DSL.
    language: str = field(default="triton", repr=False)
    file: str = field(default="", repr=False)

    def key(self, target: Target, triton_version: str, environment: Environment | None = None) -> str:
        """Return the content address (sha256, hexadecimal): equal compile work has an equal key on every machine.

        It covers everything that determines the binary: the spec, the layouts of its descriptors, the target, Triton's
        version, the environment, and the version of genkern's own lowering; for CuTe DSL the spec, the language, the
        target and CuTe DSL's version. It does not cover file paths. `environment` is `compile_environment()` by
        default; pass it when computing many keys, because reading it takes longer than the rest.
        """
        if self.language == "cute":
            # CuTe DSL's compile workers read no environment settings.
            return hashlib.sha256(repr((self, self.language, target, cute_version())).encode()).hexdigest()
        environment = compile_environment() if environment is None else environment
        layouts = with_layouts(self.signature)
        decides = self, layouts, target, triton_version, environment, LOWERING
        return hashlib.sha256(repr(decides).encode()).hexdigest()

    @property
    def said(self) -> tuple[object, ...]:
        """All inputs of the compilation, except the text (which may have comments) and the compiler's version."""
        return self.function, self.signature, self.constants, self.divisible, self.options, self.language


@lru_cache(maxsize=1024)
def program_text(text: str) -> str:
    """Return Python text without comments, docstrings, blank lines and trailing spaces."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            said = node.body[0]
            for row in range(said.lineno, (said.end_lineno or said.lineno) + 1):
                lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def symbol_of(function: str, binary: str, language: str) -> str:
    """Return a kernel's symbol in its binary.

    CuTe DSL appends the number of the kernel in its compilation, which is always 0.
    """
    return f"{function}_{binary}" + "_0" * (language == "cute")


def compile_environment() -> Environment:
    """Return the environment variables that change what Triton compiles, sorted."""
    return tuple(
        sorted(
            (name, value)
            for name, value in os.environ.items()
            if name.startswith(_ENVIRONMENT_PREFIXES) and name not in _ENVIRONMENT_HARMLESS
        )
    )
