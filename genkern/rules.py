"""The registry of pruning rules, by the names that space files use.

A rule is a function `rule(problem, config, gpu) -> bool`: True drops the config. The first line of its
docstring is the reason that --explain shows; the rest says where the rule comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genkern import (
    rules_amd,
    rules_families,
    rules_nvidia,
    rules_small_m,
    rules_splits,
    rules_tiles,
    rules_tune_gemm,
    rules_wgmma,
)
from genkern.config import Config
from genkern.gpus import Gpu
from genkern.problem import GemmProblem
from genkern.rules_tiles import tiles_m

Rule = Callable[[GemmProblem, Config, Gpu], bool]


def group_m_redundant(group_sizes: Sequence[int]) -> Rule:
    """The rule for a family whose space lists these group sizes; see `drop` for what it drops."""
    ordered = sorted(group_sizes)
    below = {size: ordered[:position] for position, size in enumerate(ordered)}

    def drop(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
        """GROUP_SIZE_M beyond the smallest one that covers all tiles along M.

        genkern: all group sizes from the number of tiles along M on visit the tiles in the same order.
        """
        smaller = below[config.GROUP_SIZE_M]
        return bool(smaller) and smaller[-1] >= tiles_m(problem, config)

    return drop


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        rules_tune_gemm.v34_mfma_size,
        rules_tune_gemm.v34_mfma4_block_k,
        rules_tune_gemm.v34_tile_elements,
        rules_tune_gemm.v34_block_below_mfma,
        rules_tune_gemm.v34_one_block_is_enough,
        rules_tune_gemm.v34_block_over_twice,
        rules_tune_gemm.v34_split_k_unneeded,
        rules_tune_gemm.v34_split_k_uneven,
        rules_tune_gemm.v34_group_m,
        rules_tune_gemm.v34_lds,
        rules_tune_gemm.v34_large_gemm,
        rules_tune_gemm.v2_mfma,
        rules_tune_gemm.v2_split_k_unneeded,
        rules_tune_gemm.v2_split_k_uneven,
        rules_tune_gemm.v2_group_m,
        rules_tune_gemm.v2_lds,
        rules_tiles.threads_over_limit,
        rules_tiles.dot_needs_k32,
        rules_tiles.accumulator_registers,
        rules_tiles.warps_starved,
        rules_tiles.tile_over_problem,
        rules_tiles.tile_skewed,
        rules_tiles.tile_too_small,
        rules_tiles.large_gemm,
        rules_tiles.split_k_fills,
        rules_tiles.split_k_short,
        rules_tiles.split_k_empty,
        rules_tiles.stages_over_loop,
        rules_nvidia.shared_memory_mma,
        rules_nvidia.shared_memory_warpgroup,
        rules_nvidia.warpgroup_needs_4_warps,
        rules_nvidia.warpgroup_needs_64_rows,
        rules_nvidia.tile_over_problem_warpgroup,
        rules_nvidia.block_k_thin,
        rules_nvidia.tma_needs_sm90,
        rules_nvidia.tma_aligned,
        rules_nvidia.tma_box_narrow,
        rules_nvidia.specialized_without_tcgen05,
        rules_amd.lds_pipeline,
        rules_amd.waves_per_eu_given,
        rules_amd.waves_per_eu_over_lds,
        rules_amd.waves_per_eu_spills,
        rules_amd.kpack_no_effect,
        rules_amd.schedule_hint_ignored,
        rules_amd.xcd_remap_one_xcd,
        rules_amd.cache_modifier_reused,
        rules_amd.cache_modifier_no_effect,
        rules_families.gemv_one_row,
        rules_families.gemv_registers,
        rules_families.gemv_over_problem,
        rules_families.tma_many_waves,
        rules_small_m.dot_for_one_row,
        rules_small_m.skinny_rows,
        rules_small_m.skinny_registers,
        rules_small_m.skinny_rows_of_b,
        rules_small_m.skinny_over_problem,
        rules_small_m.swapped_large_m,
        rules_small_m.swapped_instruction,
        rules_splits.not_deterministic,
        rules_splits.atomic_compare_and_swap,
        rules_splits.stream_k_full_wave,
        rules_splits.stream_k_short_share,
        rules_wgmma.wgmma_operands,
        rules_wgmma.wgmma_rows,
        rules_wgmma.wgmma_width,
        rules_wgmma.wgmma_tile_small,
        rules_wgmma.wgmma_accumulators,
        rules_wgmma.wgmma_shared_memory,
        rules_wgmma.wgmma_together,
        rules_wgmma.width_fills_nothing,
        rules_wgmma.wgmma_shares,
        rules_wgmma.cluster_triton,
        rules_wgmma.cluster_shares,
    )
}
# This one compares a group size with the others of its family, so it is made for each family.
GROUP_RULE = "group_m_redundant"
RULE_NAMES = (*RULES, GROUP_RULE)
# Rules that read GROUP_SIZE_M or SPLIT_K; all others say the same of every config that shares a binary. Of the
# compiled-in fields these read no others than SHAPE_FIELDS, so that they need not be asked for each binary.
RUNTIME_RULES = frozenset(
    {
        GROUP_RULE,
        "v34_split_k_unneeded",
        "v34_split_k_uneven",
        "v34_group_m",
        "v2_split_k_unneeded",
        "v2_split_k_uneven",
        "v2_group_m",
        "split_k_fills",
        "split_k_short",
        "split_k_empty",
        "stages_over_loop",
        "width_fills_nothing",
        "wgmma_shares",
    }
)
# Of these, the ones that read GROUP_SIZE_M; they do not read SPLIT_K.
GROUP_RULES = frozenset({GROUP_RULE, "v34_group_m", "v2_group_m"})
SHAPE_FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_stages")


def rule_for(name: str, group_sizes: Sequence[int]) -> Rule:
    """The rule of that name, for a family that lists these group sizes."""
    return group_m_redundant(group_sizes) if name == GROUP_RULE else RULES[name]


def reason(name: str) -> str:
    """First line of the rule's docstring."""
    text = rule_for(name, (1,)).__doc__ or ""
    return text.strip().splitlines()[0]
