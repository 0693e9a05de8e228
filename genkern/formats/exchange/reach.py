"""Reach: whether a file serves every M that its reader may ask for. A reader takes the config of the nearest M.

vLLM and SGLang do so (get_w8a8_block_fp8_configs and get_moe_configs are indexed by the key with the least distance),
and such a file takes the place of their own choice for all M.
"""

from __future__ import annotations

from collections.abc import Collection

# Decoding is fewer rows than the first, prefill more than the second: whoever serves has both.
_DECODES, _PREFILLS = 64, 1024


def unreached(tuned: Collection[int], written: Collection[int]) -> str:
    """Why a file with these M would serve others badly, of all that were tuned for it; "" where it does not.

    `written` have a config that the reader's kernel can run.
    """
    if missing := sorted(set(tuned) - set(written)):
        return f"no config that its reader can run was timed for M = {', '.join(map(str, missing))}"
    if (least := min(written)) > _DECODES:
        return f"nothing was tuned below M = {least}, and its config would decode: tune M = 1 and 16 too"
    if (most := max(written)) < _PREFILLS:
        return f"nothing was tuned beyond M = {most}, and its config would serve prefill: tune M = 1024 and 4096 too"
    return ""
