"""Generation: one Python module per GEMM, holding its kernels and the table of every pruned config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2

from genkern import __version__
from genkern.config import AMD_NEUTRAL, Config
from genkern.dtypes import DTYPES
from genkern.families import (
    GLUON,
    REDUCE,
    REDUCE_BLOCK_SIZE,
    REDUCE_OPTIONS,
    Variant,
    main_variant,
    sums_are_c,
    variants_of,
    wide_operands,
)
from genkern.family import FAMILIES
from genkern.op import get_op
from genkern.problem import GemmProblem


@dataclass(frozen=True)
class GeneratedModule:
    """Text of one module, and the sha256 of each kernel's text (with its helpers) by kernel name."""

    problem: GemmProblem
    text: str
    source_sha256: dict[str, str]

    @property
    def file_name(self) -> str:
        return f"gemm_{self.problem.name}.py"


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("genkern.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _row(kernel: str, config: Config, amd: bool) -> str:
    values = [kernel, config.family, config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K]
    values += [config.GROUP_SIZE_M, config.SPLIT_K, config.num_warps, config.num_stages]
    if amd:
        values += [config.waves_per_eu, config.matrix_instr_nonkdim, config.kpack, config.schedule_hint]
    return "(" + ", ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values) + "),"


def generate(problem: GemmProblem, configs: Sequence[Config], arch: str) -> GeneratedModule:
    """Render the module of `problem` for `configs` (at least one)."""
    op = get_op(problem.op)
    accumulator = op.accumulator(problem)
    amd = any(config.is_amd for config in configs)
    max_split_k = max(config.SPLIT_K for config in configs)
    families = {config.family for config in configs}
    context: dict[str, Any] = {
        "problem": problem,
        "version": __version__,
        "arch": arch,
        "amd": amd,
        "amd_neutral": _dict_text(AMD_NEUTRAL.items()),
        "row_major_a": problem.row_major_a,
        "row_major_b": problem.row_major_b,
        "bias": problem.bias,
        "scaled": op.scaled,
        "ieee": problem.dtype_a == "fp32",
        "acc_dtype": f"tl.{'float32' if accumulator == 'fp32' else accumulator}",
        "workspace_dtype": f"torch.{'float32' if accumulator == 'fp32' else accumulator}",
        "poison": 'float("nan")',
        "zero": "0" if accumulator == "int32" else "0.0",
        "torch_a": DTYPES[problem.dtype_a].torch,
        "torch_b": DTYPES[problem.dtype_b].torch,
        "torch_c": DTYPES[problem.dtype_c].torch,
        "tolerance": op.worst_row_limit(problem),
        "extra_operands": "[" + ", ".join(f'"{name}"' for name in op.extra_operands(problem)) + "]",
        # The reduction kernel is the tiled family's way to split K.
        "has_split": any(config.SPLIT_K > 1 and config.family == "tiled" for config in configs),
        "families": families,
        # Those whose programs count arrivals, and keep partial sums by tile.
        "semaphores": sorted(name for name in families if FAMILIES[name].has_semaphore),
        "sums_are_c": sums_are_c(problem),
        "has_gemv": "gemv" in families,
        "has_tma": any(FAMILIES[name].uses_tma for name in families),
        "has_tiled_tma": "tiled_tma" in families,
        "has_persistent_tma": "persistent_tma" in families,
        "has_gluon": any(name in GLUON for name in families),
        "operand_bytes": DTYPES[problem.dtype_a].size_bytes,
        "instruction_k": 32 // DTYPES[problem.dtype_a].size_bytes,
        "reduce": {"BLOCK_SIZE": REDUCE_BLOCK_SIZE, "options": _dict_text(REDUCE_OPTIONS)},
        **wide_operands(problem, max_split_k),
    }
    variants: dict[str, Variant] = {}
    rows = []
    for config in configs:
        for variant in variants_of(problem, config):
            variants.setdefault(variant.name, variant)
        rows.append(_row(main_variant(problem, config).name, config, amd))
    environment = _environment()
    helpers = environment.get_template("gemm/order.py.j2").render(context).strip()
    # The reduction comes last: it is the second kernel of every split-K config.
    ordered = sorted(variants.values(), key=lambda variant: (variant.name == REDUCE.name, variant.name))
    kernels = {v.name: environment.get_template(v.template).render(context, v=v).strip() for v in ordered}
    text = environment.get_template(op.template).render(context, helpers=helpers, kernels=kernels, rows=rows)
    hashes = {name: hashlib.sha256(f"{helpers}\n{kernel}".encode()).hexdigest() for name, kernel in kernels.items()}
    return GeneratedModule(problem, text, hashes)


def _dict_text(items: Iterable[tuple[str, int | str]]) -> str:
    return "{" + ", ".join(f'"{name}": {json.dumps(value)}' for name, value in items) + "}"
