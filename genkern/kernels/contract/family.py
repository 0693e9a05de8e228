"""Family: kernels of one design, with the parameters that tell them apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from genkern.gemm.parameter import PARAMETERS, Parameter, Value
from genkern.kernels.contract.form import Form

# Values of those of a family's parameters that change its text, by name.
Choice = dict[str, Value]


@dataclass(frozen=True)
class Family:
    """A family of kernels.

    `parameters`: those that it takes besides tile, GROUP_SIZE_M, SPLIT_K, num_warps and num_stages, each with the
    values that it may have here; families that run on AMD take AMD's options too. Kernels in generated modules are
    given those that are `arguments`; CuTe families give them to their kernels themselves. `form`: the facts of its
    kernels for a choice of those parameters that change the text, or why there are none; or one form, where there is
    nothing to choose. `language`: what they are written in, "triton" (Gluon too) or "cute"; what is not Triton's is no
    part of a generated module, and `Variant.template` names its file. Kernels around the main one may be Triton's all
    the same.
    """

    name: str
    form: Form | Callable[[Choice], Form | str]
    parameters: tuple[Parameter, ...] = ()
    language: str = "triton"

    def __post_init__(self) -> None:
        for parameter in self.parameters:
            PARAMETERS.declare(parameter)

    @cached_property
    def arguments(self) -> tuple[Parameter, ...]:
        """Parameters that are arguments of the kernel that multiplies."""
        return tuple(parameter for parameter in self.parameters if parameter.is_argument)

    @property
    def in_text(self) -> tuple[Parameter, ...]:
        """Those of its parameters that change the text."""
        return tuple(parameter for parameter in self.parameters if parameter.in_text)

    def formed(self, choice: Choice) -> Form | str:
        """The form for these values; those that are not given are neutral."""
        if isinstance(self.form, Form):
            return self.form
        neutral = {parameter.name: PARAMETERS.neutral[parameter.name] for parameter in self.in_text}
        return self.form({**neutral, **choice})

    def choices(self) -> Iterator[Choice]:
        """All choices of the parameters that change the text for which there is a form."""
        names = [parameter.name for parameter in self.in_text]
        for values in itertools.product(*(parameter.values for parameter in self.in_text)):
            choice = dict(zip(names, values, strict=True))
            if isinstance(self.formed(choice), Form):
                yield choice
