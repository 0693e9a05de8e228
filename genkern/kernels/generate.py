"""Generation of one Python module per problem, with its kernels and a table of all its configs."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from jinja2.runtime import Context

from genkern import __version__
from genkern.errors import InputError
from genkern.gemm.config import Config, has_amd_options
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu, capabilities_of, gpu_for_arch, known_archs
from genkern.gemm.operand import Operand
from genkern.gemm.parameter import AMD_OPTIONS, CORE, PARAMETERS
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import arguments_of, language_of, traits_of
from genkern.kernels.contract.argument import parameters_of
from genkern.kernels.contract.call import Kernel
from genkern.kernels.contract.gluon_tile import parts_of, powers_of, ring_k
from genkern.kernels.contract.product import product_of, starts_early
from genkern.kernels.cute.source_file import sha256_of
from genkern.kernels.families.alignment_copy import copied_operands
from genkern.kernels.families.common import REDUCE, SUM_SLOTS
from genkern.kernels.families.index_width import wide_operands
from genkern.kernels.launch_text import CallText, call_text
from genkern.kernels.legality import require_legal
from genkern.kernels.specs import binary_name, call_of, source_digest
from genkern.ops.accumulate import adds_up_fast, promotes_products
from genkern.ops.fields import own_values
from genkern.ops.groups import NO_GROUPS, routing
from genkern.ops.op import columns_of_b, get_op, groups_of, op_folders
from genkern.ops.templates import environment_of


@dataclass(frozen=True)
class GeneratedModule:
    """The text of a problem's module for `arch`, in whole and in parts.

    For configs in CuTe DSL, the module contains only the operands, the reference, the library call and the Triton
    kernels around the main one. The main kernels are files of their own (genkern.kernels.cute.source_file), and launch
    plans launch them.

    problem: the problem.
    arch: the architecture.
    kernels_text: the module without the table of configs and the launch code. Compile workers need no more.
    measured_text: operands, reference and library call. Measured processes need no more. It does not import Triton and
        has no table of configs: importing 20,000 of them would take half a second per process and problem.
    source_sha256: sha256 of each kernel's text including the helpers that it calls, by kernel name.
    source: the texts of each kernel by name: first the helpers that it calls, then its own.
    render: function that returns the whole module; `text` calls it on first use.
    """

    problem: GemmProblem
    arch: str
    kernels_text: str
    measured_text: str
    source_sha256: dict[str, str]
    source: dict[str, tuple[str, ...]] = field(repr=False, compare=False)
    render: Callable[[], str] = field(repr=False, compare=False)

    @cached_property
    def text(self) -> str:
        """The whole module, for users to keep."""
        return self.render()

    @property
    def file_name(self) -> str:
        return f"gemm_{self.problem.name}.py"

    def source_digest(self, config: Config, gpu: Gpu) -> str:
        """Return the digest of a config's program on `gpu` (genkern.kernels.specs.source_digest)."""
        product = product_of(self.problem, get_op(self.problem.op), self.arch)
        return source_digest(product, config, gpu, self.arch, self.source, self.source_sha256)


class _Rows:
    """The rows of a module's table, one per config. Each row's text is made when it is read."""

    def __init__(self, kernels: Sequence[str], configs: Sequence[Config]) -> None:
        self._kernels, self._configs = kernels, configs
        self.columns = _columns(configs)

    def __len__(self) -> int:
        return len(self._configs)

    def __iter__(self) -> Iterator[str]:
        for kernel, config in zip(self._kernels, self._configs, strict=True):
            yield _row(kernel, traits_of(config).stem, config, self.columns)


def _columns(configs: Sequence[Config]) -> list[str]:
    """Return the parameters in a module's table: the parameters of all configs, arguments of kernels, and parameters
    that are not neutral in some config.

    Parameters that change the kernel text are omitted, since the kernel's name tells them.
    """
    off = {name for config in configs for name, _ in config.others if not PARAMETERS.by_name[name].in_text}
    off |= {each.name for family in {config.family for config in configs} for each in arguments_of(family)}
    if any(PARAMETERS.by_name[name].together == "amd" for name in off):
        off |= {parameter.name for parameter in AMD_OPTIONS}
    core = [parameter.name for parameter in CORE]
    return core + [name for name in PARAMETERS.by_name if name in off]


def _row(kernel: str, stem: str, config: Config, columns: Sequence[str]) -> str:
    values = [config.name, kernel, stem, binary_name(config), *(getattr(config, column) for column in columns)]
    return _wrapped("(" + ", ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values) + "),")


