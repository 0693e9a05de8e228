"""Legality: whether a family can compute a problem with a config on a GPU at all, and why not.

Always asked: in pruning, of winners of earlier runs and of results files, and before anything is generated. What is
legal compiles (but for what only the compiler knows: registers that spill, memory that does not suffice), launches, and
computes the product; the rules of space files say what is worth trying. `gpu` None asks what holds on every device.

It has parts, since pruning asks each only where its answer can differ: what a form of a family takes
(`legal_problem`), what is compiled in (`legal_compiled`, `legal_stages`), and GROUP_SIZE_M and SPLIT_K
(`legal_run_time`), in which configs that share a binary differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter

from genkern.errors import InputError
from genkern.gemm.config import Config, Others
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import INT32, GemmProblem
from genkern.gemm.triton_release import triton_release
from genkern.kernels.catalogue import form_of, formed, values_problem
from genkern.kernels.families.gluon_tile import ring_k
from genkern.kernels.families.limits import GRID_YZ, tiles
from genkern.kernels.families.offsets import counted_limit
from genkern.ops.op import get_op, groups_of, operands_of

_TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
_COMPILED_IN = attrgetter("family", *_TILE, "num_warps", "num_stages", "others")
_RUN_TIME = attrgetter("family", "others", *_TILE, "SPLIT_K", "GROUP_SIZE_M")
# Triton's loads take .cs from this release on (a compile error before).
_CS_FROM = (3, 8)


def legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Why `config` cannot compute `problem` on `gpu`, in one line; "" when it can."""
    return (
        legal_problem(problem, config.family, config.others, gpu)
        or legal_compiled(problem, config, gpu)
        or legal_stages(problem, config, gpu)
        or legal_run_time(problem, config, gpu)
    )


def require_legal(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu | None) -> None:
    """Raise InputError, which names config, problem and reason, for the first of `configs` that is not legal."""
    # Asked once for configs that share the answer, since there may be 20,000.
    forms: dict[tuple[str, Others], str] = {}
    compiled: set[object] = set()
    run_time: set[object] = set()
    for config in configs:
        if (form := (config.family, config.others)) not in forms:
            forms[form] = legal_problem(problem, *form, gpu)
        reason = forms[form]
        if not reason and (key := _COMPILED_IN(config)) not in compiled:
            compiled.add(key)
            reason = legal_compiled(problem, config, gpu) or legal_stages(problem, config, gpu)
        if not reason and (key := _RUN_TIME(config)) not in run_time:
            run_time.add(key)
            reason = legal_run_time(problem, config, gpu)
        if reason:
            where = f" on {gpu.arch}" if gpu else ""
            raise InputError(f"{config.name} cannot compute {problem.name}{where}: {reason}")


def legal_problem(problem: GemmProblem, family: str, others: Others, gpu: Gpu | None) -> str:
    """As `legal`, for all configs of a family with these parameters off their neutral values."""
    facts = formed(family, others)
    if isinstance(facts, str):
        return facts
    if gpu is not None and (lacking := facts.lacks(gpu)):
        return f"this family needs {lacking}, which {gpu.arch} does not have"
    op = get_op(problem.op)
    a, b, *_ = operands_of(problem)
    of_format = {"converted": op.converts_b, "promoted": op.promotes, "registers": op.in_registers}
    if not (facts.reads == "steps" or of_format.get(facts.reads)) and (op.step_operands(problem) or b.packed > 1):
        return "this family reads nothing but A and B in its steps over K"
    if (a.packed > 1 and not a.row_major) or (b.packed > 1 and b.row_major):
        return "packed operands are read along K only (rowMajorA: T, rowMajorB: N)"
    if a.packed > 1 and facts.reads != "steps":
        return "this family reads a packed B, and A as it is"
    if b.together > 1 and (b.row_major or facts.uses_tma):
        return "weights whose rows are stored together are loaded through pointers, and along K only (rowMajorB: N)"
    if op.batched and not facts.batches:
        return "this family computes one product, not a batch of them"
    if groups := groups_of(problem):
        if not facts.groups:
            return "this family multiplies by one weight, not by one for each group of rows"
        if groups.sorted_slots and not facts.gathers:
            return "this family takes rows as they lie, and does not add them up"
        if not problem.row_major_a or a.packed > 1:
            return "rows in groups lie along K (rowMajorA: T), and are not packed"
    mixed = problem.dtype_a != problem.dtype_b and DTYPES[problem.dtype_a].size_bytes > 1
    if mixed and facts.in_ring:
        return "an instruction of this family multiplies operands of one type"
    if reason := facts.takes(problem, gpu) or counted_limit(problem, facts.uses_tma):
        return reason
    if gpu is not None and facts.cluster_k * math.prod(facts.cluster) > gpu.has.cluster_programs_max:
        return f"a cluster may have {gpu.has.cluster_programs_max} programs on {gpu.arch}, this family's have more"
    return ""


