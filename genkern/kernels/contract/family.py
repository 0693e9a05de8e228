"""`Family`: kernels of one design, and the parameters that tell them apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from genkern.gemm.parameter import PARAMETERS, Parameter, Value
from genkern.kernels.contract.traits import KernelTraits

# Values of the parameters that change a family's kernel text, by name.
Choice = dict[str, Value]


@dataclass(frozen=True)
class Family:
    """A family of kernels.

    Every family takes the tile sizes, GROUP_SIZE_M, SPLIT_K, num_warps and num_stages.

    name: the family's name in configs.
    form: a function from the values of the parameters that change the kernel text to the `Form`, or to a reason why no
        such kernel exists. A single `Form` if no parameter changes the text.
    parameters: further parameters, each with the values that this family allows. A family that runs on AMD GPUs lists
        the AMD options here. Kernels of generated modules receive the parameters in `arguments`; CuTe families pass
        theirs to the kernel themselves.
    language: "triton" (also for Gluon) or "cute". The main kernel of a "cute" family is not part of a generated module:
        `Variant.template` names its file. Its helper kernels may still be written in Triton.
    """

    name: str
    traits: KernelTraits | Callable[[Choice], KernelTraits | str]
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
        """The parameters that change the kernel text."""
        return tuple(parameter for parameter in self.parameters if parameter.in_text)

    def traits_for(self, choice: Choice) -> KernelTraits | str:
        """Return the form for these values, or why there is none. Missing values are neutral."""
        if isinstance(self.traits, KernelTraits):
            return self.traits
        neutral = {parameter.name: PARAMETERS.neutral[parameter.name] for parameter in self.in_text}
        return self.traits({**neutral, **choice})

    def choices(self) -> Iterator[Choice]:
        """Yield every combination of values of the text-changing parameters for which a form exists."""
        names = [parameter.name for parameter in self.in_text]
        for values in itertools.product(*(parameter.values for parameter in self.in_text)):
            choice = dict(zip(names, values, strict=True))
            if isinstance(self.traits_for(choice), KernelTraits):
                yield choice