def _wrapped(row: str) -> str:
    """Break a row of the table into lines, at spaces, which occur neither in names nor in numbers."""
    lines, room = [], _LINE - len(_INDENT)
    while len(row) > room:
        at = row.rfind(" ", 0, room + 1)
        lines.append(row[:at])
        row = " " + row[at + 1 :]
    return "\n".join(_INDENT + line for line in (*lines, row))


def generate(problem: GemmProblem, configs: Sequence[Config], arch: str, gpu: Gpu | None = None) -> GeneratedModule:
    """Render the module of `problem` for `configs`. Without configs it has the operands, reference and library call.

    gpu: device on which the configs must be legal. It also gives the number of XCDs for configs with xcd_remap. By
        default the first GPU of `arch`.

    Raises InputError for a config that is not legal on the GPU. If `arch` is unknown, such as "any", configs must be
    legal on every GPU, and xcd_remap requires `gpu`.
    """
    if gpu is None and arch in known_archs():
        gpu = gpu_for_arch(arch)
    require_legal(problem, configs, gpu)
    op = get_op(problem.op)
    product = product_of(problem, op, arch)
    others = {
        kernel.variant.name: kernel
        for config in configs
        if language_of(config) != "triton"
        for kernel in call_of(product, config).kernels
    }
    files = {name: kernel.variant.template for name, kernel in others.items() if not kernel.variant.in_module}
    max_split_k = max((config.SPLIT_K for config in configs), default=1)
    configs = [config for config in configs if language_of(config) == "triton"]
    (a, b, *_), groups = op.operands(problem), groups_of(problem)
    accumulator, full_sums = op.accumulator(problem), promotes_products(problem, arch)
    amd = any(map(has_amd_options, configs))
    forms_here = {traits.stem: traits for traits in map(traits_of, configs)}
    xcd_remap = any(config.xcd_remap for config in configs)
    if xcd_remap and gpu is None:
        raise InputError(
            f"xcd_remap needs the number of XCDs, which does not follow from the architecture {arch!r}: give the GPU"
        )
    context: dict[str, Any] = {
        "problem": problem,
        "version": __version__,
        "arch": arch,
        "amd": amd,
        "amd_neutral": _dict_text((option.name, PARAMETERS.neutral[option.name]) for option in AMD_OPTIONS),
        "has_xcd_remap": xcd_remap,
        "gpu": gpu,
        "row_major_a": problem.row_major_a,
        "row_major_b": problem.row_major_b,
        "bias": problem.bias,
        "activation": "" if problem.activation == "none" else problem.activation,
        "kernel_parts": f"{op.folder}/kernel.py.j2",
        "epilogue": op.finishes(problem),
        "ieee": problem.dtype_a == "fp32" and not op.as_tf32(problem),
        "as_tf32": op.as_tf32(problem),
        "acc_dtype": f"tl.{DTYPES[accumulator].language}",
        "workspace_dtype": f"torch.{DTYPES[accumulator].torch}",
        "poison": 'float("nan")',
        "zero": "0" if DTYPES[problem.dtype_a].is_integer else "0.0",
        "batched": op.batched,
        "groups": groups or NO_GROUPS,
        "groups_power": 1 << (groups.count - 1).bit_length() if groups else 0,
        "routing": _untyped(source_of(routing)),
        "columns_of_b": columns_of_b(problem) if groups else 1,
        "wide": "double" if accumulator == "int32" else "float",
        "own": own_values(op.fields, problem),
        "packed_a": a.packed,
        "packed_b": b.packed,
        "together_b": b.together,
        "piece_b": b.piece,
        "converts_b": op.converts_b,
        "promotes": op.promoted(problem),
        "full_sums": full_sums,
        # The sum of each ring buffer is formed separately, for part of the rows at a time.
        "in_parts": op.promoted(problem) or full_sums,
        "fast_sums": adds_up_fast(problem, arch),
        # Number of pairs of B's elements in a 32-bit word, for a B of fewer bits than A.
        "pairs_b": 2 * b.packed,
        "operands": op.operands(problem),
        "torch_types": {name: dtype.torch for name, dtype in DTYPES.items()},
        "stand_ins": _stand_ins(op.operands(problem)),
        "no_vendor": op.no_vendor(problem),
        "torch_a": DTYPES[problem.dtype_a].torch,
        "torch_b": DTYPES[problem.dtype_b].torch,
        "torch_c": DTYPES[problem.dtype_c].torch,
        "tolerance": op.worst_row_limit(problem),
        "extra_pointers": [f"{operand.name}_ptr" for operand in op.extra_operands(problem)],
        "step_pointers": [f"{operand.name}_ptr" for operand in op.step_operands(problem)],
        # Operands of which each group has a part of its own.
        "group_pointers": [f"{operand.name}_ptr" for operand in op.extra_operands(problem) if len(operand.shape) == 3],
        "finish_pointers": [f"{operand.name}_ptr" for operand in op.finish_operands(problem)],
        "stems": [*forms_here],
        "has_gemv": "gemv" in forms_here,
        "tma_families": sorted(stem for stem, traits in forms_here.items() if traits.uses_tma or traits.aligned_rows),
        "tma_stores": sorted(stem for stem, traits in forms_here.items() if traits.stores_tma),
        "has_tma_in_triton": any(traits.uses_tma and not traits.in_ring for traits in forms_here.values()),
        # The realigned forms of a module all copy the same operands.
        "copied": [*copied_operands(problem)] if any(traits.realigned for traits in forms_here.values()) else [],
        "has_gluon": any(not traits.interpreted for traits in forms_here.values()),
        "clusters": any(traits.in_clusters for traits in forms_here.values()),
        **_gluon_context(problem, accumulator),
        "starts_early": starts_early(arch),
        "has_wgmma": capabilities_of(arch).wgmma,
        **wide_operands(problem, max_split_k),
    }
    stacked = frozenset(operand.name for operand in product.operands if len(operand.shape) == 3)
    made_of = {name: kernel for name, kernel in others.items() if name not in files}
    mains: list[str] = []
    # Launch code by form, and the form by main kernel.
    forms: dict[str, CallText] = {}
    launched_by: dict[str, str] = {}
    for config in configs:
        call = call_of(product, config)
        facts = traits_of(config)
        main = call.kernels[facts.kernels_before].variant
        mains.append(main.name)
        if main.name in launched_by and made_of[main.name].arguments != call.kernels[facts.kernels_before].arguments:
            raise InputError(f"{config.name}: a kernel of another family here is {main.name} too: use one of both")
        if main.name not in launched_by:
            made_of |= {kernel.variant.name: kernel for kernel in call.kernels}
            launched_by[main.name] = form = facts.stem + "_split" * main.split + "_xcd" * main.xcd
            forms.setdefault(form, call_text(form, call, main, stacked))
    rows = _Rows(mains, configs)
    environment = environment_of(tuple(op_folders().items()))
    # Second kernels come last in the module.
    ordered = sorted(made_of, key=lambda name: (name in (REDUCE.name, SUM_SLOTS.name), name))
    kernels = {name: _kernel_text(made_of[name], context) for name in ordered}
    templates = (*_HELPERS, f"{op.folder}/functions.py.j2") if op.has_functions else _HELPERS
    helpers = [environment.get_template(template).render(context).strip() for template in templates]
    called = {name: _called(kernel, helpers) for name, kernel in kernels.items()}
    used = [helper for helper in helpers if any(helper in texts for texts in called.values())]
    whole_context = {
        **context,
        "early_kernels": [name for name in kernels if name in (REDUCE.name, SUM_SLOTS.name)],
        "helpers": used,
        "kernels": kernels,
        "rows": rows,
        "columns": ("name", "kernel", "form", "binary", *rows.columns),
        "forms": [forms[form] for form in sorted(forms)],
        "form_of": dict(sorted(launched_by.items())),
        "with_workspace": [form for form in forms if forms[form].has_workspace],
        "has_workspace": any(forms[form].has_workspace for form in forms),
    }
    module = environment.get_template(f"{op.folder}/module.py.j2")
    whole = module.new_context(whole_context)
    # Measurements never run under Triton's interpreter, so the measured part needs no stand-in types.
    around = module.new_context({**whole_context, "stand_ins": {}})
    # Starting to render the whole template resolves the blocks that it inherits.
    for each in (whole, around):
        next(iter(module.root_render_func(each)), None)
    (kernels_text,) = _blocks(whole, "kernels")
    source = {name: (*called[name], kernel) for name, kernel in kernels.items()}
    hashes = {name: _sha256(texts) for name, texts in source.items()}
    hashes |= {name: sha256_of(file) for name, file in files.items()}
    head = (
        f'"""GEMM {problem.size} ({problem.op}): operands, reference, library."""\n\nfrom collections import namedtuple'
    )
    sizes, operands = (text.strip() for text in _blocks(around, "sizes", "around"))
    measured_text = f"{head}\n\n{sizes}\n{operands}\n"
    return GeneratedModule(
        problem, arch, kernels_text, measured_text, hashes, source, lambda: "".join(module.root_render_func(whole))
    )


