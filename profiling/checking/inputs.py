"""The values of a check's inputs: integers for exact rounds, and random ones; all from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from genkern.gemm.operand import Operand
from genkern.profiling.checking.alphabet import INNER_EXPONENTS, OUTER_EXPONENTS, Alphabet, scales_inside

# Exponents of a tensor's only scale: neither is one, nor is their product, nor does it take many bits from a bias.
_ONLY_EXPONENTS = {"a": 1, "b": -2}
_LARGEST_BIAS = 7
# Of random scales, between half and one and a half times of it.
_RANDOM_SCALE = 0.04
_RANDOM_INT8 = 32
# A sum whose accumulator keeps 14 bits: so many products are enough to show what random numbers are to show, and
# leave an error bound that is far below the result.
FEW_PRODUCTS = 1024
# Of the signs in a drifting round: so many are as the drift.
_DRIFT = 7 / 8


@dataclass(frozen=True)
class Round:
    """One launch of a check. `kind` says what A and B hold and where all operands lie:

    exact: integers, each result within C's type nearly everywhere; A is zero outside part `part` of K.
    layout: integers whose partial sums go far up and come down again, which shows a partial sum that was rounded; all
    matrices are slices of larger ones.
    random: normal deviates, for an error bound.

    `negated` stands for the round again with -A, for an activation that hides negative sums.
    """

    kind: Literal["exact", "layout", "random"]
    part: int = 0
    negated: bool = False

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.kind} inputs" if self.kind != "layout" else "exact inputs in larger matrices"


def rounds_of(alphabet: Alphabet, activation: str) -> tuple[Round, ...]:
    """The rounds of a check, cheapest to tell first."""
    signs = (False,) if activation == "none" else (False, True)
    exact = (Round("exact", part, negated) for part in range(alphabet.parts) for negated in signs)
    return (*exact, Round("layout"), Round("random"))


def fill(
    tensors: dict[str, Any], operands: Sequence[Operand], alphabet: Alphabet, round_: Round, *, few: bool, seed: int
) -> None:
    """Write the inputs of a round into `tensors`, by name of operand, each of its operand's logical shape.

    `few` limits the number of products in a random round (accumulators of few bits). The same arguments give the same
    values on the same kind of device. Raises NotImplementedError for an operand that only its format can fill.
    """
    for place, operand in enumerate(operands):
        if operand.role != "output":
            _fill_one(tensors[operand.name], operand, place, operands, alphabet, round_, few=few, seed=seed)


def _fill_one(
    tensor: Any,
    operand: Operand,
    place: int,
    operands: Sequence[Operand],
    alphabet: Alphabet,
    round_: Round,
    *,
    few: bool,
    seed: int,
) -> None:
    import torch

    generator = torch.Generator(device=tensor.device)
    # The negated round has the same numbers.
    generator.manual_seed(
        (seed * 1009 + round_.part) * 1009 + place * 3 + ("exact", "layout", "random").index(round_.kind)
    )
    if operand.packed != 1 or operand.role == "index":
        raise NotImplementedError(f"{operand.name}: only its format can make values for it")
    if operand.role == "scale":
        values = _scales(tensor, operand, operands, round_, generator)
    elif operand.role == "bias":
        values = _bias(tensor, round_, generator)
    else:
        # Made as it is stored, seen as [M, K] or [K, N].
        shape = operand.stored_shape
        values = (_deviates if round_.kind == "random" else _integers)(tensor, shape, alphabet, round_, generator)
        values = values if operand.row_major else values.transpose(-1, -2)
        if operand.role == "activation":
            _keep_part(values, alphabet, round_, few, generator)
            if round_.negated:
                values.neg_()
        if round_.kind == "layout":
            _drift(values, operand, generator)
    _copy(tensor, values)


def _integers(tensor: Any, shape: tuple[int, ...], alphabet: Alphabet, round_: Round, generator: Any) -> Any:
    """int8, of magnitude 1 to the alphabet's largest; positive only in the round that gives them signs itself."""
    import torch

    if round_.kind == "layout":
        high = alphabet.drifting + 1
        return torch.randint(1, high, shape, dtype=torch.int8, device=tensor.device, generator=generator)
    largest = alphabet.largest
    values = torch.randint(0, 2 * largest, shape, dtype=torch.int8, device=tensor.device, generator=generator)
    values -= largest
    return values.add_(values >= 0)


def _deviates(tensor: Any, shape: tuple[int, ...], alphabet: Alphabet, round_: Round, generator: Any) -> Any:
    import torch

    values = torch.randn(shape, device=tensor.device, generator=generator)
    return values.mul_(_RANDOM_INT8).round_().clamp_(-127, 127) if tensor.dtype == torch.int8 else values


def _keep_part(values: Any, alphabet: Alphabet, round_: Round, few: bool, generator: Any) -> None:
    """Zero the columns of A [M, K] outside the round's part of K, which is a random one."""
    import torch

    K = values.shape[-1]
    parts = {
        "exact": alphabet.parts,
        "layout": alphabet.drifting_parts,
        "random": -(-K // FEW_PRODUCTS) if few else 1,
    }[round_.kind]
    if parts > 1:
        # One division of K for all the rounds.
        of_k = torch.Generator(device=values.device).manual_seed(K)
        part = torch.randperm(K, device=values.device, generator=of_k) % parts
        values.mul_((part == round_.part).to(values.dtype))


def _drift(values: Any, operand: Operand, generator: Any) -> None:
    """Signs such that products are mostly positive in the first half of K, and mostly negative in the second."""
    import torch

    flips = torch.rand(values.shape, device=values.device, generator=generator) >= _DRIFT
    if operand.role == "weight":
        K = values.shape[-2]
        flips ^= (torch.arange(K, device=values.device) >= K // 2)[:, None]
    values.mul_(1 - 2 * flips.to(values.dtype))


def _scales(tensor: Any, operand: Operand, operands: Sequence[Operand], round_: Round, generator: Any) -> Any:
    import torch

    if round_.kind == "random":
        return _RANDOM_SCALE * (0.5 + torch.rand(tensor.shape, device=tensor.device, generator=generator))
    if operand.elements == 1:
        return torch.full(tensor.shape, 2.0 ** _ONLY_EXPONENTS.get(operand.scales, 1), device=tensor.device)
    exponents = torch.tensor(
        INNER_EXPONENTS if operand in scales_inside(operands) else OUTER_EXPONENTS, device=tensor.device
    )
    chosen = torch.randint(0, len(exponents), tensor.shape, device=tensor.device, generator=generator)
    return torch.exp2(exponents[chosen].float())


def _bias(tensor: Any, round_: Round, generator: Any) -> Any:
    import torch

    if round_.kind == "random":
        return torch.randn(tensor.shape, device=tensor.device, generator=generator)
    values = torch.randint(0, 2 * _LARGEST_BIAS, tensor.shape, device=tensor.device, generator=generator)
    values -= _LARGEST_BIAS
    return values.add_(values >= 0)


def _copy(tensor: Any, values: Any) -> None:
    import torch

    if values.dtype == torch.int8 and tensor.dtype != torch.int8:
        # There is no conversion from integers to every 8-bit type.
        values = values.to(torch.float16)
    tensor.copy_(values.to(tensor.dtype))
