"""FlashInfer Trace: writes winners as solutions of GEMM definitions, which flashinfer-bench builds, checks and times.

A definition fixes N, K and the type, and leaves M open. Its solution has the Triton module of each M that was tuned,
and calls torch.matmul for every other M. The folder also gets the definition, and a workload for each M. It gets no
evaluations, since these are flashinfer-bench's own measurements. A definition's name does not tell its type: published
ones are of float16 or of bfloat16. Source: flashinfer-bench 0.1.2, flashinfer_bench/data and docs/flashinfer-trace; its
LinearAdapter has the names of definitions.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from genkern.errors import InputError, OutputError
from genkern.file_io import read_text, shown_path
from genkern.files.peer_config import Imported
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import gpu_for_device
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import language_of
from genkern.kernels.generate import generate

NAME = "flashinfer-trace"
IS_FOLDER = True
AUTHOR = "genkern"
# Folders of a data set whose files do not depend on who writes them.
_DEFINITIONS, _WORKLOADS = "definitions/gemm", "workloads/gemm"
_TYPES = ("fp16", "bf16", "fp32")
# Keys of a definition that its solutions depend on, and the keys of a tensor.
_DECIDING, _OF_TENSORS = ("axes", "inputs", "outputs"), ("type", "value", "shape", "dtype")
_REFERENCE = "import torch\n\ndef run(A, B):\n    C = torch.matmul(A, B.T)\n    return C"
_MAIN = '''"""C = A @ B.T by genkern's winners; by torch.matmul for each M that was not tuned."""

import torch

from . import {modules}

# The module and the name of its config, by M.
KERNELS = {{
{rows}
}}
# Workspace and counters, by M, device and stream. Kernels leave counters at zero.
_workspaces = {{}}


def run(A, B, C):
    if A.shape[0] not in KERNELS:
        torch.matmul(A, B.T, out=C)
        return
    module, name = KERNELS[A.shape[0]]
    config = module.CONFIGS[name]
    operands = {{"a": A, "b": B.T, "c": C}}
    stream = torch.cuda.current_stream(A.device).cuda_stream if A.is_cuda else 0
    key = A.shape[0], A.device, stream
    if key not in _workspaces:
        made = module.with_workspace(config, operands)
        _workspaces[key] = {{name: made[name] for name in ("workspace", "counters") if name in made}}
    module.matmul(config, operands | _workspaces[key])
