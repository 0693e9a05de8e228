"""Legality: whether a family can compute a problem with configs on a GPU, and if not, why.

It is checked during pruning, for configs from earlier runs and results files, and before generation. A legal config
compiles, launches and computes the product, unless the compiler finds that registers or shared memory do not suffice.
Whether a config is worth trying is decided by the rules of space files. With None for `gpu`, the functions check only
limits of every device.

Every check is a generator that yields masks over a table of configs, each with a reason (`genkern.gemm.columns`).
Families and formats from outside genkern may give a function of a single config instead, which returns the reason or
""; `of_single_configs` turns it into masks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from genkern.errors import InputError
from genkern.gemm.columns import Refusals
from genkern.gemm.config import Config, Others
from genkern.gemm.config_table import ConfigTable, tables_of
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import INT32, GemmProblem
from genkern.gemm.triton_release import triton_release
from genkern.kernels.catalogue import refused_values, traits_for, traits_of
from genkern.kernels.contract.gluon_tile import ring_k
from genkern.kernels.contract.traits import KernelTraits
from genkern.kernels.families.index_width import counted_limit
from genkern.kernels.families.limits import GRID_YZ, tiles, too_many
from genkern.ops.op import get_op, groups_of, operands_of

# First release of Triton whose loads take .cs; earlier releases fail to compile it.
_CS_FROM = (3, 8)


def legal(problem: GemmProblem, config: Config, gpu: Gpu | None) -> str:
    """Return why `config` cannot compute `problem` on `gpu`, in one line, or ""."""
    return next((reason for mask, reason in refusals(problem, ConfigTable.of(config), gpu) if mask), "")


def require_legal(problem: GemmProblem, configs: Sequence[Config], gpu: Gpu | None) -> None:
    """Raise InputError for the first config that is not legal. The message names config, problem and reason."""
    refused: dict[int, str] = {}
    for table, places in tables_of(configs):
        refused |= {places[place]: reason for place, reason in _first_refused(refusals(problem, table, gpu), table)}
    if refused:
        first = min(refused)
        where = f" on {gpu.arch}" if gpu else ""
        raise InputError(f"{configs[first].name} cannot compute {problem.name}{where}: {refused[first]}")


def _first_refused(reasons: Refusals, configs: ConfigTable) -> Iterator[tuple[int, str]]:
    """Yield the place of the first config of a flat table that is refused, and the first reason; or nothing."""
    import numpy as np

    first = configs.size
    found = ""
    with np.errstate(all="ignore"):
        for mask, reason in reasons:
            # A later reason counts only for a config that stands before those that earlier reasons refuse.
            refused = np.broadcast_to(mask, configs.shape)[:first]
            if refused.any():
                first, found = int(refused.argmax()), reason
    if found:
        yield first, found


def refusals(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Yield all reasons why configs cannot compute the problem, with masks, in the order in which reasons count."""
    if reason := legal_problem(problem, configs.family, configs.others, gpu):
        yield True, reason
        return
    yield from refused_values(configs)
    yield from refused_kernels(problem, configs, gpu)
    yield from refused_run_time(problem, configs, gpu)


def legal_problem(problem: GemmProblem, family: str, others: Others, gpu: Gpu | None) -> str:
    """Like `legal`, for all configs of a family with the non-neutral parameters `others`."""
    facts = traits_for(family, others)
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


