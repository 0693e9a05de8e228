"""What knows by name a format (its own folders, and readers of others' files), an architecture, or a kernel family."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from genkern.ops.op import op_names

ROOT = Path(__file__).resolve().parent.parent
# Everything else learns of a format by what it declares. Allowed: readers of formats whose own names say which one they
# mean (AITER's tables), the format of a problem that nobody names, and which formats the layers of engines are.
ALLOWED = {
    "genkern/gemm/problem.py": ["a16w16"],
    # An example, of what users read first.
    "genkern/tuned_gemm.py": ["a16w16"],
    "genkern/engines/products.py": ["a16w16", "a8w8", "a8w8_blockscale", "batched_a16w16"],
    # The default, and examples, in --help.
    "genkern/cli/help.py": ["a16w16"],
    # A flag of AITER's.
    "genkern/cli/other_tuners.py": ["grouped_gemm"],
    # The engines' own modules have a format's name in theirs.
    "genkern/engines/sglang.py": ["fused_moe"],
    "genkern/engines/vllm.py": ["fused_moe"],
}


def generic() -> Iterator[Path]:
    """Code that is of no format: genkern without ops/<op> and files/, profiling, and the families' templates."""
    places = ("genkern", "**/*.py"), ("profiling", "**/*.py"), ("templates", "*.j2"), ("templates/gemm", "*")
    for folder, pattern in places:
        for path in sorted((ROOT / folder).glob(pattern)):
            parts = path.relative_to(ROOT).parts
            of_format = parts[:2] == ("genkern", "ops") and len(parts) > 3
            if path.is_file() and not of_format and parts[:2] != ("genkern", "files") and "__pycache__" not in parts:
                yield path


def test_generic_code_names_no_format() -> None:
    """So that the next format is one folder in genkern/ops and one in templates."""
    found = {}
    for path in generic():
        text = path.read_text(encoding="utf-8")
        found[str(path.relative_to(ROOT))] = [name for name in op_names() if name in text]
    assert len(found) > 200
    assert {path: named for path, named in found.items() if named} == ALLOWED


# Where an architecture's own name is the matter. All else asks what a GPU has (genkern/gemm/gpu.py).
NAMES_ARCHS = {
    "genkern/gemm/gpu_table.py": "an example in the message for what is no architecture's name",
    "genkern/cli/help.py": "examples in --help",
    "genkern/cli/doctor/doctor.py": "the compiler that is tried on a machine without a GPU",
    "genkern/cli/doctor/probe.py": "the GPUs that CuTe DSL's kernels are for",
    "genkern/cli/options.py": "an example in --help",
    "profiling/cuda/icache.py": "the least target of a kernel in PTX, which runs on every later one",
}
ARCH = re.compile(r"sm_[0-9]{2}|gfx[0-9a-f]{3}")


def said_by(path: Path) -> Iterator[str]:
    """What code says: the strings of Python without docstrings, the lines of templates without comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from (line.partition("#")[0] for line in re.sub(r"\{#.*?#\}", "", text, flags=re.DOTALL).splitlines())
        return
    tree = ast.parse(text)
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def test_code_names_no_architecture() -> None:
    """So that the next GPU is an entry of gpus.yaml."""
    places = ("genkern", "**/*.py"), ("profiling", "**/*.py"), ("templates", "**/*.py"), ("templates", "**/*.j2")
    paths = [path for folder, pattern in places for path in sorted((ROOT / folder).glob(pattern))]
    assert len(paths) > 350
    naming = {str(path.relative_to(ROOT)) for path in paths if any(map(ARCH.search, said_by(path)))}
    assert naming == set(NAMES_ARCHS)


# Where `family` is something else: the architecture of a model.
OTHER_FAMILIES = {"genkern/packing/models/families.py"}
# What a config's kernels are made of, and the texts that it stands for.
OWN = ("genkern/kernels/families/", "genkern/kernels/cute/", "templates/")
BY_NAME = re.compile(r"\.family (==|!=|in|not in) (?!\w+\.family\b)|\.family\.(startswith|endswith)\(|\bFAMILIES\[\"")


def test_code_asks_no_family_by_name() -> None:
    """So that the next family is one file, which says what legality, rules and predictor ask of its forms."""
    naming, seen = set(), 0
    for folder in ("genkern", "profiling"):
        for path in sorted((ROOT / folder).glob("**/*.py")):
            name = str(path.relative_to(ROOT))
            if name in OTHER_FAMILIES or name.startswith(OWN):
                continue
            seen += 1
            naming |= {name for line in path.read_text(encoding="utf-8").splitlines() if BY_NAME.search(line)}
    assert seen > 250
    assert naming == set()


@pytest.mark.parametrize("compared", ["==", "!=", "in", "not in"])
def test_a_family_that_is_asked_by_name_is_found(compared: str) -> None:
    """Whatever it is compared with, but for another config's."""
    assert BY_NAME.search(f'if config.family {compared} "tiled":')
    assert BY_NAME.search(f"if config.family {compared} (TILED, GEMV):")
    assert not BY_NAME.search(f"if one.family {compared} other.family:")
