"""The forms of all kernel families, by what their kernels are called after, for tests that hold each to something."""

from __future__ import annotations

from genkern.gemm.config import Config, Others
from genkern.kernels.catalogue import CUTE, FAMILIES, all_traits_of
from genkern.kernels.contract.traits import KernelTraits

# By stem ("warp_specialized_swapped_cluster2"): the family, and the parameters that are off their neutral values.
PLACES: dict[str, tuple[str, Others]] = {
    traits.stem: (family, others) for family in FAMILIES for others, traits in all_traits_of(family).items()
}
FORMS: dict[str, KernelTraits] = {
    traits.stem: traits for family in FAMILIES for traits in all_traits_of(family).values()
}
# Those in Gluon with a ring of buffers, and those in CuTe DSL.
RINGS = tuple(stem for stem, traits in FORMS.items() if traits.in_ring and not traits.realigned)
REALIGNED = tuple(stem for stem, traits in FORMS.items() if traits.realigned)
CUTE_FORMS = tuple(stem for stem, (family, _) in PLACES.items() if family in CUTE)


def made(stem: str, *values: int, **named: int | str) -> Config:
    """A config of that form: the values are those of Config, in its order, or by name."""
    if stem not in PLACES:
        return Config(stem, *values, **named)  # type: ignore[arg-type]
    family, others = PLACES[stem]
    return Config(family, *values, **{**dict(others), **named})  # type: ignore[arg-type]
