"""The forms of all kernel families, by what their kernels are called after, for tests that hold each to something."""

from __future__ import annotations

from genkern.gemm.config import Config, Others
from genkern.kernels.catalogue import CUTE, FAMILIES, forms_of
from genkern.kernels.contract.traits import Form

# By stem ("warp_specialized_swapped_cluster2"): the family, and the parameters that are off their neutral values.
PLACES: dict[str, tuple[str, Others]] = {
    form.stem: (family, others) for family in FAMILIES for others, form in forms_of(family).items()
}
FORMS: dict[str, Form] = {form.stem: form for family in FAMILIES for form in forms_of(family).values()}
# Those in Gluon with a ring of buffers, and those in CuTe DSL.
RINGS = tuple(stem for stem, form in FORMS.items() if form.in_ring and not form.realigned)
REALIGNED = tuple(stem for stem, form in FORMS.items() if form.realigned)
CUTE_FORMS = tuple(stem for stem, (family, _) in PLACES.items() if family in CUTE)


def made(stem: str, *values: int, **named: int | str) -> Config:
    """A config of that form: the values are those of Config, in its order, or by name."""
    if stem not in PLACES:
        return Config(stem, *values, **named)  # type: ignore[arg-type]
    family, others = PLACES[stem]
    return Config(family, *values, **{**dict(others), **named})  # type: ignore[arg-type]
