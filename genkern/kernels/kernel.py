"""KernelSpec: everything that decides one binary, and the content address that follows from it."""

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

# Settings of Triton that change what it compiles; where files lie and what is printed does not.
_ENVIRONMENT_PREFIXES = ("TRITON_", "LLVM_", "MLIR_", "AMDGCN_", "DISABLE_")
_ENVIRONMENT_HARMLESS = (
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "TRITON_DUMP_DIR",
    "TRITON_INTERPRET",
    "TRITON_PRINT_AUTOTUNING",
)

# Names and values of environment variables.
Environment = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Target:
    """What Triton compiles for: backend "cuda" or "hip", its architecture (90, "gfx942"), threads per warp."""

    backend: str
    arch: int | str
    warp_size: int


@dataclass(frozen=True)
class KernelSpec:
    """One kernel of the generated module with its compile-time choices.

    `signature` lists the run-time arguments in order with Triton's type names, `constants` the
    compile-time ones that follow them. `divisible` names those that are promised to be multiples of 2, 4, 8 or 16 (of a
    pointer: its address). `source_sha256` is that of the kernel's text, helpers included.
    A kernel that is no Triton's has its `language`, and the `file` that it is in (genkern.kernels.cute.source_file).
    """

    function: str
    source_sha256: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | str], ...]
    divisible: tuple[tuple[str, int], ...]
    options: tuple[tuple[str, int | str], ...]
    # Not in the text that is digested: `key` says for which languages each counts.
    language: str = field(default="triton", repr=False)
    file: str = field(default="", repr=False)

    def key(self, target: Target, triton_version: str, environment: Environment | None = None) -> str:
        """Content address (sha256, hex): equal work has an equal key on every node, wherever its file lies.

        All that decides the binary is in it: the spec, its descriptors' layouts (of whichever kernels use them), the
        target, Triton's version, the environment, and the version of genkern's own lowering.
        `environment` is `compile_environment()`, for whoever asks for many keys: it takes longer than all the rest.
        """
        if self.language == "cute":
            # Whoever compiles it reads no setting of the environment.
            return hashlib.sha256(repr((self, self.language, target, cute_version())).encode()).hexdigest()
        environment = compile_environment() if environment is None else environment
        layouts = with_layouts(self.signature)
        decides = self, layouts, target, triton_version, environment, LOWERING
        return hashlib.sha256(repr(decides).encode()).hexdigest()

    @property
    def said(self) -> tuple[object, ...]:
        """What it is compiled with besides its text, which may have comments, and the compiler's release."""
        return self.function, self.signature, self.constants, self.divisible, self.options, self.language


@lru_cache(maxsize=1024)
def program_text(text: str) -> str:
    """Python without what no compiler reads: comments, docstrings, blank lines, blanks at the ends of lines."""
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
    """A kernel's name in its binary: CuTe DSL counts the kernels of a compilation, and each of ours has one."""
    return f"{function}_{binary}" + "_0" * (language == "cute")


def compile_environment() -> Environment:
    """The environment variables that change what Triton compiles, sorted."""
    return tuple(
        sorted(
            (name, value)
            for name, value in os.environ.items()
            if name.startswith(_ENVIRONMENT_PREFIXES) and name not in _ENVIRONMENT_HARMLESS
        )
    )
