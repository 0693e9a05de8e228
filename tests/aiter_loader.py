"""Which config AITER's loader takes from a folder of configs, in each of its releases.

Follows ROCm/aiter: aiter/ops/triton/utils/gemm_config_utils.py (get_gemm_config) and, for the newest, config_utils.py
(resolve_config_dir).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOUNDS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def taken_by_aiter(configs: Path, arch: str, family: str, size: tuple[int, int, int], release: str) -> Any:
    """The config for M, N and K, and whether it is of a file for this N and K.

    `release`: "2026-07" has one folder, "2026-08" prefers the folders of families that have a DEFAULT.json, "2026-09"
    has these alone. Raises FileNotFoundError if the family has no default, which AITER asserts.
    """
    m, n, k = size
    nested = configs / arch / "triton" / "gemm" / family.lower().replace("-", "_")
    in_nested = release == "2026-09" or (release == "2026-08" and (nested / "DEFAULT.json").exists())
    stem = nested / family if in_nested else configs / "gemm" / f"{arch}-{family}"
    default = nested / "DEFAULT.json" if in_nested else stem.with_name(f"{stem.name}.json")
    found, own = json.loads(default.read_text()), stem.with_name(f"{stem.name}-N={n}-K={k}.json")
    if own.exists():
        found = json.loads(own.read_text())
    return config_for(found, m), own.exists()


def config_for(configs: dict[str, Any], M: int) -> Any:
    """The least M_LEQ_x that holds M, the greatest M_GEQ_x, any."""
    for bound in BOUNDS:
        if bound >= M and f"M_LEQ_{bound}" in configs:
            return configs[f"M_LEQ_{bound}"]
    for bound in reversed(BOUNDS):
        if bound <= M and f"M_GEQ_{bound}" in configs:
            return configs[f"M_GEQ_{bound}"]
    return configs["any"]
