"""Registry of pruning rules by the names that space files use.

A rule is a function `rule(problem, configs, gpu)` of a table of configs (`ConfigTable`) that returns the mask of those
to drop (`genkern.gemm.columns`). The first line of its docstring is the reason that --explain prints; the other lines
state the rule's source. Rules are about speed, except
`not_deterministic` and the rules of sum_order.py, which users request. Whether a config can compute a problem is
decided by genkern.kernels.legality, so a space without rules is slow, but never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genkern.gemm.columns import Mask, mapped
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.contract.traits import KernelTraits
from genkern.ops.op import groups_of
from genkern.space.rules import amd, cute, families, nvidia, small_m, splits, tiles, tune_gemm, wgmma
from genkern.space.rules.sum_order import order_of, other_order
from genkern.space.rules.tiles import tiles_m

Rule = Callable[[GemmProblem, ConfigTable, Gpu], Mask]


def group_m_redundant(group_sizes: Sequence[int]) -> Rule:
    """Return the rule for a family whose space lists these group sizes. Its docstring says what it drops."""

    def next_smaller(size: int) -> int:
        return max((other for other in group_sizes if other < size), default=0)

    def drop(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
        """GROUP_SIZE_M beyond the smallest value that covers all tiles along M.

        genkern: all group sizes from the number of tiles along M on visit the tiles in the same order. Gluon kernels
        for rows in groups walk from group to group; for them the number of tiles along M is one that few groups exceed.
        """
        smaller, rows = mapped(next_smaller, configs.GROUP_SIZE_M), tiles_m(problem, configs)
        if traits_of(configs).in_ring and (groups := groups_of(problem)) is not None:
            rows = -(-groups.usual_rows(problem.M) // configs.BLOCK_SIZE_M)
        return (smaller > 0) & (smaller >= rows)

    return drop


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        tune_gemm.v34_mfma_size,
        tune_gemm.v34_mfma4_block_k,
        tune_gemm.v34_tile_elements,
        tune_gemm.v34_block_below_mfma,
        tune_gemm.v34_one_block_is_enough,
        tune_gemm.v34_block_over_twice,
        tune_gemm.v34_split_k_unneeded,
        tune_gemm.v34_split_k_uneven,
        tune_gemm.v34_group_m,
        tune_gemm.v34_lds,
        tune_gemm.v34_large_gemm,
        tune_gemm.v2_mfma,
        tune_gemm.v2_split_k_unneeded,
        tune_gemm.v2_split_k_uneven,
        tune_gemm.v2_group_m,
        tune_gemm.v2_lds,
        tiles.dot_needs_k32,
        tiles.accumulator_registers,
        tiles.warps_starved,
        tiles.tile_over_problem,
        tiles.tile_skewed,
        tiles.tile_too_small,
        tiles.large_gemm,
        tiles.split_k_fills,
        tiles.split_k_short,
        tiles.split_k_empty,
        tiles.stages_over_loop,
        nvidia.shared_memory_mma,
        nvidia.shared_memory_warpgroup,
        nvidia.warpgroup_needs_4_warps,
        nvidia.warpgroup_needs_64_rows,
        nvidia.tile_over_problem_warpgroup,
        nvidia.block_k_thin,
        nvidia.specialized_without_tcgen05,
        amd.tile_far_over_problem,
        amd.few_rows_needless,
        amd.split_k_many,
        amd.lanes_without_loads,
        amd.lds_pipeline,
        amd.waves_per_eu_given,
        amd.waves_per_eu_over_lds,
        amd.waves_per_eu_spills,
        amd.kpack_no_effect,
        amd.schedule_hint_ignored,
        amd.xcd_remap_one_xcd,
        amd.cache_modifier_reused,
        amd.cache_modifier_no_effect,
        families.gemv_registers,
        families.gemv_over_problem,
        families.tma_many_waves,
        families.tiled_beside_tma,
        small_m.dot_for_one_row,
        small_m.skinny_rows,
        small_m.skinny_dot_rows,
        small_m.skinny_dot_registers,
        small_m.skinny_dot_stages,
        small_m.skinny_registers,
        small_m.skinny_rows_of_b,
        small_m.skinny_over_problem,
        small_m.swapped_large_m,
        small_m.swapped_instruction,
        splits.not_deterministic,
        wgmma.wgmma_rows,
        wgmma.wgmma_width,
        wgmma.wgmma_tile_small,
        wgmma.wgmma_accumulators,
        wgmma.wgmma_shared_memory,
        wgmma.wgmma_together,
        wgmma.width_fills_nothing,
        wgmma.wgmma_shares,
        wgmma.cluster_shares,
        wgmma.neighbours_share_nothing,
        cute.cute_rows,
        cute.cute_width,
        cute.cute_tile_small,
        cute.cute_stages,
        cute.cute_fitted,
        cute.cute_wave,
        cute.cute_cluster_empty,
        cute.cute_large_cluster,
        cute.cute_direct,
        cute.cute_parts,
    )
}
# This rule compares a group size with the others of its family, so it is made for each family.
GROUP_RULE = "group_m_redundant"
RULE_NAMES = (*RULES, GROUP_RULE)
# Rules that are about a single form, by its `Form.stem`. They are not evaluated for other forms.
_STEM_OF = {
    "gemv_registers": "gemv",
    "gemv_over_problem": "gemv",
    "skinny_rows": "skinny",
    "skinny_registers": "skinny",
    "skinny_over_problem": "skinny",
    "skinny_dot_rows": "skinny_dot",
    "skinny_dot_registers": "skinny_dot",
    "skinny_dot_stages": "skinny_dot",
    "tma_many_waves": "tiled_tma",
    "tiled_beside_tma": "tiled",
}


def is_for(name: str, traits: KernelTraits) -> bool:
    """Return whether the rule of this name applies to configs of this form."""
    return _STEM_OF.get(name, traits.stem) == traits.stem


def rule_for(name: str, group_sizes: Sequence[int]) -> Rule:
    """Return the rule of this name for a family that lists these group sizes."""
    if (order := order_of(name)) is not None:
        return other_order(order)
    return group_m_redundant(group_sizes) if name == GROUP_RULE else RULES[name]


def reason(name: str) -> str:
    """Return the first line of the rule's docstring."""
    text = rule_for(name, (1,)).__doc__ or ""
    return text.strip().splitlines()[0]