'''


def is_named(name: str) -> bool:
    """Return False: solutions hold kernels, which genkern does not import."""
    return False


def read(text: str, where: str, name: str, arch: str | None) -> Imported:
    """Raise InputError: solutions hold kernels, which genkern does not import."""
    raise InputError(f"{where}: genkern does not import solutions of {NAME}")


def obstacle(problem: GemmProblem) -> str:
    """Return why no GEMM definition describes the problem; "" if one does."""
    if problem.op != "a16w16":
        return f"{problem.op}: genkern writes definitions of a16w16 only"
    if not problem.dtype_a == problem.dtype_b == problem.dtype_c or problem.dtype_a not in _TYPES:
        return "types other than one of fp16, bf16 and fp32 for A, B and C"
    if problem.own:
        return f"{', '.join('='.join(map(str, field)) for field in problem.own)}, which a definition does not state"
    if not problem.row_major_a or problem.row_major_b:
        return "another layout than row-major A and [N, K] weights"
    if problem.bias or problem.activation != "none":
        return "a bias or an activation"
    return ""


def config_obstacle(config: Config) -> str:
    """Return why a solution cannot hold the config's kernel; "" if it can."""
    if language_of(config) != "triton":
        return f"won by {config.family}, which is not a Triton kernel: a solution holds Triton source"
    return ""


def render(sizes: Collection[TimedSize]) -> dict[str, str]:
    """Return a solution for each definition and device, with the definitions and their workloads.

    Raises InputError for a config that is not legal on its GPU.
    """
    solutions: dict[tuple[str, str, str], list[TimedSize]] = {}
    every_m: dict[str, set[int]] = {}
    types: dict[str, set[str]] = {}
    for size in sorted(sizes, key=lambda size: size.problem.M):
        definition = definition_of(size.problem)
        solutions.setdefault((definition, size.arch, size.device), []).append(size)
        every_m.setdefault(definition, set()).add(size.problem.M)
        types.setdefault(definition, set()).add(size.problem.dtype_a)
    for definition, of in types.items():
        if len(of) > 1:
            raise InputError(f"{definition} has winners for {' and '.join(sorted(of))}: export each type by itself")
    files: dict[str, str] = {}
    for (definition, _, device), some in solutions.items():
        solution = _solution(definition, device, some)
        files[f"{_DEFINITIONS}/{definition}.json"] = _text(_definition(definition, some[0].problem))
        files[f"solutions/{AUTHOR}/gemm/{definition}/{solution['name']}.json"] = _text(solution)
    for definition, ms in every_m.items():
        lines = (json.dumps(_workload(definition, m)) for m in sorted(ms))
        files[f"{_WORKLOADS}/{definition}.jsonl"] = "".join(f"{line}\n" for line in lines)
    return files


def definition_of(problem: GemmProblem) -> str:
    """Return the name of the problem's definition, such as gemm_n4096_k4096."""
    return f"gemm_n{problem.N}_k{problem.K}"


def kept(texts: Mapping[str, str], folder: str) -> list[str]:
    """Return the names of definitions and workloads that the folder has already, so that they stay.

    Raises OutputError if a definition there describes other tensors.
    """
    found = [name for name in texts if name.startswith((_DEFINITIONS, _WORKLOADS)) and (Path(folder) / name).exists()]
    for name in found:
        path = str(Path(folder) / name)
        if name.startswith(_DEFINITIONS) and _deciding(read_text(path)) != _deciding(texts[name]):
            raise OutputError(f"{shown_path(path)} describes other tensors, such as another type: give another -o")
    return found


def _deciding(definition: str) -> object:
    """Return what a definition says about axes and tensors; None if it is malformed."""
    try:
        said = json.loads(definition)
        return {
            part: {name: {key: of.get(key) for key in _OF_TENSORS} for name, of in said[part].items()}
            for part in _DECIDING
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _definition(name: str, problem: GemmProblem) -> dict[str, object]:
    def tensor(description: str, *shape: str) -> dict[str, object]:
        return {"shape": list(shape), "dtype": DTYPES[problem.dtype_a].torch, "description": description}

    return {
        "name": name,
        "description": "General matrix multiply (GEMM) C = A @ B.T.",
        "op_type": "gemm",
        "axes": {
            "M": {"type": "var", "description": "rows of A and C"},
            "N": {"type": "const", "value": problem.N, "description": "rows of B, columns of C"},
            "K": {"type": "const", "value": problem.K, "description": "columns of A and B"},
        },
        "inputs": {"A": tensor("activations", "M", "K"), "B": tensor("weight", "N", "K")},
        "outputs": {"C": tensor("product", "M", "N")},
        "reference": _REFERENCE,
    }


def _solution(definition: str, device: str, sizes: Sequence[TimedSize]) -> dict[str, object]:
    arch = sizes[0].arch
    gpu = gpu_for_device(device, arch) if device else None
    modules = {f"m{size.problem.M}": generate(size.problem, [size.best], arch, gpu).text for size in sizes}
    rows = (f'    {size.problem.M}: (m{size.problem.M}, "{size.best.name}"),' for size in sizes)
    main = _MAIN.format(modules=", ".join(modules), rows="\n".join(rows))
    hardware = re.sub(r"\W+", "_", device or arch)
    every_m = ", ".join(str(size.problem.M) for size in sizes)
    return {
        "name": f"{AUTHOR}_{definition}_{hardware.lower()}",
        "definition": definition,
        "author": AUTHOR,
        "description": f"Winners of genkern on {device or arch} for M = {every_m}; torch.matmul for other M.",
        "spec": {
            "language": "triton",
            "target_hardware": [hardware],
            "entry_point": "main.py::run",
            "dependencies": ["torch", "triton"],
            "destination_passing_style": True,
        },
        "sources": [
            {"path": "main.py", "content": main},
            *({"path": f"{name}.py", "content": text} for name, text in modules.items()),
        ],
    }


def _workload(definition: str, m: int) -> dict[str, object]:
    random = {"type": "random"}
    return {
        "definition": definition,
        "workload": {
            "axes": {"M": m},
            "inputs": {"A": random, "B": random},
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"genkern:{definition}:{m}")),
        },
        "solution": None,
        "evaluation": None,
    }


def _text(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=2) + "\n"