def _blocks(context: Context, *names: str) -> Iterator[str]:
    """Yield the rendered text of a template's blocks."""
    return ("".join(context.blocks[name][0](context)) for name in names)


@lru_cache(maxsize=16)
def source_of(function: Callable[..., Any]) -> str:
    """Return the source text of a function of genkern that generated modules contain too."""
    return inspect.getsource(function).strip()


def _untyped(text: str) -> str:
    """Remove the comment for genkern's own type checker."""
    return text.replace("  # type: ignore[no-untyped-def]", "")


def _kernel_text(kernel: Kernel, context: Mapping[str, Any]) -> str:
    template = environment_of(tuple(op_folders().items())).get_template(kernel.variant.template)
    return template.render(
        context, v=kernel.variant, parameters=list(parameters_of(kernel.arguments)), steps=kernel.steps
    ).strip()


# Longest line of a module, and the indentation of its table's rows.
_LINE, _INDENT = 120, "    "
# Templates of functions that kernels and other helpers call.
_HELPERS = (
    "gemm/order.py.j2",
    "gemm/first_tile.py.j2",
    "gemm/activation.py.j2",
    "gemm/copy_block.py.j2",
    "gemm/xcd_order.py.j2",
    "gemm/split_offsets.py.j2",
    "gemm/beside.py.j2",
    "gemm/pieces.py.j2",
    "gemm/wait_for_products.py.j2",
    "gemm/parts.py.j2",
    "gemm/turned.py.j2",
    "gemm/cluster_rank.py.j2",
    "gemm/meet_cluster.py.j2",
    "gemm/expect_sums.py.j2",
    "gemm/parameter.py.j2",
    "gemm/prefetch.py.j2",
    "gemm/make_barriers.py.j2",
    "gemm/ring_address.py.j2",
    "gemm/wgmma_layout.py.j2",
    "gemm/wgmma.py.j2",
    "gemm/accumulate.py.j2",
    "gemm/fill.py.j2",
    "gemm/multicast.py.j2",
    "gemm/exchange.py.j2",
    "gemm/tiles_of.py.j2",
    "gemm/store_sums.py.j2",
    "gemm/warp_specialized_body.py.j2",
    "gemm/find_group.py.j2",
    "gemm/store_rows.py.j2",
    "gemm/warp_specialized_groups_body.py.j2",
    "gemm/warp_specialized_cluster_body.py.j2",
    "gemm/warp_specialized_multicast_body.py.j2",
)


