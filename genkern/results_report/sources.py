"""The generated programs of configs: parameters, constants and kernel texts, each text stored once."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence

from genkern.errors import InputError
from genkern.file_io import regular_bytes
from genkern.gemm.config import Config
from genkern.gemm.gpu import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.cute.source_file import path_of
from genkern.kernels.generate import GeneratedModule, generate
from genkern.kernels.specs import kernel_specs
from genkern.ops.op import get_op
from genkern.results_report.record import Source

_DIGITS = 12


class Texts:
    """Texts of kernels by key. Kernels of many sizes share one text."""

    def __init__(self) -> None:
        self.by_key: dict[str, str] = {}

    def add(self, text: str) -> str:
        """Return the key of a text."""
        key = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
        self.by_key[key] = text
        return key


def sources_of(
    problem: GemmProblem, configs: Sequence[Config], arch: str, gpu: Gpu, digest: str, texts: Texts
) -> list[Source | None]:
    """Return the program of each config, None for a config that this genkern cannot generate.

    digest: digest of the program of the first config in the results file (Result.source), or ""
    """
    found: list[Source | None] = []
    for place, config in enumerate(configs):
        try:
            module = generate(problem, [config], arch, gpu)
            as_measured = module.source_digest(config, gpu) == digest if digest and place == 0 else None
            found.append(_source(module, config, texts, as_measured))
        except (InputError, OSError):
            # The config is no longer legal, or the file of a kernel of the user's own is gone.
            found.append(None)
    return found


def _source(module: GeneratedModule, config: Config, texts: Texts, as_measured: bool | None) -> Source:
    specs = kernel_specs(module.problem, config, get_op(module.problem.op), module.source_sha256, module.arch)
    head = [f"{name} = {value}" for name, value in config.values.items()]
    keys = []
    for spec in specs:
        head.append(f"kernel {spec.function}")
        head += [f"  constant {name} = {value}" for name, value in spec.constants]
        head += [f"  option {name} = {value}" for name, value in spec.options]
        parts = [regular_bytes(path_of(spec.file)).decode()] if spec.file else module.source[spec.function]
        keys += [texts.add(_without_docstring(part)) for part in parts]
    return Source(tuple(head), tuple(dict.fromkeys(keys)), as_measured)


def _without_docstring(text: str) -> str:
    """Return a kernel's text without a module docstring, which is about files rather than about this kernel."""
    try:
        first = ast.parse(text).body[:1]
    except SyntaxError:
        return text
    if first and isinstance(first[0], ast.Expr) and isinstance(first[0].value, ast.Constant):
        return "\n".join(text.split("\n")[first[0].end_lineno :]).lstrip("\n")
    return text