def refused_kernels(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Like `refusals`, for parameters that are compiled in, which are all except GROUP_SIZE_M and SPLIT_K."""
    facts = traits_of(configs)
    if triton_release() < _CS_FROM:
        yield configs.cache_modifier == ".cs", "cache_modifier .cs needs Triton 3.8 or later"
    if not facts.places_loads:
        yield (
            (configs.xcd_remap == 1) | (configs.cache_modifier != "none"),
            "this family takes neither xcd_remap nor cache_modifier",
        )
    if gpu is not None:
        if facts.sides.few_m:
            least = facts.sides.least_rows(gpu.has.tile_rows_min)
            rows = configs.BLOCK_SIZE_M
            yield rows < least, f"tiles must have at least {least} rows on {gpu.arch}"
        yield (
            (configs.num_warps + _helper_warps(facts, gpu)) * gpu.warp_size > gpu.threads_per_block_max,
            f"more threads than the {gpu.threads_per_block_max:,} that a workgroup may have",
        )
    yield from _refused_by(facts.legal, problem, configs, gpu)
    # The format may be stricter than the family: see Op.legal.
    _, b, *_ = operands_of(problem)
    if b.together > 1:
        yield (
            configs.BLOCK_SIZE_K % b.piece != 0,
            f"BLOCK_SIZE_K is not a multiple of the {b.piece} elements of a row that are stored side by side",
        )
    if (hook := _hook(problem.op)) is not None:
        if facts.in_ring:
            # A step of these kernels is one buffer of the ring, however many are filled together.
            yield from _refused_by(
                hook, problem, configs.with_values(BLOCK_SIZE_K=ring_k(DTYPES[problem.dtype_a].size_bytes))
            )
        else:
            yield from _refused_by(hook, problem, configs)
    if facts.stages is not None:
        yield from facts.stages(problem, configs, gpu)


def block_warps(config: Config, gpu: Gpu) -> int:
    """Return the number of warps of a block: num_warps, and the warps that only load or store."""
    return config.num_warps + _helper_warps(traits_of(config), gpu)


def _helper_warps(facts: KernelTraits, gpu: Gpu) -> int:
    """Return the number of warps of a block that only load or store."""
    # With wgmma, Triton does not split the warps of persistent_tma with `specialized`.
    return 0 if gpu.has.wgmma and facts.interpreted else facts.helper_warps


def refused_run_time(problem: GemmProblem, configs: ConfigTable, gpu: Gpu | None) -> Refusals:
    """Like `refusals`, for SPLIT_K and GROUP_SIZE_M of configs that are legal otherwise."""
    facts, groups, split_k = traits_of(configs), groups_of(problem), configs.SPLIT_K
    yield split_k < 1, "SPLIT_K is below 1"
    if not facts.splits_k:
        yield split_k > 1, "this family does not split K"
    yield split_k > GRID_YZ, f"SPLIT_K is above {GRID_YZ:,}, the most programs along a grid's second dimension"
    if groups is not None:
        yield split_k > 1, "rows in groups are not split along K"
    # A tile has at least one element, so this cheap bound settles most problems.
    if problem.M * problem.N >= INT32 - GRID_YZ or groups is not None:
        yield tiles(problem, configs) >= INT32 - GRID_YZ, "more tiles than 32 bits count"
    if get_op(problem.op).batched:
        elements = tiles(problem, configs) * configs.BLOCK_SIZE_M * configs.BLOCK_SIZE_N
        yield (
            (split_k > 1) & too_many(elements, split_k),
            "one product of the batch has more partial sums than 32 bits count",
        )
    yield from _refused_by(facts.shares, problem, configs, gpu, ignored=("GROUP_SIZE_M",))
    yield configs.GROUP_SIZE_M < 1, "GROUP_SIZE_M is below 1"
    yield (
        configs.GROUP_SIZE_M * -(-problem.N // configs.BLOCK_SIZE_N) >= INT32,
        "GROUP_SIZE_M rows of tiles have more tiles than 32 bits count",
    )


def _refused_by(
    check: Callable[..., Any],
    problem: GemmProblem,
    configs: ConfigTable,
    *gpu: Gpu | None,
    ignored: tuple[str, ...] = ("GROUP_SIZE_M", "SPLIT_K"),
) -> Refusals:
    """Yield what a family's or format's check refuses, whether it takes a table or a single config.

    `ignored` are the parameters that the check must not read.

    Raises InputError, in one line, for a check that uses a table as if it were a single config, or returns no reason.
    """
    if not _takes_tables(check):
        yield from of_single_configs(lambda config: check(problem, config, *gpu), configs, ignored)
        return
    try:
        yield from check(problem, configs, *gpu)
    except ValueError as error:
        # NumPy refuses `if`, `and`, `or` and `not` for arrays, which a check from outside genkern may use by mistake.
        if "truth value" not in str(error):
            raise
        raise InputError(
            f"{configs.family}: its check of configs asks for the truth of a column: combine masks with & and |, or "
            "return the reason for a single config (docs/cute.md)"
        ) from error


def of_single_configs(reason_of: Callable[[Config], str], configs: ConfigTable, ignored: tuple[str, ...]) -> Refusals:
    """Yield the masks of a function of a single config, which returns why the config is refused, or "".

    The function must not read the parameters `ignored`; it gets each combination of the other parameters once. Raises
    InputError if it returns no text.
    """
    alike = configs.without(*ignored) if configs.shape else configs
    reasons = [reason_of(config) for config in alike.configs()]
    if not all(isinstance(reason, str) for reason in reasons):
        raise InputError(
            f'{configs.family}: a check of a single config must return the reason as text, or ""; a check of a table '
            "must be a generator that yields masks with reasons (docs/cute.md)"
        )
    if not configs.shape:
        if reasons[0]:
            yield True, reasons[0]
        return
    import numpy as np

    for reason in dict.fromkeys(filter(None, reasons)):
        yield np.array([each == reason for each in reasons]).reshape(alike.shape), reason


@lru_cache(maxsize=256)
def _takes_tables(check: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(check)


@lru_cache(maxsize=64)
def _hook(op: str) -> Callable[[GemmProblem, Any], Refusals | str] | None:
    return get_op(op).legal
