"""Legality: whether a family can compute a problem with a config on a GPU, and if not, why.

It is checked during pruning, for configs from earlier runs and results files, and before generation. A legal config
compiles, launches and computes the product, unless the compiler finds that registers or shared memory do not suffice.
Whether a config is worth trying is decided by the rules of space files. With None for `gpu`, the functions check only
the limits of every device.

Pruning calls the parts separately, each only when its answer can differ: `legal_problem` (form and problem),
`legal_compiled` and `legal_stages` (parameters that are compiled in) and `legal_run_time` (GROUP_SIZE_M and SPLIT_K, in
which configs with the same binary differ).
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
# First release of Triton whose loads take .cs; earlier releases fail to compile it.
_CS_FROM = (3, 8)


def legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Return why `config` cannot compute `problem` on `gpu`, in one line, or ""."""
    return (
        legal_problem(problem, config.family, config.others, gpu)
        or legal_compiled(problem, config, gpu)
        or legal_stages(problem, config, gpu)
        or legal_run_time(problem, config, gpu)
    )


def require_legal(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu | None) -> None:
    """Raise InputError for the first config that is not legal. The message names config, problem and reason."""
    # Each part is checked once for all configs that share its answer, since there may be 20,000 configs.
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
    """Like `legal`, for all configs of a family with the non-neutral parameters `others`."""
    facts = formed(family, others)
    if isinstance(facts, str):
        return facts
    if gpu is not None and (lacking := facts.lacks(gpu)):
        return f"this family needs {lacking}, which {gpu.arch} does not have"
    op = get_op(problem.op)
    a, b, *_ = operands_of(problem)
    of_format = {"converted": op.converts_b, "promoted": op.promotes, "registers": op.in_registers}
    if not (facts.reads == "steps" or of_format.get(facts.reads)) and (op.step_operands(problem) or b.packed > 1):
        return "the loop over K of this family reads nothing but A and B"
    if (a.packed > 1 and not a.row_major) or (b.packed > 1 and b.row_major):
        return "packed operands must be contiguous along K (rowMajorA: T, rowMajorB: N)"
    if a.packed > 1 and facts.reads != "steps":
        return "this family takes a packed B, but no packed A"
    if b.together > 1 and (b.row_major or facts.uses_tma):
        return (
            "weights whose rows are stored together must be contiguous along K (rowMajorB: N), and loaded without TMA"
        )
    if op.batched and not facts.batches:
        return "this family computes one product, not a batch of them"
    if groups := groups_of(problem):
        if not facts.groups:
            return "this family multiplies by a single weight, not by one for each group of rows"
        if groups.sorted_slots and not facts.gathers:
            return "this family neither gathers rows nor adds them up"
        if not problem.row_major_a or a.packed > 1:
            return "rows in groups must be contiguous along K (rowMajorA: T) and not packed"
    mixed = problem.dtype_a != problem.dtype_b and DTYPES[problem.dtype_a].size_bytes > 1
    if mixed and facts.in_ring:
        return "an instruction of this family multiplies operands of one type"
    if reason := facts.takes(problem, gpu) or counted_limit(problem, facts.uses_tma):
        return reason
    if gpu is not None and facts.cluster_k * math.prod(facts.cluster) > gpu.has.cluster_programs_max:
        return (
            f"this family's clusters have more than the {gpu.has.cluster_programs_max} programs allowed on {gpu.arch}"
        )
    return ""