def _called(kernel: str, helpers: Sequence[str]) -> list[str]:
    """Return the helpers that define functions that the kernel calls, directly or through other helpers."""
    found: dict[str, None] = {}
    texts = [kernel]
    while texts:
        named, _ = _names(texts.pop())
        for helper in helpers:
            if helper not in found and named & _names(helper)[1]:
                found[helper] = None
                texts.append(helper)
    # In the module's order, so that the result does not depend on the rest of the module.
    return [helper for helper in helpers if helper in found]


@lru_cache(maxsize=1024)
def _names(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a text uses, and the functions that it defines."""
    nodes = list(ast.walk(ast.parse(text)))
    named = frozenset(node.id for node in nodes if isinstance(node, ast.Name))
    return named, frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))


def _gluon_context(problem: GemmProblem, accumulator: str) -> dict[str, Any]:
    """Return the template variables for Gluon kernels that depend on the operands' types."""
    a = DTYPES[problem.dtype_a]
    narrow = a.bits == 8
    return {
        "ring_k": ring_k(a.size_bytes),
        "functions_of_parts": [source_of(function) for function in (powers_of, parts_of)],
        # The type of wgmma's accumulators, which for promoting formats is not the type of the sums.
        "product_dtype": "tl.int32" if a.is_integer else "tl.float32",
        "acc_gl": f"gl.{DTYPES[accumulator].language}",
        # Types in TMA descriptors: the types that wgmma multiplies (of 8 bits only if A has 8 bits), a C of 32 bits.
        "descriptor_types": sorted(
            (row for row in DTYPES.values() if (row.ptx or row.name == "fp32") and (narrow or row.bits > 8)),
            key=lambda row: (row.bits == 8, row.torch),
        ),
        "ptx_a": a.ptx,
        "ptx_b": DTYPES[problem.dtype_b].ptx,
        "wgmma_may_turn": a.ptx_may_turn,
        "wgmma_flags": a.ptx_flags,
    }


def _sha256(texts: Sequence[str]) -> str:
    """Return the sha256 of a kernel's text with its helpers."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _stand_ins(operands: Iterable[Operand]) -> dict[str, str]:
    """Return input types of PyTorch that Triton's interpreter lacks, each with the type that replaces it."""
    inputs = {DTYPES[operand.dtype] for operand in operands if operand.role in ("activation", "weight")}
    return {row.torch: DTYPES[row.interpreted_as].torch for row in inputs if row.interpreted_as}


def _dict_text(items: Iterable[tuple[str, int | str]]) -> str:
    return "{" + ", ".join(f'"{name}": {json.dumps(value)}' for name, value in items) + "}"
