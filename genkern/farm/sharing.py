"""What configs have in common: the binaries that are compiled once for them, and the launches of copies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from genkern.gemm.config import Config
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.records import Binary
from genkern.kernels.specs import compiled_in


def compiled_of(config: Config) -> Hashable:
    """What `kernel_specs` looks at: equal for configs that share their binaries."""
    return compiled_in(config)


def launch_of(config: Config, binaries: Sequence[Binary]) -> Hashable | None:
    """What the hardware is given for one call of `config`: equal for two configs that it cannot tell apart.

    That is all that anybody but the compiler sees, and code. None when a binary is too old to say what its code is.
    """
    code = [(binary.resources.code_sha256, binary.resources.shared_bytes) for binary in binaries]
    if any(digest is None for digest, _ in code):
        return None
    seen = tuple(each for each in config.values.items() if not PARAMETERS.by_name[each[0]].compiler_only)
    return config.family, seen, *code
