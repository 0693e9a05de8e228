"""Selection of a space's families by the languages that may win (--libtype), and addition of CuTe DSL families."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from genkern.errors import InputError
from genkern.gemm.gpus import capabilities_of
from genkern.kernels.catalogue import FAMILIES
from genkern.space.space import SHIPPED_SPACES, Space, load_space, read_space
from genkern.timing.libraries import CUTE, OURS, TRITON

# Shipped spaces of CuTe DSL families, by the GPU feature that the families need. They are added to the default space.
_CUTE_SPACES = {"wgmma": "nvidia_sm90_cute", "tcgen05": "nvidia_sm100_cute"}


def space_for_libraries(path: str | None, arch: str, op: str, libraries: Collection[str]) -> Space:
    """Return the space to search if only `libraries` may win.

    Without `path`, the default space is used, with CuTe DSL families added if they may win. Families whose language may
    not win are removed. If no kernel of genkern may win, Triton families are tried anyway. Raises InputError if no
    family is left, and whenever `load_space` does.
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
    # Without this, --explain's table would list rules of removed families, which have nothing to drop.
    rules = space.rules if any(family.rules is None for family in kept) else ()
    return replace(space, families=kept, rules=rules)


def _with_cute(space: Space, arch: str, op: str) -> Space:
    name = next((_CUTE_SPACES[word] for word in _CUTE_SPACES if getattr(capabilities_of(arch), word)), None)
    if name is None:
        return space
    more = read_space(SHIPPED_SPACES / f"{name}.yaml")
    if op not in more.ops:
        return space
    # The CuTe DSL families keep the rules of their own space.
    families = tuple(replace(family, rules=family.rules or more.rules) for family in more.families)
    return replace(space, name=f"{space.name}+{more.name}", families=(*space.families, *families))
