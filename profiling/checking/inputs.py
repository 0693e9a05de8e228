"""Generate the inputs of a check from a seed: integers for exact rounds, normal deviates for the random round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.profiling.checking.alphabet import INNER_EXPONENTS, OUTER_EXPONENTS, Alphabet, scales_inside
from genkern.profiling.checking.wide_sums import of_a, of_b

# Exponent of a scale that is the tensor's only one. Neither scale is 1, nor is their product, and they take few bits
# from a bias.
_ONLY_EXPONENTS = {"a": 1, "b": -2}
_LARGEST_BIAS = 7
# Random scales lie between 0.5 and 1.5 times this value.
_RANDOM_SCALE = 0.04
_RANDOM_INT8 = 32
# Nonzero products per result in a random round whose accumulator keeps 14 bits: enough to reveal errors, and few enough
# that the error bound stays far below the result.
FEW_PRODUCTS = 1024
# Seeds that give the rounds different numbers. `sums` uses its own generator functions, so it may share a seed.
_SEEDS = {"exact": 0, "layout": 1, "random": 2, "sums": 0}
# Elements generated at a time: each takes up to 10 bytes of memory in addition to the operand.
_AT_ONCE = 2**26
# Share of the signs in a drifting round that follow the drift.
_DRIFT = 7 / 8


@dataclass(frozen=True)
class Round:
    """One launch of a check. `kind` says what A and B hold and how operands are stored:

    exact: integers, nearly all results are exact in C's type; A is zero outside part `part` of K
    layout: integers whose partial sums rise far and come down again, which reveals rounded partial sums; all matrices
        are slices of larger ones
    sums: integers whose sums need all bits of float32, for problems that require them (`wide_sums`)
    random: normal deviates, compared by an error bound

    part: number of the part of K
    negated: the same round with -A, for an activation that hides negative sums
    bends: sums are about one, where an activation is neither zero nor the identity
    """

    kind: Literal["exact", "layout", "sums", "random"]
    part: int = 0
    negated: bool = False
    bends: bool = False

    @property
    def name(self) -> str:
        """Name of the round in messages."""
        names = {"layout": "exact inputs in larger matrices", "sums": "exact inputs that need float32 sums"}
        return names.get(self.kind, f"{self.kind} inputs")


def rounds_of(alphabet: Alphabet, activation: str, *, wide_sums: bool = False) -> tuple[Round, ...]:
    """Return the rounds of a check, the cheapest to evaluate first, with the `sums` round if `wide_sums` is true."""
    signs = (False,) if activation == "none" else (False, True)
    exact = (Round("exact", part, negated) for part in range(alphabet.parts) for negated in signs)
    wide = (Round("sums"),) if wide_sums else ()
    return (*exact, Round("layout"), *wide, Round("random", bends=activation != "none"))


# Encode(operand, numbers, generator) returns the stored tensor for an operand's numbers if its format defines one, and
# None if the numbers are stored in the storage type as they are. `numbers` is None for an index.
Encode = Callable[[Operand, Any, Any], Any]


def fill(
    tensors: dict[str, Any],
    operands: Sequence[Operand],
    alphabet: Alphabet,
    round_: Round,
    *,
    few: bool,
    seed: int,
    encode: Encode = lambda operand, numbers, generator: None,
    encodes: Callable[[Operand], bool] = lambda operand: False,
    magnitudes: bool = False,
) -> None:
    """Write the inputs of a round into `tensors` (operand name: tensor of the operand's `tensor_shape`).

    Operands that are missing in `tensors` are skipped. The same arguments give the same values on the same kind of
    device.

    few: limit the nonzero products in a random round, for accumulators of few bits
    encode: makes the stored tensor of an operand for which `encodes` is true
    encodes: true for operands that `encode` makes; other matrices are generated a few rows at a time,
        except in the `sums` round
    magnitudes: write the absolute value of every number

    Raises ValueError if `encode` returns a tensor of the wrong shape or type.
    """
    import torch

    for place, operand in enumerate(operands):
        if operand.role == "output" or operand.name not in tensors:
            continue
        tensor = tensors[operand.name]
        generator = torch.Generator(device=tensor.device)
        # A negated round uses the same seed, hence the same numbers.
        generator.manual_seed((seed * 1009 + round_.part) * 1009 + place * 3 + _SEEDS[round_.kind])
        is_matrix = operand.role in ("activation", "weight") and operand.is_plain and not encodes(operand)
        if is_matrix and round_.kind != "sums":
            for part, numbers in _parts(tensor, operand, operands, alphabet, round_, few, generator):
                _copy(part, numbers.abs_() if magnitudes else numbers)
            continue
        numbers = None
        if operand.role != "index":
            numbers = _numbers(tensor.device, operand, operands, alphabet, round_, few, generator)
            if magnitudes:
                numbers.abs_()
        encoded = encode(operand, numbers, generator)
        if encoded is None:
            _copy(tensor, numbers)
        elif operand.together > 1 and encoded.shape == tensor.shape:
            # A tensor of numbers in another order.
            _copy(tensor, encoded)
        elif encoded.shape != tensor.shape or encoded.dtype != tensor.dtype:
            wanted = f"{tuple(tensor.shape)} of {tensor.dtype}"
            raise ValueError(f"exact_inputs of {operand.name}: {tuple(encoded.shape)} of {encoded.dtype}, not {wanted}")
        else:
            tensor.copy_(encoded)


def _numbers(
    device: Any,
    operand: Operand,
    operands: Sequence[Operand],
    alphabet: Alphabet,
    round_: Round,
    few: bool,
    generator: Any,
) -> Any:
    """Return the numbers of an operand in its logical shape."""
    factor = _factor(operand, operands, few) if round_.bends else 1.0
    if operand.role == "scale":
        return _scales(device, operand, operands, round_, generator) * factor
    if operand.role == "bias":
        return _bias(device, operand, round_, generator)
    if round_.kind == "sums":
        return (of_b if operand.role == "weight" else of_a)(device, operand, generator)
    ks = range(operand.shape[_k_axis(operand)])
    return _values(device, operand, operand.stored_shape, ks, alphabet, round_, few, factor, generator)


def _parts(
    tensor: Any,
    operand: Operand,
    operands: Sequence[Operand],
    alphabet: Alphabet,
    round_: Round,
    few: bool,
    generator: Any,
) -> Iterator[tuple[Any, Any]]:
    """Yield slices of a matrix along its first stored dimension, each with its numbers, in logical orientation."""
    first_rows, *others = operand.stored_shape
    factor = _factor(operand, operands, few) if round_.bends else 1.0
    stored = tensor if operand.row_major else tensor.transpose(-1, -2)
    K, step = operand.shape[_k_axis(operand)], max(1, _AT_ONCE // math.prod(others))
    # True if stored rows run along K.
    along_k = len(operand.shape) == 3 or (_k_axis(operand) == -1) == operand.row_major
    for first in range(0, first_rows, step):
        part = stored[first : first + step]
        ks = range(K) if along_k else range(first, first + len(part))
        shape = (len(part), *others)
        values = _values(tensor.device, operand, shape, ks, alphabet, round_, few, factor, generator)
        yield part if operand.row_major else part.transpose(-1, -2), values


def _k_axis(operand: Operand) -> int:
    """Return the dimension of K in A [M, K] or B [K, N]."""
    return -1 if operand.role == "activation" else -2


def _values(
    device: Any,
    operand: Operand,
    shape: tuple[int, ...],
    ks: range,
    alphabet: Alphabet,
    round_: Round,
    few: bool,
    factor: float,
    generator: Any,
) -> Any:
    """Return numbers for a part of A or B, generated in the stored `shape` and viewed as [M, K] or [K, N].

    `ks`: the indices along K that the part covers.
    """
    values = (_deviates if round_.kind == "random" else _integers)(device, operand, shape, alphabet, round_, generator)
    values = values if operand.row_major else values.transpose(-1, -2)
    K = operand.shape[_k_axis(operand)]
    if operand.role == "activation":
        _keep_part(values, K, ks, alphabet, round_, few)
        if factor != 1:
            values.mul_(factor)
        if round_.negated:
            values.neg_()
    if round_.kind == "layout":
        _drift(values, operand, K, ks, generator)
    return values


def _integers(
    device: Any, operand: Operand, shape: tuple[int, ...], alphabet: Alphabet, round_: Round, generator: Any
) -> Any:
    """Return int8 of magnitude 1 to the alphabet's largest.

    All are positive in the `layout` round, in which `_drift` sets the signs.
    """
    import torch

    if round_.kind == "layout":
        high = alphabet.drifting + 1
        return torch.randint(1, high, shape, dtype=torch.int8, device=device, generator=generator)
    largest = alphabet.largest
    values = torch.randint(0, 2 * largest, shape, dtype=torch.int8, device=device, generator=generator)
    values -= largest
    return values.add_(values >= 0)


def _deviates(
    device: Any, operand: Operand, shape: tuple[int, ...], alphabet: Alphabet, round_: Round, generator: Any
) -> Any:
    import torch

    values = torch.randn(shape, device=device, generator=generator)
    if DTYPES[operand.dtype].is_integer and operand.is_plain:
        values.mul_(_RANDOM_INT8).round_().clamp_(-127, 127)
    return values


def _factor(operand: Operand, operands: Sequence[Operand], few: bool) -> float:
    """Return the power of two by which `operand` is scaled so that sums of random numbers are about one.

    Returns 1.0 for operands that do not carry the factor.

    A carries the factor, or A's scales if it has any.
    """
    scaled = {each.scales for each in operands if each.role == "scale"}
    takes_it = operand.scales == "a" if "a" in scaled else operand.role == "activation"
    if not takes_it:
        return 1.0
    activation = next(each for each in operands if each.role == "activation")
    weight = next(each for each in operands if each.role == "weight")
    K = activation.shape[-1]
    deviation = math.sqrt(min(K, FEW_PRODUCTS) if few else K)
    for each in (activation, weight):
        deviation *= _RANDOM_INT8 if DTYPES[each.dtype].is_integer and each.is_plain else 1
        deviation *= _RANDOM_SCALE if each.name in scaled else 1
    return float(2.0 ** -round(math.log2(deviation)))


def _keep_part(values: Any, K: int, ks: range, alphabet: Alphabet, round_: Round, few: bool) -> None:
    """Zero the columns of A [M, K], restricted to `ks`, outside the round's randomly chosen part of K."""
    import torch

    parts = {
        "exact": alphabet.parts,
        "layout": alphabet.drifting_parts,
        "random": -(-K // FEW_PRODUCTS) if few else 1,
    }[round_.kind]
    if parts > 1:
        # All rounds use the same division of K.
        of_k = torch.Generator(device=values.device).manual_seed(K)
        part = torch.randperm(K, device=values.device, generator=of_k) % parts
        values.mul_((part[ks.start : ks.stop] == round_.part).to(values.dtype))


def _drift(values: Any, operand: Operand, K: int, ks: range, generator: Any) -> None:
    """Set signs such that products are mostly positive in the first half of K and mostly negative in the second."""
    import torch

    flips = torch.rand(values.shape, device=values.device, generator=generator) >= _DRIFT
    if operand.role == "weight":
        flips ^= (torch.arange(ks.start, ks.stop, device=values.device) >= K // 2)[:, None]
    values.mul_(1 - 2 * flips.to(values.dtype))


def _scales(device: Any, operand: Operand, operands: Sequence[Operand], round_: Round, generator: Any) -> Any:
    import torch

    if round_.kind == "random":
        return _RANDOM_SCALE * (0.5 + torch.rand(operand.shape, device=device, generator=generator))
    if operand.elements == 1:
        return torch.full(operand.shape, 2.0 ** _ONLY_EXPONENTS.get(operand.scales, 1), device=device)
    exponents = torch.tensor(INNER_EXPONENTS if operand in scales_inside(operands) else OUTER_EXPONENTS, device=device)
    chosen = torch.randint(0, len(exponents), operand.shape, device=device, generator=generator)
    return torch.exp2(exponents[chosen].float())


def _bias(device: Any, operand: Operand, round_: Round, generator: Any) -> Any:
    import torch

    if round_.kind == "random":
        return torch.randn(operand.shape, device=device, generator=generator)
    values = torch.randint(0, 2 * _LARGEST_BIAS, operand.shape, device=device, generator=generator)
    values -= _LARGEST_BIAS
    return values.add_(values >= 0)


def _copy(tensor: Any, values: Any) -> None:
    import torch

    if values.dtype == torch.int8 and tensor.dtype != torch.int8:
        # PyTorch cannot convert integers to every 8-bit type.
        values = values.to(torch.float16)
    tensor.copy_(values.to(tensor.dtype))