def legal_compiled(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Like `legal`, for parameters that are compiled in, which are all except GROUP_SIZE_M and SPLIT_K."""
    return values_problem(config) or legal_kernel(problem, config, gpu)


def legal_kernel(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Like `legal_compiled`, for configs whose values have passed `values_problem`."""
    if config.cache_modifier == ".cs" and triton_release() < _CS_FROM:
        return "cache_modifier .cs needs Triton 3.8 or later"
    facts = form_of(config)
    if (config.xcd_remap or config.cache_modifier != "none") and not facts.places_loads:
        return "this family takes neither xcd_remap nor cache_modifier"
    if gpu is not None and facts.sides.few_m:
        least, rows = facts.sides.least_rows(gpu.has.tile_rows_min), config.BLOCK_SIZE_M
        if rows < least:
            return f"tiles must have at least {least} rows on {gpu.arch}"
    if gpu is not None and block_warps(config, gpu) * gpu.warp_size > gpu.threads_per_block_max:
        return f"more threads than the {gpu.threads_per_block_max:,} that a workgroup may have"
    if reason := facts.legal(problem, config, gpu):
        return reason
    # The format may be stricter than the family: see Op.legal.
    _, b, *_ = operands_of(problem)
    if b.together > 1 and config.BLOCK_SIZE_K % b.piece:
        return f"BLOCK_SIZE_K is not a multiple of the {b.piece} elements of a row that are stored side by side"
    hook = _hook(problem.op)
    if hook and facts.in_ring:
        # A step of these kernels is one buffer of the ring, however many are filled together.
        config = config.having(BLOCK_SIZE_K=ring_k(DTYPES[problem.dtype_a].size_bytes))
    return hook(problem, config) if hook else ""


def block_warps(config: Config, gpu: Gpu) -> int:
    """Return the number of warps of a block: num_warps, and the warps that only load or store."""
    facts = form_of(config)
    # With wgmma, Triton does not split the warps of persistent_tma with `specialized`.
    one_group = gpu.has.wgmma and facts.interpreted
    return config.num_warps if one_group else config.num_warps + facts.helper_warps


def legal_stages(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Like `legal`, for num_stages of kernels whose shared memory is known before they are compiled (Form.stages)."""
    stages = form_of(config).stages
    return stages(problem, config, gpu)(config.num_stages) if stages else ""


def legal_run_time(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Like `legal`, for SPLIT_K and GROUP_SIZE_M of configs that are legal otherwise.

    If a value of at least 1 is refused, all larger values are refused too.
    """
    return legal_split(problem, config, gpu) or legal_group(problem, config, gpu)


def legal_group(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Like `legal`, for GROUP_SIZE_M. Does not read SPLIT_K."""
    if config.GROUP_SIZE_M < 1:
        return "GROUP_SIZE_M is below 1"
    # A tile has at least one column, so this cheap bound settles most problems.
    many = config.GROUP_SIZE_M * problem.N >= INT32
    if many and config.GROUP_SIZE_M * -(-problem.N // config.BLOCK_SIZE_N) >= INT32:
        return "GROUP_SIZE_M rows of tiles have more tiles than 32 bits count"
    return ""


def legal_split(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Like `legal`, for SPLIT_K. Does not read GROUP_SIZE_M."""
    split_k, facts = config.SPLIT_K, form_of(config)
    if split_k < 1:
        return "SPLIT_K is below 1"
    if split_k > 1 and not facts.splits_k:
        return "this family does not split K"
    if split_k > GRID_YZ:
        return f"SPLIT_K is above {GRID_YZ:,}, the most programs along a grid's second dimension"
    if split_k > 1 and groups_of(problem) is not None:
        return "rows in groups are not split along K"
    # A tile has at least one element, so this cheap bound settles most problems.
    many = problem.M * problem.N >= INT32 - GRID_YZ or groups_of(problem) is not None
    if many and tiles(problem, config) >= INT32 - GRID_YZ:
        return "more tiles than 32 bits count"
    if split_k > 1 and get_op(problem.op).batched and _elements(problem, config) * split_k >= INT32:
        return "one product of the batch has more partial sums than 32 bits count"
    return facts.shares(problem, config, gpu)


def _elements(problem: GemmProblem, config: Config) -> int:
    """Return the elements of all tiles of C."""
    return tiles(problem, config) * config.BLOCK_SIZE_M * config.BLOCK_SIZE_N


@lru_cache(maxsize=64)
def _hook(op: str) -> Callable[[GemmProblem, Config], str] | None:
    return get_op(op).legal
