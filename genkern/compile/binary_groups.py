"""Keys by which configs are grouped: those that share binaries, and those whose launches are identical."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence

from genkern.gemm.config import CONFIG_FIELDS, Config
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.records import Binary

# All fields of Config, except GROUP_SIZE_M, which is not compiled in, and SPLIT_K and others, which `binary_group`
# adds.
_FIELDS = operator.attrgetter(*(name for name in CONFIG_FIELDS if name not in ("GROUP_SIZE_M", "SPLIT_K", "others")))


def binary_group(config: Config) -> Hashable:
    """Return a key that is equal for configs that share their binaries, that is, whose `specs.compiled_in` is equal.

    No Config is constructed for it, since it is called several times for every config of a problem.
    """
    known = PARAMETERS.by_name
    others = config.others and tuple(other for other in config.others if not known[other[0]].at_run_time)
    return *_FIELDS(config), config.SPLIT_K > 1, others


def launch_group(config: Config, binaries: Sequence[Binary]) -> Hashable | None:
    """Return a key that is equal for configs whose calls look the same to the hardware: equal code and equal launches.

    It covers all parameters but those that only the compiler reads, which the code's digest stands for. Returns None if
    a binary's record is too old to have the digest of its code.
    """
    code = [(binary.resources.code_sha256, binary.resources.shared_bytes) for binary in binaries]
    if any(digest is None for digest, _ in code):
        return None
    return *seen_of(config), *code


def seen_of(config: Config) -> tuple[Hashable, ...]:
    """Return the family and the parameters of a config, except for those that only the compiler reads."""
    seen = tuple(each for each in config.values.items() if not PARAMETERS.by_name[each[0]].compiler_only)
    return config.family, seen