def legal_compiled(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """As `legal`, for what is compiled in: the same for configs that differ in GROUP_SIZE_M and SPLIT_K alone."""
    return values_problem(config) or legal_kernel(problem, config, gpu)


def legal_kernel(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """As `legal_compiled`, of configs whose values their family may have (`values_problem`)."""
    if config.cache_modifier == ".cs" and triton_release() < _CS_FROM:
        return "loads take .cs from Triton 3.8 on"
    facts = form_of(config)
    if (config.xcd_remap or config.cache_modifier != "none") and not facts.places_loads:
        return "this family takes neither xcd_remap nor cache_modifier"
    if gpu is not None and facts.sides.few_m:
        least, rows = facts.sides.least_rows(gpu.has.tile_rows_min), config.BLOCK_SIZE_M
        if rows < least:
            return f"tiles have {least} rows at least on {gpu.arch}"
    if gpu is not None:
        # Of persistent_tma with `specialized` Triton makes one group of warps where it multiplies by wgmma.
        one_group = gpu.has.wgmma and facts.interpreted
        warps = config.num_warps if one_group else config.num_warps + facts.helper_warps
        if warps * gpu.warp_size > gpu.threads_per_block_max:
            return f"more threads than the {gpu.threads_per_block_max:,} that a workgroup may have"
    if reason := facts.legal(problem, config, gpu):
        return reason
    # Of a format, which may ask for more than the family: see Op.legal.
    _, b, *_ = operands_of(problem)
    if b.together > 1 and config.BLOCK_SIZE_K % b.piece:
        return f"BLOCK_SIZE_K is no multiple of the {b.piece} elements of a row that are stored side by side"
    hook = _hook(problem.op)
    if hook and facts.in_ring:
        # Their step is one buffer of the ring, however many are filled together.
        config = config.having(BLOCK_SIZE_K=ring_k(DTYPES[problem.dtype_a].size_bytes))
    return hook(problem, config) if hook else ""


def legal_stages(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """As `legal`, for num_stages of kernels that say what fits before they are compiled (Form.stages)."""
    stages = form_of(config).stages
    return stages(problem, config, gpu)(config.num_stages) if stages else ""


def legal_run_time(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """As `legal`, for SPLIT_K and GROUP_SIZE_M: asked of configs that are legal otherwise.

    From 1 on, what is refused for a value is refused for all larger ones.
    """
    return legal_split(problem, config, gpu) or legal_group(problem, config, gpu)


def legal_group(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """As `legal`, for GROUP_SIZE_M; SPLIT_K is not read."""
    if config.GROUP_SIZE_M < 1:
        return "GROUP_SIZE_M is below 1"
    # A tile has a column at least, so that few sizes need be asked for theirs.
    many = config.GROUP_SIZE_M * problem.N >= INT32
    if many and config.GROUP_SIZE_M * -(-problem.N // config.BLOCK_SIZE_N) >= INT32:
        return "GROUP_SIZE_M rows of tiles are more tiles than 32 bits count"
    return ""


def legal_split(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """As `legal`, for SPLIT_K; GROUP_SIZE_M is not read."""
    split_k, facts = config.SPLIT_K, form_of(config)
    if split_k < 1:
        return "SPLIT_K is below 1"
    if split_k > 1 and not facts.splits_k:
        return "this family does not split K"
    if split_k > GRID_YZ:
        return f"SPLIT_K is over the {GRID_YZ:,} programs of a grid's second dimension"
    if split_k > 1 and groups_of(problem) is not None:
        return "rows in groups are not split along K"
    # A tile has an element at least.
    many = problem.M * problem.N >= INT32 - GRID_YZ or groups_of(problem) is not None
    if many and tiles(problem, config) >= INT32 - GRID_YZ:
        return "more tiles than 32 bits count"
    if split_k > 1 and get_op(problem.op).batched and _elements(problem, config) * split_k >= INT32:
        return "partial sums of a product of the batch are more than 32 bits count"
    return facts.shares(problem, config, gpu)


def _elements(problem: GemmProblem, config: Config) -> int:
    """Of all tiles of C."""
    return tiles(problem, config) * config.BLOCK_SIZE_M * config.BLOCK_SIZE_N


@lru_cache(maxsize=64)
def _hook(op: str) -> Callable[[GemmProblem, Config], str] | None:
    return get_op(op).legal
