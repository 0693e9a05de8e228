"""What configs have in common: the binaries that are compiled once for them, and the launches of copies."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence

from genkern.gemm.config import CONFIG_FIELDS, Config
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.records import Binary

# Of each parameter that is a field of every config, but for the two that `compiled_in` treats by themselves.
_FIELDS = operator.attrgetter(*(name for name in CONFIG_FIELDS if name not in ("GROUP_SIZE_M", "SPLIT_K", "others")))


def compiled_of(config: Config) -> Hashable:
    """Equal for configs that share their binaries, that is, of which `specs.compiled_in` is the same.

    It is asked of every config of a size, several times, so no config is made for it.
    """
    known = PARAMETERS.by_name
    others = config.others and tuple(other for other in config.others if not known[other[0]].at_run_time)
    return *_FIELDS(config), config.SPLIT_K > 1, others


def launch_of(config: Config, binaries: Sequence[Binary]) -> Hashable | None:
    """What the hardware is given for one call of `config`: equal for two configs that it cannot tell apart.

    That is all that anybody but the compiler sees, and code. None when a binary is too old to say what its code is.
    """
    code = [(binary.resources.code_sha256, binary.resources.shared_bytes) for binary in binaries]
    if any(digest is None for digest, _ in code):
        return None
    return *seen_of(config), *code


def seen_of(config: Config) -> tuple[Hashable, ...]:
    """What anybody but the compiler sees of a config."""
    seen = tuple(each for each in config.values.items() if not PARAMETERS.by_name[each[0]].compiler_only)
    return config.family, seen
