"""Which families of a space are tried where only some languages may win (--libtype), and CuTe DSL's besides."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from genkern.errors import InputError
from genkern.gemm.gpus import capabilities_of
from genkern.kernels.catalogue import FAMILIES
from genkern.space.space import SHIPPED_SPACES, Space, load_space, read_space
from genkern.timing.libraries import CUTE, OURS, TRITON

# The shipped spaces of families in CuTe DSL, by the capability that these need; added to the default space.
_CUTE_SPACES = {"wgmma": "nvidia_sm90_cute", "tcgen05": "nvidia_sm100_cute"}


def space_for_libraries(path: str | None, arch: str, op: str, libraries: Collection[str]) -> Space:
    """The space to search, as `load_space` reads it, for `libraries` that may win.

    A default space has the families in CuTe DSL too where these may win, and only them where nothing in Triton may. Of
    a space that was asked for (`path`) the families stay whose language may win. Where no kernel of genkern's may,
    those in Triton are tried all the same. Raises InputError where nothing is left, and as load_space does.
    """
    languages = [name for name in OURS if name in libraries] or [TRITON]
    if path is None:
        space = _with_cute(load_space(None, arch, op), arch, op) if CUTE in languages else load_space(None, arch, op)
    else:
        space = load_space(path, arch, op)
    kept = tuple(family for family in space.families if FAMILIES[family.family].language in languages)
    if not kept:
        names = " or ".join(languages)
        raise InputError(f"--libtype: the space {space.name} has no families in {names} for {op} on {arch}")
    if len(kept) == len(space.families):
        return space
    # Those of families that are gone would stand in --explain's table with nothing to drop.
    rules = space.rules if any(family.rules is None for family in kept) else ()
    return replace(space, families=kept, rules=rules)


def _with_cute(space: Space, arch: str, op: str) -> Space:
    name = next((_CUTE_SPACES[word] for word in _CUTE_SPACES if getattr(capabilities_of(arch), word)), None)
    if name is None:
        return space
    more = read_space(SHIPPED_SPACES / f"{name}.yaml")
    if op not in more.ops:
        return space
    # Their rules are others.
    families = tuple(replace(family, rules=family.rules or more.rules) for family in more.families)
    return replace(space, name=f"{space.name}+{more.name}", families=(*space.families, *families))
