"""A space of eight configs and four binaries, for tests that run the whole command many times."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from genkern.gemm.config import Config
from genkern.journal.journal_line import entry_of

# The same for AMD, as a file.
TINY_AMD = Path(__file__).with_name("tiny_amd.yaml")
# And with binaries that are split along K.
TINY_NVIDIA = Path(__file__).with_name("tiny_nvidia.yaml")
CONFIGS = [Config("tiled", m, n, 64, group, 1, 4, 2) for m in (16, 32) for n in (32, 64) for group in (1, 4)]
NAMES = [config.name for config in CONFIGS]
# Each config has a time of its own, and no two tie.
FASTER = {name: 100.0 + zlib.crc32(name.encode()) % 97 for name in NAMES}
# Options of a run that measures all of them, in an order that no time changes.
EVERYTHING = "--search", "predicted"
_SPACE = """archs: [sm_90]
ops: [a16w16]
rules: []
families:
  - {family: tiled, BLOCK_SIZE_M: [16, 32], BLOCK_SIZE_N: [32, 64], BLOCK_SIZE_K: [64], num_warps: [4],
     GROUP_SIZE_M: %s, SPLIT_K: [1], num_stages: [2]}
"""


def tiny_command(
    folder: Path, cache: Path, sizes: str, results: str = "r.yaml", groups: Sequence[int] = (1, 4)
) -> list[object]:
    """Options of a run in `folder` over these sizes (a YAML list); of each binary a config for each of the groups."""
    (folder / "sizes.yaml").write_text(sizes)
    (folder / "tiny.yaml").write_text(_SPACE % [*groups])
    files = ["-i", folder / "sizes.yaml", "-o", folder / results]
    return [*files, "--space", folder / "tiny.yaml", "--cache_dir", cache]


def traced(trace: Path) -> list[dict[str, Any]]:
    """What the fake devices did, in the order of time."""
    # Whoever writes it may be at its last line.
    whole, _, _ = trace.read_text().rpartition("\n") if trace.exists() else ("", "", "")
    return [json.loads(line) for line in whole.splitlines()]


def facts_in(journal: Path) -> list[str]:
    """The kinds of the facts that a run has written so far: "screened" once for each config."""
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    entries = [entry_of(line[:-1]) for line in lines if line.endswith(b"\n")]
    counts = (len(entry["value"]["config"]) if entry["fact"] == "screened" else 1 for entry in entries)
    return [entry["fact"] for entry, count in zip(entries, counts, strict=True) for _ in range(count)]
