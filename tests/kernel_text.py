"""The kernels of generated modules as texts by definition, for tests of what a text holds."""

from __future__ import annotations

import ast
import difflib
from functools import lru_cache

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate

# What a config's main kernel is called here; its own name says what the config is.
MAIN = "matmul"


def definitions(text: str) -> dict[str, str]:
    """Texts of a module's functions with their decorators, by name, in their order."""
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min(part.lineno for part in (node, *node.decorator_list))
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


@lru_cache(maxsize=256)
def kernel_texts(problem: GemmProblem, config: str, arch: str = "sm_90") -> dict[str, str]:
    """The definitions that one config's kernels are made of; the main kernel is called MAIN, also in its own text."""
    found = definitions(generate(problem, [Config.parse(config)], arch).kernels_text)
    (main,) = (name for name in found if name.startswith(f"{MAIN}_"))
    return {MAIN if name == main else name: text.replace(main, MAIN) for name, text in found.items()}


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    """Lines, without their indentation, that only `before` has, and that only `after` has."""
    differences = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    gone, new = ([line[2:].strip() for line in differences if line[:2] == mark] for mark in ("- ", "+ "))
    return gone, new
