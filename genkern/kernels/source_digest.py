"""Source digest: 16 digits that say which program a config is, whatever compiles it, and told without compiling.

Two calls with one digest are made of the same kernels, compiled with the same constants and options, and launched
alike. What no compiler reads (comments, docstrings, blank lines) is left out, and so are the releases of Triton and
CuTe DSL, which results say beside it. So a result can be asked, on any machine, whether genkern still generates what
was measured.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from functools import lru_cache
from pathlib import Path

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels import lowering, source
from genkern.kernels.contract.product import product_of
from genkern.kernels.cute.source_file import files_of
from genkern.kernels.generate import GeneratedModule, generate
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.specs import kernel_specs, plan_text
from genkern.ops.op import get_op

# So many hexadecimal digits tell programs apart.
DIGITS = 16


def source_digest(problem: GemmProblem, config: Config, arch: str, gpu: Gpu) -> str:
    """The digest of what genkern generates for `config` here and now. Takes some 30 ms.

    Raises InputError where the config is not legal for `problem` on `gpu`, a device of `arch`.
    """
    return digest_in(generate(problem, [config], arch, gpu), config, gpu)


def digest_in(module: GeneratedModule, config: Config, gpu: Gpu) -> str:
    """The same of a config whose module there is."""
    problem, op = module.problem, get_op(module.problem.op)
    specs = kernel_specs(problem, config, op, module.source_sha256, module.arch)
    texts = [_compiled_of(spec, module) for spec in specs]
    # A plan says of grids, workspaces and arguments what no kernel's text does.
    plan = plan_text(product_of(problem, op, module.arch), config, gpu)
    said = module.arch, triton_target(gpu), texts, [_said(spec) for spec in specs], plan, _lowering()
    return hashlib.sha256(repr(said).encode()).hexdigest()[:DIGITS]


def _said(spec: KernelSpec) -> tuple[object, ...]:
    """What a kernel is compiled with, besides its text."""
    return spec.function, spec.signature, spec.constants, spec.divisible, spec.options, spec.language


def _compiled_of(spec: KernelSpec, module: GeneratedModule) -> list[str]:
    texts = [path.read_text() for path in files_of(spec.file)] if spec.file else module.source[spec.function]
    return list(map(program_text, texts))


@lru_cache(maxsize=1)
def _lowering() -> list[str]:
    """What genkern makes of a kernel before Triton compiles it."""
    return [program_text(Path(str(module.__file__)).read_text()) for module in (lowering, source)]


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
