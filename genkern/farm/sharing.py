"""What configs have in common: the binaries that are compiled once for them, and the launches of copies."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence

from genkern.gemm.config import AMD_NEUTRAL, CONFIG_FIELDS, Config
from genkern.gemm.records import Binary

# What the compiler alone sees; every other field of a config decides grid or arguments.
COMPILER_FIELDS = ("num_stages", "cache_modifier", *AMD_NEUTRAL)
_COMPILED_FIELDS = operator.attrgetter(*(name for name in CONFIG_FIELDS if name not in ("GROUP_SIZE_M", "SPLIT_K")))
_LAUNCH_FIELDS = operator.attrgetter(*(name for name in CONFIG_FIELDS if name not in COMPILER_FIELDS))


def compiled_of(config: Config) -> Hashable:
    """What `kernel_specs` looks at: equal for configs that share their binaries."""
    return *_COMPILED_FIELDS(config), config.SPLIT_K > 1


def launch_of(config: Config, binaries: Sequence[Binary]) -> Hashable | None:
    """What the hardware is given for one call of `config`: equal for two configs that it cannot tell apart.

    None when a binary is too old to say what its code is.
    """
    code = [(binary.resources.code_sha256, binary.resources.shared_bytes) for binary in binaries]
    if any(digest is None for digest, _ in code):
        return None
    return *_LAUNCH_FIELDS(config), *code
